"""The messages of a chat. This module knows neither models nor terminals."""

from __future__ import annotations

from typing import NamedTuple

Message = dict[str, str]  # role and content, as chat templates take them


class Exchange(NamedTuple):
    """A message of the user, and the model's answer."""

    question: str
    answer: str


class Conversation:
    """The exchanges so far, oldest first, and the system message that stands before them, if any."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.exchanges: list[Exchange] = []

    def messages(self) -> list[Message]:
        """All messages so far."""
        said = [{"role": "system", "content": self.system}] if self.system else []
        for question, answer in self.exchanges:
            said += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return said

    def messages_with(self, question: str) -> list[Message]:
        """All messages so far, and then `question` as a user's message."""
        return [*self.messages(), {"role": "user", "content": question}]
