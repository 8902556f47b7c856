"""`RequestOptions`: how a request is scheduled, and which requests share cached prefixes with it."""

from __future__ import annotations

from typing import Annotated

from octavo.errors import RequestError
from octavo.types.requests import DEFAULT_TENANT
from octavo.types.rules import CheckedStruct, checked, number, text, whole


class RequestOptions(CheckedStruct, frozen=True, kw_only=True):
    """Options for scheduling and prefix caching. Creating them raises RequestError, naming the field."""

    priority: Annotated[
        int, checked(whole(-(2**31)), "lower is more urgent; only under the priority policy")
    ] = 0
    tenant: Annotated[str | None, checked(text(), "the account it runs for; only under the fair policy")] = (
        None
    )
    deadline_s: Annotated[
        float | None, checked(number(0, above=True), "seconds until it must be complete")
    ] = None
    cache_salt: Annotated[
        str | None, checked(text(), "only requests with the same salt share cached prefixes")
    ] = None

    def check_against(self, scheduling_policy: str) -> None:
        """Raise RequestError for a `priority` under any policy but the priority policy."""
        if self.priority and scheduling_policy != "priority":
            raise RequestError(
                f"priority is {self.priority}; under the {scheduling_policy} policy it must be 0 "
                f"(start the engine with scheduling_policy='priority')",
                "priority",
            )

    @property
    def tenant_name(self) -> str:
        """The tenant, or the default tenant if none is named."""
        return self.tenant or DEFAULT_TENANT
