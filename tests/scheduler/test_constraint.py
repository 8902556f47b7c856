"""Rules that shrink or veto a share: what they may rely on, and what becomes of those they hold back."""

from __future__ import annotations

import pytest

from octavo.scheduler.request import RequestStatus
from octavo.scheduler.scheduler import Scheduler
from tests.fakes import FakeConstraint, FakeExecutor, make_params, make_request, run_to_end
from tests.scheduler.stepping import a_core, add, step


def waiting(scheduler: Scheduler) -> list[str]:
    return [request.request_id for request in [*scheduler.skipped_waiting, *scheduler.waiting]]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_request_that_is_passed_over_keeps_its_place(policy: str) -> None:
    constraint = FakeConstraint(vetoed={"b", "d"})
    core = a_core(constraint, scheduling_policy=policy, max_num_seqs=3)
    add(core, *"abcdefg")
    assert list(step(core).num_scheduled_tokens) == ["a", "c", "e"]
    assert waiting(core.scheduler) == ["b", "d", "f", "g"]
    core.abort_requests(["a", "c"])
    constraint.vetoed = {"b"}
    assert list(step(core).num_scheduled_tokens) == ["e", "d", "f"]
    assert waiting(core.scheduler) == ["b", "g"]
    constraint.vetoed = set()
    core.abort_requests(["d", "e", "f"])
    assert list(step(core).num_scheduled_tokens) == ["b", "g"]


def test_requests_that_are_passed_over_repeatedly_keep_their_order() -> None:
    constraint = FakeConstraint(vetoed=set("abcd"))
    core = a_core(constraint, max_num_seqs=2)
    add(core, *"abcdef")
    for _ in range(5):
        step(core)
        assert waiting(core.scheduler)[:4] == list("abcd")
    add(core, "g")
    constraint.vetoed = set("ac")
    core.abort_requests("ef")
    assert list(step(core).num_scheduled_tokens) == ["b", "d"]
    assert waiting(core.scheduler) == ["a", "c", "g"]


def test_after_a_veto_that_blocks_the_queue_no_later_request_begins() -> None:
    constraint = FakeConstraint(blocks_queue=True, vetoed={"b"})
    core = a_core(constraint)
    add(core, *"abc")
    assert list(step(core).num_scheduled_tokens) == ["a"]
    assert waiting(core.scheduler) == ["b", "c"]
    constraint.vetoed = set()
    assert list(step(core).num_scheduled_tokens) == ["a", "b", "c"]


def test_a_veto_of_a_running_request_holds_back_no_other_request() -> None:
    constraint = FakeConstraint(blocks_queue=True)
    core = a_core(constraint)
    add(core, *"ab")
    step(core)
    add(core, "c")
    constraint.vetoed = {"a"}
    assert step(core).num_scheduled_tokens == {"b": 1, "c": 5}


def test_a_running_request_may_be_held_back_for_a_step_without_losing_anything() -> None:
    constraint = FakeConstraint()
    core = a_core(constraint)
    add(core, *"ab")
    step(core)
    constraint.vetoed = {"a"}
    assert step(core).num_scheduled_tokens == {"b": 1}
    constraint.vetoed = set()
    output = step(core)
    assert output.num_scheduled_tokens == {"a": 1, "b": 1}
    assert output.scheduled_new_reqs == []


def test_a_veto_leaves_no_trace() -> None:
    constraint = FakeConstraint(vetoed={"a"})
    core = a_core(constraint)
    add(core, "a")
    for _ in range(3):
        step(core)
    assert constraint.num_vetoes == 3
    assert constraint.commits == []
    assert core.scheduler.kv_cache.usage == 0


def test_commit_gets_the_share_that_all_constraints_allow() -> None:
    constraint = FakeConstraint()
    core = a_core(constraint, max_num_batched_tokens=8)
    add(core, "a", length=20)
    for _ in range(4):
        step(core)
    assert constraint.commits == [("a", 0, 8), ("a", 8, 8), ("a", 16, 4), ("a", 20, 1)]


def test_nothing_is_committed_for_a_request_whose_blocks_are_not_there() -> None:
    constraint = FakeConstraint()
    core = a_core(constraint, num_blocks=5)
    add(core, "a", length=8)
    add(core, "b", length=12)
    step(core)
    assert constraint.reserved == {"a"}
    assert [commit[0] for commit in constraint.commits] == ["a"]


def test_a_reservation_is_released_at_every_kind_of_end() -> None:
    constraint = FakeConstraint()
    core = a_core(constraint)
    add(core, *"abc")
    core.add_request(make_request("d", [7], make_params(1)))
    step(core)  # d is done
    assert constraint.reserved == set("abc")
    core.abort_requests(["a"])
    assert constraint.reserved == set("bc")
    executor = core.executor.runner
    assert isinstance(executor, FakeExecutor)
    executor.fails_in = "forward"
    step(core)
    assert constraint.reserved == set()


def test_a_request_that_never_ran_has_nothing_to_give_back() -> None:
    constraint = FakeConstraint()  # its release fails for whom it does not know
    core = a_core(constraint, max_num_seqs=1)
    add(core, *"ab")
    step(core)
    core.abort_requests(["b"])
    assert constraint.reserved == {"a"}


def test_a_preempted_request_gives_back_and_reserves_anew() -> None:
    constraint = FakeConstraint()
    core = a_core(constraint, num_blocks=6)
    for number, name in enumerate("ab"):
        request = make_request(
            name, [number + 1] * 7, make_params(9, ignore_eos=True), arrival_time=float(number)
        )
        core.add_request(request)
    while core.scheduler.requests["b"].status is not RequestStatus.PREEMPTED:
        step(core)
    assert constraint.reserved == {"a"}
    run_to_end(core)
    assert constraint.reserved == set()
    assert sum(1 for name, start, _ in constraint.commits if name == "b" and start == 0) == 1
    assert [start for name, start, _ in constraint.commits if name == "b"].count(4) == 1, (
        "resumed on its cached block"
    )


def test_a_preempted_request_comes_back_before_a_later_one_that_was_passed_over() -> None:
    """Under first come, first served the one that was skipped must not slip past."""
    constraint = FakeConstraint(vetoed={"c"})
    core = a_core(constraint, num_blocks=7)
    add(core, "a", "b", "c")
    while core.scheduler.requests["b"].status is not RequestStatus.PREEMPTED:
        step(core)
    constraint.vetoed = set()
    core.abort_requests(["a"])
    assert step(core).scheduled_new_reqs[0].req_id == "b"
