"""`InputBatch`: the worker's state of its requests, one row each, from which it builds a step's `Batch`.

A request keeps its row from admission to its end or preemption, and each step names the requests that it
runs. The worker derives every position, length and slot from the row, so the scheduler sends none of these.
The token ids are in the backend's table.
"""

from __future__ import annotations

import numpy as np

from octavo.types.batch import Batch, CommonAttentionMetadata
from octavo.types.kv import KVCacheConfig
from octavo.types.sampling import SamplingMetadata
from octavo.types.steps import NewRequestData, SchedulerOutput
from octavo.worker.block_tables import BlockTables
from octavo.worker.sampling_rows import SamplingRows


class InputBatch:
    """Arrays by row. `update` applies the scheduler's plan, `build` makes a `Batch`, `gain` counts tokens."""

    def __init__(self, num_rows: int, max_model_len: int, vocab_size: int, kv_cache: KVCacheConfig) -> None:
        self.num_rows = num_rows
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.row_of: dict[str, int] = {}
        self.num_tokens = np.zeros(num_rows, np.int64)  # known tokens: prompt and output, without drafts
        # Tokens whose KV is in the cache once every step that was built has run.
        self.num_computed_tokens = np.zeros(num_rows, np.int64)
        (block_size,) = {group.spec.block_size for group in kv_cache.groups}  # equal in all groups
        self.block_tables = BlockTables(len(kv_cache.groups), num_rows, max_model_len, block_size)
        self.sampling = SamplingRows(num_rows, vocab_size)

    def update(self, output: SchedulerOutput) -> None:
        """Apply the plan: remove finished and preempted requests, admit new ones, append new blocks."""
        for req_id in output.finished_req_ids | output.preempted_req_ids:
            self.row_of.pop(req_id, None)
        for request in output.scheduled_new_reqs:
            self._admit(request)
        cached = output.scheduled_cached_reqs
        for req_id, new_block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if new_block_ids is not None:
                self.block_tables.append_row(self.row_of[req_id], new_block_ids)

    def build(self, output: SchedulerOutput) -> Batch:
        """Build the step's `Batch`, and count its tokens as computed."""
        scheduled = output.num_scheduled_tokens
        # int64, because numpy indexes fastest with it: a fifth of the time of int32.
        rows = np.array([self.row_of[req_id] for req_id in scheduled], np.int64)
        counts = np.array(list(scheduled.values()), np.int64)
        ends = counts.cumsum()  # [n]
        query_start_loc = np.zeros(len(rows) + 1, np.int32)  # [n + 1]
        query_start_loc[1:] = ends
        computed = self.num_computed_tokens[rows]  # [n]
        seq_lens = computed + counts  # [n]
        self.num_computed_tokens[rows] = seq_lens
        token_rows, positions = rows, computed  # [T] if each request computes one token, as in most steps
        if output.total_num_scheduled_tokens > len(rows):  # every request in the step computes at least one
            token_rows = rows.repeat(counts)
            positions = np.arange(len(token_rows)) + (seq_lens - ends).repeat(counts)
        drafts = output.scheduled_spec_decode_tokens
        draft_token_ids = {}
        if drafts:
            draft_token_ids = {i: drafts[req_id] for i, req_id in enumerate(scheduled) if req_id in drafts}
        num_known = self.num_tokens[rows]  # [n], with drafts
        if draft_token_ids:
            num_known[list(draft_token_ids)] += list(map(len, draft_token_ids.values()))
        (sampled_index,) = (seq_lens == num_known).nonzero()  # [S]: all known tokens are computed
        sampled_rows, last_indices = rows[sampled_index], ends[sampled_index] - 1
        num_logits = 1 + num_known[sampled_index] - self.num_tokens[sampled_rows]  # [S]
        logits_start_loc = np.zeros(len(sampled_index) + 1, np.int64)
        logits_start_loc[1:] = num_logits.cumsum()
        # [L], at most 0: distance of each row of logits from the last row of its request.
        offsets = np.arange(logits_start_loc[-1]) - (logits_start_loc[1:] - 1).repeat(num_logits)
        return Batch(
            req_ids=list(scheduled),
            rows=rows,
            token_rows=token_rows,
            positions=positions,
            sampled_index=sampled_index,
            logits_start_loc=logits_start_loc,
            logits_indices=last_indices.repeat(num_logits) + offsets,
            logits_rows=sampled_rows.repeat(num_logits),
            logits_positions=seq_lens[sampled_index].repeat(num_logits) + offsets,
            draft_token_ids=draft_token_ids,
            attention=self._make_attention(output, rows, token_rows, positions, query_start_loc, seq_lens),
        )

    def _make_attention(
        self,
        output: SchedulerOutput,
        rows: np.ndarray,
        token_rows: np.ndarray,
        positions: np.ndarray,
        query_start_loc: np.ndarray,
        seq_lens: np.ndarray,
    ) -> tuple[CommonAttentionMetadata, ...]:
        lengths = seq_lens.astype(np.int32)
        return tuple(
            CommonAttentionMetadata(
                query_start_loc=query_start_loc,
                seq_lens=lengths,
                block_table=block_table,
                slot_mapping=slot_mapping,
                num_common_prefix_blocks=common,
            )
            for block_table, slot_mapping, common in zip(
                self.block_tables.get_rows(rows),
                self.block_tables.compute_slot_mapping(token_rows, positions),
                output.num_common_prefix_blocks,
                strict=True,
            )
        )

    def get_sampling_metadata(self, batch: Batch) -> SamplingMetadata:
        """Return how each row of logits in `batch` is sampled."""
        return self.sampling.get_metadata(batch.logits_rows, batch.logits_positions)

    def gain(self, batch: Batch) -> None:
        """Count the token that each request without drafts samples in this step.

        The accepted drafts of the other requests are not known yet: `settle` counts the tokens of those.
        """
        rows = batch.rows[batch.sampled_index]
        if batch.draft_token_ids:
            rows = rows[np.diff(batch.logits_start_loc) == 1]
        self.num_tokens[rows] += 1

    def settle(self, batch: Batch, num_gained: np.ndarray | None) -> None:
        """Count the `num_gained` [S] tokens of the requests with drafts.

        The KV of rejected drafts no longer counts as computed.
        """
        if not batch.draft_token_ids or num_gained is None:
            return
        num_logits = np.diff(batch.logits_start_loc)
        (drafted,) = (num_logits > 1).nonzero()
        rows = batch.rows[batch.sampled_index[drafted]]
        self.num_tokens[rows] += num_gained[drafted]
        self.num_computed_tokens[rows] -= num_logits[drafted] - num_gained[drafted]

    def _admit(self, request: NewRequestData) -> None:
        row = request.row
        self.row_of[request.req_id] = row
        self.num_tokens[row] = len(request.token_ids)
        self.num_computed_tokens[row] = request.num_computed_tokens
        self.block_tables.set_row(row, request.block_ids)
        self.sampling.set_row(row, request.sampling_params)
