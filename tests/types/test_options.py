"""What a request may ask about how it is scheduled: what is allowed, and what is said where it is not."""

from __future__ import annotations

import pytest

from octavo.errors import RequestError
from octavo.types.options import RequestOptions
from octavo.types.requests import DEFAULT_TENANT


def test_a_request_that_says_nothing_is_like_any_other() -> None:
    options = RequestOptions()
    assert (options.priority, options.deadline_s, options.cache_salt) == (0, None, None)
    assert options.tenant_name == DEFAULT_TENANT
    options.check_against("fcfs")


def test_given_options_are_kept() -> None:
    options = RequestOptions(priority=-3, tenant="alice", deadline_s=2, cache_salt="pepper")
    assert options.tenant_name == "alice"
    assert (options.priority, options.deadline_s, options.cache_salt) == (-3, 2.0, "pepper")


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("priority", "high", "a whole number"),
        ("priority", 1.5, "a whole number"),
        ("priority", True, "a whole number"),
        ("priority", -(2**31) - 1, "from -2147483648"),
        ("priority", 2**63, "a whole number"),
        ("tenant", "", "non-empty text"),
        ("tenant", 7, "non-empty text"),
        ("tenant", "\ud800", "surrogates"),
        ("cache_salt", "", "non-empty text"),
        ("cache_salt", b"pepper", "non-empty text"),
        ("deadline_s", 0, "more than 0"),
        ("deadline_s", -1.0, "more than 0"),
        ("deadline_s", float("nan"), "a finite number"),
        ("deadline_s", float("inf"), "a finite number"),
        ("deadline_s", "soon", "a finite number"),
        ("deadline_s", True, "a finite number"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name_and_value(field: str, value: object, allowed: str) -> None:
    with pytest.raises(RequestError, match=allowed) as raised:
        RequestOptions(**{field: value})
    assert raised.value.param == field
    assert str(raised.value).startswith(field)


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
@pytest.mark.parametrize("priority", [5, -1])
def test_a_priority_is_refused_where_there_is_no_such_policy(policy: str, priority: int) -> None:
    with pytest.raises(RequestError, match=rf"priority is {priority}; under the {policy} policy") as raised:
        RequestOptions(priority=priority).check_against(policy)
    assert raised.value.param == "priority"
    RequestOptions(priority=priority).check_against("priority")
    RequestOptions(tenant="alice").check_against(policy)


def test_options_do_not_change() -> None:
    with pytest.raises(AttributeError):
        RequestOptions().priority = 3  # type: ignore[misc]
