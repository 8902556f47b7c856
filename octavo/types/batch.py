"""`Batch`: one step's input to the model, as flat arrays, and the metadata attention reads from it.

Built by the worker from its rows, read by backends. n requests in the step, T tokens, L rows of logits, G KV
cache groups, B blocks of the longest request. All arrays are fresh each step and must not be kept past it.

These are structs since every step makes new ones, and a frozen dataclass takes 20 times as long to make.
"""

from __future__ import annotations

import msgspec
import numpy as np


class CommonAttentionMetadata(msgspec.Struct, frozen=True, eq=False):
    """What attention needs to know of a step, once for each KV cache group."""

    query_start_loc: np.ndarray  # [n + 1] int32: request i owns tokens from entry i up to entry i + 1
    seq_lens: np.ndarray  # [n] int32: computed tokens + this step's tokens
    block_table: np.ndarray  # [n, B] int32: block ids; entries past a request's length are 0, the null block
    slot_mapping: np.ndarray  # [T] int64: where K and V go, block id * block_size + offset; -1 = nowhere
    positions: np.ndarray  # [T] int64
    is_prefilling: np.ndarray  # [n] bool: part of the prompt was still to be computed when the step began
    num_common_prefix_blocks: int  # leading blocks that all requests of the step share

    @property
    def num_reqs(self) -> int:
        """Requests in the step."""
        return len(self.seq_lens)

    @property
    def num_actual_tokens(self) -> int:
        """Tokens in the step."""
        return len(self.slot_mapping)

    @property
    def max_query_len(self) -> int:
        """Most tokens any request runs in this step."""
        return int(np.diff(self.query_start_loc).max(initial=0))

    @property
    def max_seq_len(self) -> int:
        """Longest context, in tokens, any request has after this step."""
        return int(self.seq_lens.max(initial=0))


class RowsInput(msgspec.Struct, frozen=True, eq=False):
    """Rows of numbers for k of the step's tokens. `Ops.replace_rows` puts them into a tensor."""

    indices: np.ndarray  # [k] int64, rising: tokens of the step
    values: np.ndarray  # [k, width] float32


class Batch(msgspec.Struct, frozen=True, eq=False):
    """One step, laid out for the model: the tokens of all its requests one after the other."""

    req_ids: list[str]  # [n]
    rows: np.ndarray  # [n] int64: each request's row in the worker
    token_ids: np.ndarray  # [T] int32
    positions: np.ndarray  # [T] int64
    logits_indices: np.ndarray  # [L] int64: tokens whose logits are wanted, in request order
    sampled_index: np.ndarray  # [L] int64: which of the n requests each row of logits belongs to
    sampled_rows: np.ndarray  # [L] int64: the worker's row of that request
    attention: tuple[CommonAttentionMetadata, ...]  # [G]
    inputs: dict[str, RowsInput] = {}  # by the name that the model's `replace_rows` gives; mostly none

    @property
    def query_start_loc(self) -> np.ndarray:
        """[n + 1] int32: request i owns tokens query_start_loc[i] : query_start_loc[i + 1]."""
        return self.attention[0].query_start_loc

    @property
    def seq_lens(self) -> np.ndarray:
        """[n] int32: tokens of context each request has after this step."""
        return self.attention[0].seq_lens
