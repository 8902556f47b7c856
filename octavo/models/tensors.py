"""`ModelTensors`: the tensors of a model file by their role in the model. Each is checked when it is taken.

Families say what files call the tensors of their roles. `DECODER_NAMES` has what most of them share.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from octavo.errors import UnsupportedError, WeightError
from octavo.models.spec import Layout
from octavo.ops import Linear
from octavo.weights.dequantize import SUPPORTED_FORMATS
from octavo.weights.weight import Weight, WeightSource

# (in GGUF files, in Hugging Face folders), without ".weight" or ".bias"; "{}" is the number of the layer.
TensorNames: TypeAlias = tuple[str, str]

DECODER_NAMES: Mapping[str, TensorNames] = MappingProxyType(
    {
        "embedding": ("token_embd", "model.embed_tokens"),
        "attention_norm": ("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
        "q": ("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
        "k": ("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"),
        "v": ("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"),
        "attention_output": ("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
        "mlp_norm": ("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
        "gate": ("blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"),
        "up": ("blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"),
        "down": ("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"),
        "norm": ("output_norm", "model.norm"),
        "head": ("output", "lm_head"),
    }
)
"""The names that most decoders' tensors have, by role."""

# Tables that some writers store, although they follow from the rest of the file.
_REDUNDANT = (".rotary_emb.inv_freq", ".attn_rot_embd.weight")


class ModelTensors:
    """Takes tensors out of `source`, a file of `layout`, and remembers which were taken. `names` are the
    family's names, by role.
    """

    def __init__(self, source: WeightSource, layout: Layout, names: Mapping[str, TensorNames]) -> None:
        self._source = source
        self._layout = layout
        self._names = names
        self._taken: dict[str, Weight] = {}
        self._ignored: set[str] = set()

    @property
    def taken(self) -> tuple[Weight, ...]:
        """Every weight taken so far, each once, without constants."""
        return tuple(self._taken.values())

    def has(self, role: str, kind: str = "weight", layer: int = 0) -> bool:
        """Whether the file holds a tensor of `kind` ("weight" or "bias") for `role` in `layer`."""
        return self._name(role, layer, kind) in self._source

    def matrix_shape(self, role: str, dimensions: str) -> tuple[int, int]:
        """The shape of the weight for `role`. Raises WeightError, which says what its `dimensions` must be,
        for a weight that is missing or no matrix.
        """
        weight = self._source.get(self._name(role))
        if len(weight.shape) != 2:
            raise WeightError(f"tensor {weight.name!r} has shape {weight.shape}; it must be {dimensions}")
        rows, columns = weight.shape
        return rows, columns

    def weight(
        self, role: str, shape: tuple[int, ...], layer: int = 0, offset: float | None = None
    ) -> Weight:
        """The weight for `role` in `layer`, with `offset` added to its values.

        Raises WeightError for a weight that is missing or not of `shape`, and UnsupportedError for one in a
        format that cannot be read.
        """
        return self._take(self._name(role, layer), shape, offset)

    def linear(
        self, sizes: Mapping[str, int], in_features: int, layer: int = 0, bias: bool = False
    ) -> Linear:
        """A linear map that stacks the weights for several roles. `sizes` are the out_features of each role.

        Raises what `weight` raises.
        """
        weights = [self.weight(role, (size, in_features), layer) for role, size in sizes.items()]
        biases = [
            self._take(self._name(role, layer, "bias"), (size,)) for role, size in sizes.items() if bias
        ]
        return Linear(tuple(weights), tuple(biases))

    def head(self, vocab_size: int, hidden_size: int, tied: bool) -> Linear:
        """The linear map to logits. It is the embedding if `tied`, and the file may then hold an unused copy.

        Raises what `weight` raises.
        """
        if tied:
            self.ignore("head")
        return self.linear({"embedding" if tied else "head": vocab_size}, hidden_size)

    def constant(self, role: str, shape: tuple[int, ...]) -> np.ndarray:
        """The values [*shape] float32 of a weight that is needed only while the model is made.

        Raises what `weight` raises.
        """
        self.ignore(role)
        return self._checked(self._name(role), shape).to_float32()

    def ignore(self, role: str) -> None:
        """Allow the file to hold a weight for `role` that the model does not use."""
        self._ignored.add(self._name(role))

    def check_all_taken(self) -> None:
        """Raise WeightError for tensors that nothing has taken: the file then holds another model than it
        says.
        """
        known = self._taken.keys() | self._ignored
        rest = [name for name in self._source.names() if name not in known and not name.endswith(_REDUNDANT)]
        if rest:
            raise WeightError(
                f"the model does not use {len(rest)} of the file's tensors: {', '.join(rest[:4])}"
                f"{', …' if len(rest) > 4 else ''}; the file holds another architecture than it says"
            )

    def _name(self, role: str, layer: int = 0, kind: str = "weight") -> str:
        gguf, huggingface = self._names[role]
        return f"{(gguf if self._layout == 'gguf' else huggingface).format(layer)}.{kind}"

    def _take(self, name: str, shape: tuple[int, ...], offset: float | None = None) -> Weight:
        if name not in self._taken:
            weight = self._checked(name, shape)
            self._taken[name] = weight if offset is None else weight.plus(offset)
        return self._taken[name]

    def _checked(self, name: str, shape: tuple[int, ...]) -> Weight:
        weight = self._source.get(name)
        if weight.shape != shape:
            raise WeightError(f"tensor {name!r} has shape {weight.shape}; the model needs {shape}")
        if weight.format.name not in SUPPORTED_FORMATS:
            raise UnsupportedError(
                f"tensor {name!r} is in format {weight.format.name}, which cannot be read; "
                f"supported: {', '.join(SUPPORTED_FORMATS)}"
            )
        return weight
