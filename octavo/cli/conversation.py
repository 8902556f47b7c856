"""What was said in a chat. Pure: knows neither models nor terminals."""

from __future__ import annotations

from typing import NamedTuple

Message = dict[str, str]  # role and content, as chat templates take them


class Exchange(NamedTuple):
    """What the user said, and what came back."""

    question: str
    answer: str


class Conversation:
    """The exchanges so far, oldest first, and the system message that stands before them, if any."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.exchanges: list[Exchange] = []

    def messages(self) -> list[Message]:
        """Everything said, as messages."""
        said = [{"role": "system", "content": self.system}] if self.system else []
        for question, answer in self.exchanges:
            said += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return said

    def messages_with(self, question: str) -> list[Message]:
        """Everything said, and then `question`, which is yet to be answered."""
        return [*self.messages(), {"role": "user", "content": question}]
