"""Stand-ins for what surrounds the core: a model that costs nothing, and an executor that forgives nothing.

The pseudo model's "KV" of a token is the identity of the token's whole prefix, from which the next token
follows. So a token computed over anything but its request's own context shows in that very step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain

from octavo.config import EngineConfig, SchedulerConfig
from octavo.engine.build_core import build_core
from octavo.engine.core import EngineCore
from octavo.engine.executor import InprocExecutor
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.constraint import Constraint
from octavo.scheduler.request import Request
from octavo.scheduler.scheduler import Scheduler
from octavo.types.kv import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheSpec,
    RecurrentStateSpec,
    SlidingWindowSpec,
)
from octavo.types.outputs import EngineCoreOutput, FinishReason
from octavo.types.params import SamplingParams
from octavo.types.protocols import Done
from octavo.types.requests import EngineCoreRequest
from octavo.types.sampling import INVALID_TOKEN_ID
from octavo.types.steps import BlockIds, ModelRunnerOutput, NewRequestData, SchedulerOutput
from tests.fake_groups import GARBAGE, ZERO, Memory, Share, make_fake_group

VOCAB_SIZE = 50
WRONG = VOCAB_SIZE  # a token that no request ever gets: what is sampled from garbage
EOS = 0
EMPTY_PREFIX = 1
MAX_ENCODER_TOKENS = 7


# -------------------------------------------------------------------------------------------------- factories


@functools.cache
def make_params(max_tokens: int | None = 8, **settings: object) -> SamplingParams:
    """Greedy parameters. Cached: checking them is most of the cost of a request."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0, **settings)


def make_request(
    request_id: str, prompt: Sequence[int], params: SamplingParams | None = None, **fields: object
) -> EngineCoreRequest:
    """A request whose end of sequence is `EOS`; `fields` are further fields of EngineCoreRequest."""
    fields = {"arrival_time": 0.0, "eos_token_ids": frozenset({EOS}), **fields}
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling_params=params or make_params(),
        **fields,
    )


def make_kv_config(
    num_blocks: int,
    block_size: int = 4,
    num_groups: int = 1,
    kinds: Sequence[str] = (),
    reach: int = 6,
    max_chunk: int = 10_000,
) -> KVCacheConfig:
    """A cache of `num_blocks` blocks, the null block included, for `num_groups` groups of full attention, or
    one of each of `kinds`, of one layer each. Windows and chunks are of `reach` tokens.
    """
    groups = [
        KVCacheGroup(_make_spec(kind, block_size, reach), (layer,))
        for layer, kind in enumerate(kinds or ["full"] * num_groups)
    ]
    return KVCacheConfig(num_blocks, tuple(groups), max_chunk)


def _make_spec(kind: str, block_size: int, reach: int) -> KVCacheSpec:
    heads = (block_size, 1, 1, 8)
    specs = {
        "full": FullAttentionSpec(*heads),
        "window": SlidingWindowSpec(*heads, window=reach),
        "chunk": ChunkedLocalAttentionSpec(*heads, chunk_size=reach),
        "cross": CrossAttentionSpec(*heads, max_encoder_tokens=MAX_ENCODER_TOKENS),
        "recurrent": RecurrentStateSpec(block_size, state_bytes=8 * block_size),
    }
    return specs[kind]


def make_scheduler(
    kv_config: KVCacheConfig,
    max_model_len: int = 10_000,
    constraints: Sequence[Constraint] = (),
    enable_caching: bool = True,
    retention_interval: int | None = None,
    **settings: object,
) -> Scheduler:
    """A scheduler over `kv_config`; `settings` are fields of SchedulerConfig."""
    kv_cache = KVCacheManager(kv_config, enable_caching, retention_interval=retention_interval)
    return Scheduler(SchedulerConfig(**settings), kv_cache, max_model_len, constraints)


def make_core(
    num_blocks: int,
    block_size: int = 4,
    num_groups: int = 1,
    kinds: Sequence[str] = (),
    reach: int = 6,
    **settings: object,
) -> EngineCore:
    """An engine core on a FakeExecutor; `settings` are those of `make_core_of`."""
    max_chunk = settings.get("max_num_batched_tokens", SchedulerConfig().max_num_batched_tokens)
    kv_config = make_kv_config(num_blocks, block_size, num_groups, kinds, reach, max_chunk)
    return make_core_of(kv_config, **settings)


