"""`Batch`: one step's input to the model, as flat arrays, with the metadata for attention.

The worker builds it from its rows, and backends read it. A step has n requests, T tokens, L rows of logits, G
KV cache groups, and B blocks in the longest block table. The arrays are made for one step and are valid only
during it.

The classes are structs because each step makes new ones. Making a frozen dataclass takes 20 times as long.
"""

from __future__ import annotations

import msgspec
import numpy as np


class CommonAttentionMetadata(msgspec.Struct, frozen=True, eq=False):
    """The metadata of a step for the attention layers of one KV cache group."""

    query_start_loc: np.ndarray  # [n + 1] int32: request i owns tokens from entry i up to entry i + 1
    seq_lens: np.ndarray  # [n] int32: computed tokens + this step's tokens
    block_table: np.ndarray  # [n, B] int32: block ids; entries past a request's length are 0, the null block
    # [T] int64: the slots that K and V are written to, block id * block_size + offset; -1 = none.
    slot_mapping: np.ndarray
    num_common_prefix_blocks: int  # number of leading blocks that all requests of the step share


class RowsInput(msgspec.Struct, frozen=True, eq=False):
    """Rows of numbers for k of the step's tokens. `Ops.replace_rows` puts them into a tensor."""

    indices: np.ndarray  # [k] int64, rising: indices among the T tokens of the step
    values: np.ndarray  # [k, width] float32


class Batch(msgspec.Struct, frozen=True, eq=False):
    """One step, laid out for the model: the tokens of all its requests one after the other.

    The batch gives the row and the position of each token. The token itself is in the backend's table. S
    requests sample in the step. A request with d drafts to verify has d + 1 rows of logits: row j samples the
    token that follows the first j drafts.
    """

    req_ids: list[str]  # [n]
    rows: np.ndarray  # [n] int64: each request's row in the worker
    token_rows: np.ndarray  # [T] int64: the row each token belongs to
    positions: np.ndarray  # [T] int64: each token's position in its row
    sampled_index: np.ndarray  # [S] int64: which of the n requests sample
    # [S + 1] int64: the i-th request that samples has rows of logits from entry i up to entry i + 1.
    logits_start_loc: np.ndarray
    logits_indices: np.ndarray  # [L] int64: which of the T tokens each row of logits comes from
    logits_rows: np.ndarray  # [L] int64: the worker's row that each row of logits belongs to
    logits_positions: np.ndarray  # [L] int64: the position of the token that each row of logits samples
    draft_token_ids: dict[int, list[int]]  # index among the n requests → the drafts it verifies
    attention: tuple[CommonAttentionMetadata, ...]  # [G]
    inputs: dict[str, RowsInput] = {}  # by the name that the model's `replace_rows` gives

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens in the step."""
        return len(self.positions)

    @property
    def num_logits(self) -> int:
        """L, the number of rows of logits in the step."""
        return len(self.logits_rows)

    @property
    def query_start_loc(self) -> np.ndarray:
        """[n + 1] int32: request i owns tokens query_start_loc[i] : query_start_loc[i + 1]."""
        return self.attention[0].query_start_loc

    @property
    def seq_lens(self) -> np.ndarray:
        """[n] int32: number of computed tokens of each request after this step."""
        return self.attention[0].seq_lens
