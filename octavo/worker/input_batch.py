"""`InputBatch`: the worker's memory of its requests, one row each, and how a step's `Batch` is made from it.

Rows never move: the scheduler gives a row at admission and takes it back at the end or at a preemption, and
each step names the rows it runs. The worker derives every position, length and slot from its row, and writes
what it samples there too, so the scheduler need not send any of it.
"""

from __future__ import annotations

import numpy as np

from octavo.types.batch import Batch, CommonAttentionMetadata
from octavo.types.kv import KVCacheConfig
from octavo.types.sampling import SamplerOutput, SamplingMetadata
from octavo.types.steps import NewRequestData, SchedulerOutput
from octavo.worker.block_tables import BlockTables
from octavo.worker.sampling_rows import SamplingRows


class InputBatch:
    """Arrays by row, mutated by `update` (the scheduler's word) and `append_sampled`."""

    def __init__(self, num_rows: int, max_model_len: int, vocab_size: int, kv_cache: KVCacheConfig) -> None:
        self.row_of: dict[str, int] = {}
        # [rows, max_model_len] int32, zeroed by the system on first touch: memory follows use.
        self.token_ids = np.zeros((num_rows, max_model_len), np.int32)
        self.num_tokens = np.zeros(num_rows, np.int64)  # known: prompt and output
        self.num_prompt_tokens = np.zeros(num_rows, np.int64)
        # In the cache once every step that was laid out has run.
        self.num_computed_tokens = np.zeros(num_rows, np.int64)
        (block_size,) = {group.spec.block_size for group in kv_cache.groups}  # blocks are cut alike in all
        self.block_tables = BlockTables(len(kv_cache.groups), num_rows, max_model_len, block_size)
        self.sampling = SamplingRows(num_rows, vocab_size)

    def update(self, output: SchedulerOutput) -> None:
        """Take in what the scheduler decided: who left, who takes a row, who got blocks."""
        for req_id in output.finished_req_ids | output.preempted_req_ids:
            self.row_of.pop(req_id, None)
        for request in output.scheduled_new_reqs:
            self._admit(request)
        cached = output.scheduled_cached_reqs
        for req_id, new_block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if new_block_ids is not None:
                self.block_tables.append_row(self.row_of[req_id], new_block_ids)

    def build(self, output: SchedulerOutput) -> Batch:
        """Lay out the step's tokens, and count them as computed."""
        scheduled = output.num_scheduled_tokens
        # int64, since numpy has a short way for what is indexed by it: a fifth of the time of int32.
        rows = np.array([self.row_of[req_id] for req_id in scheduled], np.int64)
        counts = np.array(list(scheduled.values()), np.int64)
        ends = counts.cumsum()  # [n]
        query_start_loc = np.zeros(len(rows) + 1, np.int32)  # [n + 1]
        query_start_loc[1:] = ends
        computed = self.num_computed_tokens[rows]  # [n]
        seq_lens = computed + counts  # [n]
        self.num_computed_tokens[rows] = seq_lens
        token_rows, positions = rows, computed  # [T], where each request runs one token, as in most steps
        if output.total_num_scheduled_tokens > len(rows):  # every request in the step runs at least one
            token_rows = rows.repeat(counts)
            positions = np.arange(len(token_rows)) + (seq_lens - ends).repeat(counts)
        (sampled_index,) = (seq_lens == self.num_tokens[rows]).nonzero()  # [L]
        lengths, is_prefilling = seq_lens.astype(np.int32), computed < self.num_prompt_tokens[rows]
        attention = tuple(
            CommonAttentionMetadata(
                query_start_loc=query_start_loc,
                seq_lens=lengths,
                block_table=block_table,
                slot_mapping=slot_mapping,
                positions=positions,
                is_prefilling=is_prefilling,
                num_common_prefix_blocks=common,
            )
            for block_table, slot_mapping, common in zip(
                self.block_tables.get_rows(rows),
                self.block_tables.compute_slot_mapping(token_rows, positions),
                output.num_common_prefix_blocks,
                strict=True,
            )
        )
        return Batch(
            req_ids=list(scheduled),
            rows=rows,
            token_ids=self.token_ids[token_rows, positions],
            positions=positions,
            logits_indices=ends[sampled_index] - 1,
            sampled_index=sampled_index,
            sampled_rows=rows[sampled_index],
            attention=attention,
        )

    def get_sampling_metadata(self, batch: Batch) -> SamplingMetadata:
        """How the rows that have logits in `batch` sample."""
        rows = batch.sampled_rows
        return self.sampling.get_metadata(rows, self.num_tokens[rows])

    def append_sampled(self, batch: Batch, sampled: SamplerOutput) -> None:
        """Write the sampled tokens into their rows.

        Where there was no usable token an invalid id is written: that request ends, and nobody reads its row
        before the next one is admitted to it.
        """
        rows = batch.sampled_rows
        num_tokens = self.num_tokens[rows]
        # A request whose last token fills the row ends with it, so there is always room for one more.
        self.token_ids[rows, num_tokens] = sampled.sampled_token_ids
        self.num_tokens[rows] = num_tokens + 1

    def _admit(self, request: NewRequestData) -> None:
        row, num_tokens = request.row, len(request.token_ids)
        self.row_of[request.req_id] = row
        self.token_ids[row, :num_tokens] = request.token_ids
        self.num_tokens[row] = num_tokens
        self.num_prompt_tokens[row] = request.num_prompt_tokens
        self.num_computed_tokens[row] = request.num_computed_tokens
        self.block_tables.set_row(row, request.block_ids)
        self.sampling.set_row(row, request.sampling_params)