def make_core_of(
    kv_config: KVCacheConfig,
    max_model_len: int = 10_000,
    constraints: Sequence[Constraint] = (),
    enable_caching: bool = True,
    clock: Callable[[], float] = lambda: 0.0,
    **settings: object,
) -> EngineCore:
    """What `build_core` makes of `kv_config` on a FakeExecutor; `settings` are settings of an engine."""
    config = EngineConfig.from_settings(enable_prefix_caching=enable_caching, **settings)
    executor = InprocExecutor(FakeExecutor(kv_config, config.scheduler))
    return build_core(
        config, kv_config, executor, clock, max_model_len=max_model_len, constraints=constraints
    )


# ----------------------------------------------------------------------------------------------- pseudo model


def extend_prefix(prefix: int, token_id: int) -> int:
    """The identity of a prefix and one more token."""
    return hash((prefix, token_id))


def sample(prefix: int) -> int:
    """The token that follows a prefix."""
    return prefix % VOCAB_SIZE


def prefixes_of(token_ids: Iterable[int]) -> list[int]:
    """The identity of every beginning of `token_ids`."""
    prefix, prefixes = EMPTY_PREFIX, []
    for token_id in token_ids:
        prefix = extend_prefix(prefix, token_id)
        prefixes.append(prefix)
    return prefixes


def generate_alone(request: EngineCoreRequest, max_model_len: int) -> tuple[list[int], FinishReason]:
    """What `request` gets when nobody else is there, worked out without any part of the engine."""
    return generate_after(request.prompt_token_ids, request, max_model_len)


def generate_after(
    context: Sequence[int], request: EngineCoreRequest, max_model_len: int
) -> tuple[list[int], FinishReason]:
    """The same after `context`, of which `request`'s prompt is the end: what a session's turn gets."""
    params = request.sampling_params
    prefix = prefixes_of(context)[-1]
    room = max_model_len - len(context)
    generated: list[int] = []
    for _ in range(room if params.max_tokens is None else min(params.max_tokens, room)):
        token_id = sample(prefix)
        generated.append(token_id)
        if token_id in params.stop_token_ids or (token_id in request.eos_token_ids and not params.ignore_eos):
            return generated, FinishReason.STOP
        prefix = extend_prefix(prefix, token_id)
    return generated, FinishReason.LENGTH


def run_to_end(core: EngineCore, max_steps: int = 1000) -> dict[str, list[EngineCoreOutput]]:
    """Step until nobody is left, checking every invariant after each step; the news of each request."""
    news: dict[str, list[EngineCoreOutput]] = {}
    for _ in range(max_steps):
        if not core.has_unfinished_requests():
            return news
        for output in core.step().outputs:
            news.setdefault(output.request_id, []).append(output)
        core.check()
    raise AssertionError(f"not done after {max_steps} steps: {list(core.scheduler.requests.values())}")


def tokens_of(outputs: Iterable[EngineCoreOutput]) -> list[int]:
    """All tokens that a request's news add up to."""
    return [token_id for output in outputs for token_id in output.new_token_ids]


# ---------------------------------------------------------------------------------------------- fake executor


class BrokenContract(BaseException):
    """The core asked what it must not ask of a worker. No Exception, which it would take for a bad step."""


@dataclass(slots=True)
class FakeRow:
    """What the worker knows of a request."""

    req_id: str
    token_ids: list[int]
    prefixes: list[int]  # of each beginning of token_ids
    num_computed_tokens: int
    tables: list[list[int]]  # per group; 0 where there is no block, or none that is in sight any longer
    num_skipped: list[int]  # per group, leading entries that are out of sight
    is_void: bool = False  # it failed or read what a failed one left: the core must not use its results
    drafts: list[int] = field(default_factory=list)  # the last of token_ids: guesses to be verified

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.prefixes.append(extend_prefix(self.prefixes[-1], token_id))


