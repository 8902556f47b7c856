"""`RequestOptions`: what a request may ask about how it is scheduled, and with whom it shares."""

from __future__ import annotations

from typing import Annotated

from octavo.errors import RequestError
from octavo.types.requests import DEFAULT_TENANT
from octavo.types.rules import CheckedStruct, checked, flag, number, text, whole


class RequestOptions(CheckedStruct, frozen=True, kw_only=True):
    """Everything about a request but its prompt and its sampling. Raises RequestError, naming the field."""

    priority: Annotated[
        int, checked(whole(-(2**31)), "lower is more urgent; only under the priority policy")
    ] = 0
    tenant: Annotated[
        str | None, checked(text(), "on whose account it runs; counts under the fair policy")
    ] = None
    deadline_s: Annotated[
        float | None, checked(number(0, above=True), "seconds until which it must be finished")
    ] = None
    cache_salt: Annotated[
        str | None, checked(text(), "only requests with the same salt share cached prefixes")
    ] = None
    resumable: Annotated[bool, checked(flag, "a session, which can go on with another turn")] = False

    def check_against(self, scheduling_policy: str) -> None:
        """Raise RequestError for what an engine with this policy does not have."""
        if self.priority and scheduling_policy != "priority":
            raise RequestError(
                f"priority is {self.priority}; under the {scheduling_policy} policy it must be 0 "
                f"(start the engine with scheduling_policy='priority')",
                "priority",
            )

    @property
    def tenant_name(self) -> str:
        """The tenant, where one was named or not."""
        return self.tenant or DEFAULT_TENANT
