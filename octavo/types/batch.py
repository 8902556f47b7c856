"""`Batch`: one step's input to the model, as flat arrays, and the metadata attention reads from it.

The worker builds it from its rows, and backends read it. A step has n requests, T tokens, L rows of logits, G
KV cache groups, and B blocks in the longest block table. All arrays are new in each step and must not be
kept after it.

The classes are msgspec Structs, because every step makes new instances, and a frozen dataclass takes 20 times
as long to make.
"""

from __future__ import annotations

import msgspec
import numpy as np


class CommonAttentionMetadata(msgspec.Struct, frozen=True, eq=False):
    """The metadata of a step that attention reads. There is one for each KV cache group."""

    query_start_loc: np.ndarray  # [n + 1] int32: request i owns tokens from entry i up to entry i + 1
    seq_lens: np.ndarray  # [n] int32: computed tokens + this step's tokens
    block_table: np.ndarray  # [n, B] int32: block ids; entries past a request's length are 0, the null block
    slot_mapping: np.ndarray  # [T] int64: slot of K and V, block id * block_size + offset; -1 = none
    num_common_prefix_blocks: int  # leading blocks that all requests of the step share


class RowsInput(msgspec.Struct, frozen=True, eq=False):
    """Values for k of the step's tokens, which `Ops.replace_rows` puts into the rows of a tensor."""

    indices: np.ndarray  # [k] int64, ascending: tokens of the step
    values: np.ndarray  # [k, width] float32


class Batch(msgspec.Struct, frozen=True, eq=False):
    """One step as the model reads it: the tokens of all its requests, request after request.

    The batch holds the row and position of each token. The token ids are in the backend's table. S requests
    sample in the step. Each has one row of logits or, with d drafts to verify, d + 1 rows: row j, counted
    from 0, samples the token that follows the first j drafts.
    """

    req_ids: list[str]  # [n]
    rows: np.ndarray  # [n] int64: each request's row in the worker
    token_rows: np.ndarray  # [T] int64: the row each token belongs to
    positions: np.ndarray  # [T] int64: each token's position in its row
    sampled_index: np.ndarray  # [S] int64: indices among the n requests of those that sample
    # [S + 1] int64: request i of S has the rows of logits from entry i up to entry i + 1.
    logits_start_loc: np.ndarray
    logits_indices: np.ndarray  # [L] int64: index among the T tokens that each row of logits is computed from
    logits_rows: np.ndarray  # [L] int64: the worker's row that each row of logits belongs to
    logits_positions: np.ndarray  # [L] int64: the position of the token that each row of logits samples
    draft_token_ids: dict[int, list[int]]  # index among the n requests → the drafts it verifies
    attention: tuple[CommonAttentionMetadata, ...]  # [G]
    inputs: dict[str, RowsInput] = {}  # by the name in the model's `replace_rows`; usually empty

    @property
    def num_tokens(self) -> int:
        """T, the tokens in the step."""
        return len(self.positions)

    @property
    def num_logits(self) -> int:
        """L, the rows of logits in the step."""
        return len(self.logits_rows)

    @property
    def query_start_loc(self) -> np.ndarray:
        """[n + 1] int32: request i owns tokens query_start_loc[i] : query_start_loc[i + 1]."""
        return self.attention[0].query_start_loc

    @property
    def seq_lens(self) -> np.ndarray:
        """[n] int32: tokens of context each request has after this step."""
        return self.attention[0].seq_lens
