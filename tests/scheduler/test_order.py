"""Who comes first, who is a candidate, and who gets in as soon as it fits."""

from __future__ import annotations

from octavo.scheduler.scheduler import Scheduler
from octavo.types.steps import ModelRunnerOutput
from tests.fakes import make_kv_config, make_params, make_request, make_scheduler

FOREVER = make_params(None, ignore_eos=True)


def run_step(scheduler: Scheduler) -> dict[str, int]:
    """One step in which everybody whose tokens are computed gets another; the tokens each request ran."""
    planned = scheduler.schedule()
    output = planned.output
    complete = [i for i in output.num_scheduled_tokens if _is_complete(scheduler, i)]
    sampled = {req_id: [1 + scheduler.requests[req_id].num_tokens] for req_id in complete}
    scheduler.update_from_output(planned, ModelRunnerOutput(sampled_token_ids=sampled, logprobs={}))
    scheduler.check()
    return output.num_scheduled_tokens


def _is_complete(scheduler: Scheduler, req_id: str) -> bool:
    request = scheduler.requests[req_id]
    return request.num_computed_tokens == request.num_tokens


def test_fcfs_goes_by_the_order_of_arrival_not_by_the_clock() -> None:
    scheduler = make_scheduler(make_kv_config(5, block_size=4))
    # The clock stepped back between the two; and as texts, "0.1.10" is before "0.1.2".
    for request_id, arrival_time in (("0.1.2", 5.0), ("0.1.10", 1.0)):
        prompt = [int(request_id[-1])] * 7
        scheduler.add_request(make_request(request_id, prompt, FOREVER, arrival_time=arrival_time))
    while len(scheduler.running) != 1:
        run_step(scheduler)
    while not scheduler.waiting:
        run_step(scheduler)
    assert [request.request_id for request in scheduler.running] == ["0.1.2"]
    assert [request.request_id for request in scheduler.waiting] == ["0.1.10"]


def test_a_request_is_admitted_as_soon_as_published_blocks_make_it_fit() -> None:
    scheduler = make_scheduler(make_kv_config(13, block_size=4))
    prompt = list(range(1, 33))
    scheduler.add_request(make_request("first", prompt, FOREVER))
    scheduler.add_request(make_request("second", prompt, FOREVER))
    assert run_step(scheduler) == {"first": 32}  # nothing is published yet, and two prompts do not fit
    # Seven blocks are shared now, and of the last one a copy is made.
    assert run_step(scheduler) == {"first": 1, "second": 1}


def test_a_lone_prompt_is_not_chunked_for_requests_without_a_row() -> None:
    scheduler = make_scheduler(make_kv_config(100), max_num_seqs=1, max_num_batched_tokens=32)
    for request_id in ("first", "second"):
        scheduler.add_request(make_request(request_id, list(range(1, 31)), FOREVER))
    assert run_step(scheduler) == {"first": 30}