class FakeExecutor:
    """Runs the pseudo model over a simulated KV cache, and asserts all that a real worker takes for granted.

    Set `fails_in` to "forward" or "sample" to have the next step that runs tokens raise there. Put (request
    id, length) into `invalid` to make the logits after so many tokens no numbers. Both leave garbage behind,
    and rows that read it sample a token that is `WRONG`.
    Set `make_drafts` to have guesses of what follows a row's tokens come home with each step.
    """

    def __init__(self, kv_config: KVCacheConfig, config: SchedulerConfig) -> None:
        self.groups = [make_fake_group(group.spec) for group in kv_config.groups]
        self.config = config
        self.rows: dict[int, FakeRow] = {}
        self.row_of: dict[str, int] = {}
        self.num_holders = [0] * kv_config.num_blocks
        self.given: set[int] = set()  # blocks that nobody had before this step
        block_size = kv_config.groups[0].spec.block_size
        self.kv: Memory = [[GARBAGE] * block_size for _ in range(kv_config.num_blocks)]
        self.fails_in: str | None = None
        self.invalid: set[tuple[str, int]] = set()
        self.make_drafts: Callable[[FakeRow], list[int]] = lambda row: []
        self.outputs: list[SchedulerOutput] = []  # every step so far

    def execute_model(self, output: SchedulerOutput) -> None:
        self.outputs.append(output)
        try:
            self._run(output)
        except (AssertionError, LookupError, ValueError) as error:
            raise BrokenContract(repr(error)) from error

    def _run(self, output: SchedulerOutput) -> None:
        self._update(output)
        self._check_counts(output)
        self._prepare_blocks(output)
        if self.fails_in == "forward" and output.num_scheduled_tokens:
            self._fail(output)
        self._forward(output.num_scheduled_tokens)

    def _forward(self, counts: dict[str, int]) -> None:
        """Run the layers one after the other, each for the tokens of all rows."""
        rows = {self.row_of[req_id]: count for req_id, count in counts.items()}
        for number, group in enumerate(self.groups):
            shares = [
                Share(row, row.tables[number], row.num_computed_tokens, row.num_computed_tokens + count)
                for row, count in ((self.rows[index], count) for index, count in rows.items())
            ]
            for row, table, start, stop in shares:
                if row.is_void:
                    continue
                assert stop <= len(row.token_ids), f"{row.req_id} runs tokens it does not have"
                for index in group.written(start, stop, len(table)):
                    num_holders = self.num_holders[table[index]]
                    assert num_holders == 1 or (num_holders and group.may_share(index, stop)), (
                        f"{row.req_id} writes to a shared block, or to none"
                    )
            group.forward(self.kv, shares)
        for index, count in rows.items():
            self.rows[index].num_computed_tokens += count

    def sample_tokens(self) -> Done[ModelRunnerOutput]:
        scheduled = self.outputs[-1].num_scheduled_tokens
        if self.fails_in == "sample" and scheduled:
            self._fail(self.outputs[-1])
        sampled: dict[str, list[int]] = {}
        drafts: dict[str, list[int]] = {}
        for req_id in scheduled:
            row = self.rows[self.row_of[req_id]]
            length = row.num_computed_tokens
            if row.is_void:
                sampled[req_id] = [WRONG]
                continue
            if length < len(row.token_ids):
                continue
            if (req_id, length) in self.invalid:
                self._spoil(row, scheduled[req_id])
                row.is_void = True
                sampled[req_id] = [INVALID_TOKEN_ID]
            else:
                sampled[req_id] = self._verify(row)
                drafts[req_id] = self.make_drafts(row)
        return Done(ModelRunnerOutput(sampled_token_ids=sampled, logprobs={}, draft_token_ids=drafts))

    def _verify(self, row: FakeRow) -> list[int]:
        """The token after the row's known ones, and after each draft that is right."""
        drafts, row.drafts = row.drafts, []
        num_known = len(row.token_ids) - len(drafts)
        gained = [sample(row.prefixes[num_known - 1])]
        while len(gained) <= len(drafts) and gained[-1] == drafts[len(gained) - 1]:
            gained.append(sample(row.prefixes[num_known - 1 + len(gained)]))
        del row.token_ids[num_known:], row.prefixes[num_known:]
        for token_id in gained:
            row.append(token_id)
        row.num_computed_tokens -= 1 + len(drafts) - len(gained)
        return gained

    def _update(self, output: SchedulerOutput) -> None:
        self.given = set()
        for req_id in output.finished_req_ids | output.preempted_req_ids:
            if req_id in self.row_of:
                row = self.rows.pop(self.row_of.pop(req_id))
                self._drop(chain.from_iterable(row.tables))
        for row in self.rows.values():
            self._skip(row)
        for request in output.scheduled_new_reqs:
            self._admit(request)
        cached = output.scheduled_cached_reqs
        for req_id, block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if block_ids is not None:
                self._give(self.rows[self.row_of[req_id]], block_ids)
        for req_id, drafts in output.scheduled_spec_decode_tokens.items():
            row = self.rows[self.row_of[req_id]]
            assert 0 < len(drafts) < output.num_scheduled_tokens[req_id], "drafts follow a known token"
            row.drafts = list(drafts)
            for token_id in drafts:
                row.append(token_id)

    def _admit(self, request: NewRequestData) -> None:
        assert 0 <= request.row < self.config.max_num_seqs
        assert request.row not in self.rows, f"row {request.row} has two requests"
        assert request.req_id not in self.row_of, f"{request.req_id} has two rows"
        assert 0 <= request.num_computed_tokens < len(request.token_ids), "nothing is left to compute"
        assert 0 < request.num_prompt_tokens <= len(request.token_ids)
        tables: list[list[int]] = [[] for _ in request.block_ids]
        token_ids = list(request.token_ids)
        num_skipped = [0] * len(tables)
        row = FakeRow(
            request.req_id,
            token_ids,
            prefixes_of(token_ids),
            request.num_computed_tokens,
            tables,
            num_skipped,
        )
        self.rows[request.row] = row
        self.row_of[request.req_id] = request.row
        self._give(row, request.block_ids)

    def _give(self, row: FakeRow, block_ids: BlockIds) -> None:
        for table, new_ids in zip(row.tables, block_ids, strict=True):
            table += new_ids
            for block_id in filter(None, new_ids):
                self.num_holders[block_id] += 1
                if self.num_holders[block_id] == 1:
                    self.given.add(block_id)
        held = list(filter(None, chain.from_iterable(row.tables)))
        assert len(held) == len(set(held)), f"{row.req_id} holds a block twice"

    def _skip(self, row: FakeRow) -> None:
        """Let go of what no later token of the row sees: the core may give it to others now."""
        for number, (group, table) in enumerate(zip(self.groups, row.tables, strict=True)):
            start, stop = row.num_skipped[number], group.num_skipped(row.num_computed_tokens)
            self._drop(table[start:stop])
            table[start:stop] = [0] * (stop - start)
            row.num_skipped[number] = stop

    def _drop(self, block_ids: Iterable[int]) -> None:
        for block_id in filter(None, block_ids):
            self.num_holders[block_id] -= 1

    def _prepare_blocks(self, output: SchedulerOutput) -> None:
        """Zero blocks, then copy blocks: only those that nobody had before."""
        zeroed = output.new_block_ids_to_zero or []
        for block_id in [*zeroed, *(target for _, target in output.kv_cache_block_copies)]:
            assert block_id in self.given, "a block is overwritten that is not new"
        for block_id in zeroed:
            self.kv[block_id] = [ZERO] * len(self.kv[block_id])
        sources = {source for source, _ in output.kv_cache_block_copies}
        assert not sources & {target for _, target in output.kv_cache_block_copies}, (
            "copies depend on their order"
        )
        for source, target in output.kv_cache_block_copies:
            assert self.kv[source][0] is not GARBAGE, "what is copied was never written"
            self.kv[target] = list(self.kv[source])

    def _check_counts(self, output: SchedulerOutput) -> None:
        counts = output.num_scheduled_tokens
        new_ids = [request.req_id for request in output.scheduled_new_reqs]
        assert sorted(counts) == sorted(new_ids + output.scheduled_cached_reqs.req_ids), (
            "the plan's parts disagree"
        )
        assert sum(counts.values()) == output.total_num_scheduled_tokens <= self.config.max_num_batched_tokens
        assert all(count > 0 for count in counts.values())
        tables = [row.tables for row in self.rows.values()]
        for group, count in enumerate(output.num_common_prefix_blocks):
            assert len({tuple(table[group][:count]) for table in tables}) <= 1, (
                "the common prefix is not common"
            )

    def _spoil(self, row: FakeRow, count: int) -> None:
        """Leave garbage where the last `count` of the row's computed tokens lie."""
        stop = row.num_computed_tokens
        for group, table in zip(self.groups, row.tables, strict=True):
            group.spoil(self.kv, table, stop - count, stop)

    def _fail(self, output: SchedulerOutput) -> None:
        if self.fails_in == "forward":
            for req_id, count in output.num_scheduled_tokens.items():
                self.rows[self.row_of[req_id]].num_computed_tokens += count
        for req_id, count in output.num_scheduled_tokens.items():
            row = self.rows[self.row_of[req_id]]
            if not row.is_void:
                self._spoil(row, count)
            row.is_void = True
        self.fails_in = None
        raise RuntimeError("this step was told to fail")


# ----------------------------------------------------------------------------------------- custom constraints


@dataclass
class FakeConstraint(Constraint):
    """Vetoes the requests that it is told to, and keeps account of what it was told."""

    blocks_queue: bool = False
    vetoed: set[str] = field(default_factory=set)
    commits: list[tuple[str, int, int]] = field(default_factory=list)  # (request id, start, count)
    reserved: set[str] = field(default_factory=set)  # committed and not released
    num_vetoes: int = 0
    preparations: dict[str, Future[None]] = field(default_factory=dict)  # by request id

    def prepare(self, request: Request) -> Future[None] | None:
        return self.preparations.get(request.request_id)

    def limit(self, request: Request, start: int, count: int, budget: object) -> int:
        if request.request_id in self.vetoed:
            self.num_vetoes += 1
            return 0
        return count

    def commit(self, request: Request, start: int, count: int, budget: object) -> None:
        self.commits.append((request.request_id, start, count))
        self.reserved.add(request.request_id)

    def release(self, request: Request) -> None:
        self.reserved.remove(request.request_id)
