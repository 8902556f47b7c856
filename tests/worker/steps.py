"""Plans as the scheduler would send them, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octavo.backends.token_table import TokenTable
from octavo.types.batch import Batch
from octavo.types.kv import KVCacheConfig
from octavo.types.params import SamplingParams
from octavo.types.sampling import SamplerOutput
from octavo.types.steps import BlockIds, CachedRequestData, NewRequestData, SchedulerOutput
from octavo.worker.input_batch import InputBatch
from tests.fakes import make_kv_config

GREEDY = SamplingParams(temperature=0.0, seed=0)


class Rows(InputBatch):
    """An input batch and the table of tokens that a backend keeps beside it."""

    def __init__(self, num_rows: int, max_model_len: int, vocab_size: int, kv_cache: KVCacheConfig) -> None:
        super().__init__(num_rows, max_model_len, vocab_size, kv_cache)
        self.tokens = TokenTable(num_rows, max_model_len)

    def update(self, output: SchedulerOutput) -> None:
        super().update(output)
        for request in output.scheduled_new_reqs:
            self.tokens.write(request.row, 0, request.token_ids)
        for req_id, drafts in output.scheduled_spec_decode_tokens.items():
            row = self.row_of[req_id]
            self.tokens.write(row, int(self.num_tokens[row]), drafts)

    def tokens_of(self, batch: Batch) -> list[int]:
        """The tokens that the step runs."""
        return self.tokens.gather(batch).tolist()

    def take_sampled(self, batch: Batch, *token_ids: int) -> list[int]:
        """Take in what was sampled from the step's rows of logits. Returns how many tokens requests gain."""
        sampled = SamplerOutput(np.array(token_ids, np.int64), [None] * len(token_ids))
        taken = self.tokens.take_in(batch, sampled)
        self.gain(batch)
        self.settle(batch, taken.num_gained)
        return [1] * len(token_ids) if taken.num_gained is None else taken.num_gained.tolist()


def make_input_batch(num_rows: int = 8, max_model_len: int = 4096, num_groups: int = 1) -> Rows:
    """Rows over a cache of 16 tokens a block, for a vocabulary of 100."""
    return Rows(num_rows, max_model_len, 100, make_kv_config(1000, 16, num_groups))


def new(
    req_id: str,
    row: int,
    token_ids: Sequence[int],
    block_ids: list[int] | BlockIds,
    num_computed_tokens: int = 0,
    **fields: object,
) -> NewRequestData:
    """A request that takes a row. `block_ids`: those of the one group, or a list for each group."""
    fields = {"num_prompt_tokens": len(token_ids), "sampling_params": GREEDY, **fields}
    return NewRequestData(
        req_id=req_id,
        row=row,
        token_ids=list(token_ids),
        num_computed_tokens=num_computed_tokens,
        block_ids=block_ids if isinstance(block_ids, tuple) else (block_ids,),
        **fields,
    )


def plan(
    counts: Mapping[str, int],
    new_reqs: Sequence[NewRequestData] = (),
    new_blocks: Mapping[str, BlockIds] | None = None,
    finished: Sequence[str] = (),
    preempted: Sequence[str] = (),
    **fields: object,
) -> SchedulerOutput:
    """A step that runs `counts`; whoever is not in `new_reqs` is known already and gets `new_blocks`."""
    known = [req_id for req_id in counts if req_id not in {request.req_id for request in new_reqs}]
    blocks = new_blocks or {}
    fields = {"num_common_prefix_blocks": [0], **fields}
    return SchedulerOutput(
        scheduled_new_reqs=list(new_reqs),
        scheduled_cached_reqs=CachedRequestData(known, [blocks.get(req_id) for req_id in known]),
        num_scheduled_tokens=dict(counts),
        total_num_scheduled_tokens=sum(counts.values()),
        finished_req_ids=set(finished),
        preempted_req_ids=set(preempted),
        **fields,
    )
