"""`ModelTensors`: the tensors of a model file by their role in the model, each checked as it is taken.

The one place that knows how files of either layout name tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from octavo.errors import UnsupportedError, WeightError
from octavo.models.spec import Layout
from octavo.ops import Linear
from octavo.weights.dequantize import SUPPORTED_FORMATS
from octavo.weights.weight import Weight, WeightSource

# role: (GGUF, Hugging Face); "{}" is the number of the layer.
_NAMES: Mapping[str, tuple[str, str]] = MappingProxyType(
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
        "rope_divisors": ("rope_freqs", "rope_freqs"),  # only GGUF files have it
        "q_norm": ("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"),
        "k_norm": ("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"),
        # Where norms follow attention and feed-forward, too. Hugging Face's name of the first is, in other
        # models, that of the norm before the feed-forward.
        "attention_post_norm": ("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
        "mlp_pre_norm": ("blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
        "mlp_post_norm": ("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"),
    }
)

# Tables that some writers store although they follow from the rest of the file.
_REDUNDANT = (".rotary_emb.inv_freq", ".attn_rot_embd.weight")


def tensor_name(layout: Layout, role: str, layer: int = 0, kind: str = "weight") -> str:
    """What a file of `layout` calls the `kind` ("weight" or "bias") that plays `role` in `layer`."""
    gguf, huggingface = _NAMES[role]
    return f"{(gguf if layout == 'gguf' else huggingface).format(layer)}.{kind}"


class ModelTensors:
    """Takes tensors out of `source`, and remembers which were taken."""

    def __init__(self, source: WeightSource, layout: Layout) -> None:
        self._source = source
        self._layout = layout
        self._taken: dict[str, Weight] = {}
        self._ignored: set[str] = set()

    @property
    def taken(self) -> tuple[Weight, ...]:
        """Every weight taken so far, each once; constants are not among them."""
        return tuple(self._taken.values())

    def has(self, role: str) -> bool:
        """Whether the file holds a weight for `role`."""
        return self._name(role) in self._source

    def weight(
        self, role: str, shape: tuple[int, ...], layer: int = 0, offset: float | None = None
    ) -> Weight:
        """The weight that plays `role`, with `offset` added. Raises WeightError when it is missing or not of
        `shape`, UnsupportedError when its format cannot be read.
        """
        return self._take(self._name(role, layer), shape, offset)

    def linear(
        self, sizes: Mapping[str, int], in_features: int, layer: int = 0, bias: bool = False
    ) -> Linear:
        """A linear map whose rows come from several roles, with the out_features `sizes` says; raises as
        `weight` does.
        """
        weights = [self.weight(role, (size, in_features), layer) for role, size in sizes.items()]
        biases = [
            self._take(self._name(role, layer, "bias"), (size,)) for role, size in sizes.items() if bias
        ]
        return Linear(tuple(weights), tuple(biases))

    def head(self, vocab_size: int, hidden_size: int, tied: bool) -> Linear:
        """The linear map to logits: with the embedding if `tied`, and then a copy of it in the file is passed
        over; raises as `weight` does.
        """
        if tied:
            self.ignore("head")
        return self.linear({"embedding" if tied else "head": vocab_size}, hidden_size)

    def constant(self, role: str, shape: tuple[int, ...]) -> np.ndarray:
        """The values, float32, of a weight needed only while the model is made; raises as `weight` does."""
        self.ignore(role)
        return self._checked(self._name(role), shape).to_float32()

    def ignore(self, role: str) -> None:
        """Let the file hold a weight for `role` that the model does not use."""
        self._ignored.add(self._name(role))

    def check_all_taken(self) -> None:
        """Raise WeightError when tensors are left over: the file holds another model than it says."""
        known = self._taken.keys() | self._ignored
        rest = [name for name in self._source.names() if name not in known and not name.endswith(_REDUNDANT)]
        if rest:
            raise WeightError(
                f"the model has no place for {len(rest)} of the file's tensors: {', '.join(rest[:4])}"
                f"{', …' if len(rest) > 4 else ''}; the file holds another architecture than it says"
            )

    def _name(self, role: str, layer: int = 0, kind: str = "weight") -> str:
        return tensor_name(self._layout, role, layer, kind)

    def _take(self, name: str, shape: tuple[int, ...], offset: float | None = None) -> Weight:
        if name not in self._taken:
            weight = self._checked(name, shape)
            self._taken[name] = weight if offset is None else weight.plus(offset)
        return self._taken[name]

    def _checked(self, name: str, shape: tuple[int, ...]) -> Weight:
        weight = self._source.get(name)
        if weight.shape != shape:
            raise WeightError(f"tensor {name!r} has shape {weight.shape}; the model's shape asks for {shape}")
        if weight.format.name not in SUPPORTED_FORMATS:
            raise UnsupportedError(
                f"tensor {name!r} is in format {weight.format.name}, which cannot be read; "
                f"supported: {', '.join(SUPPORTED_FORMATS)}"
            )
        return weight
