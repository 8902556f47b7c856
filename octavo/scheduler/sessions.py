"""`Sessions`: texts that a user and the model write in turns, and the turns that have not begun.

Each turn is a request. A session keeps the tokens before the turn under way. When that turn ends, the session
keeps the turn's tokens too. Between turns a session has no row and no block. Its blocks stay in the prefix
cache until they are evicted, and the next turn computes again what was evicted.

This module knows nothing of queues, rows and blocks: `RequestTable` runs the turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from octavo.scheduler.request import Context, Request
from octavo.types.outputs import Rejection
from octavo.types.requests import EngineCoreRequest


class Session:
    """One session. Mutable; only `RequestTable` changes it, through `Sessions` where turns come or go."""

    __slots__ = ("context", "has_rejected_last", "session_id", "streaming_queue", "turn")

    def __init__(self, session_id: str, first_turn: EngineCoreRequest) -> None:
        self.session_id = session_id
        # The first turn's salt and adapter hold for all turns, since they are part of every block's hash.
        self.context = Context(cache_salt=first_turn.cache_salt, adapter=first_turn.adapter)
        self.turn: Request | None = None  # the turn under way
        self.streaming_queue: deque[EngineCoreRequest] = deque()  # turns to come
        self.has_rejected_last = False  # whether the last turn that was added was rejected

    @property
    def turn_ids(self) -> list[str]:
        """The request ids of the turn under way and of the turns to come, in this order."""
        under_way = [] if self.turn is None else [self.turn.request_id]
        return under_way + [turn.request_id for turn in self.streaming_queue]

    def begin_turn(self, max_model_len: int) -> Request:
        """Begin the next turn: make it a request whose prompt follows the session's tokens. Mutates."""
        self.turn = Request(self.streaming_queue.popleft(), max_model_len, self.context)
        return self.turn

    def end_turn(self, block_size: int) -> None:
        """Keep the prompt and the answer of the turn under way, which has ended.

        The answer's last token was sampled and never computed, so it is left out.
        """
        turn, self.turn = self.turn, None
        assert turn is not None, "a turn that ends has begun"
        token_ids = turn.token_ids[:-1] if turn.num_output_tokens else turn.token_ids
        block_hashes = turn.block_hashes[: len(token_ids) // block_size]
        self.context = Context(token_ids, block_hashes, turn.media, turn.cache_salt, turn.adapter)


class Sessions:
    """Every session that has not ended, by its id and by its turns."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._by_turn: dict[str, Session] = {}  # by the request ids of turns under way and to come

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str | None) -> Session | None:
        """The session with this id, if there is one that has not ended."""
        return None if session_id is None else self._sessions.get(session_id)

    def find(self, request_id: str) -> Session | None:
        """The session that has a turn with this request id, under way or to come; None if there is none."""
        return self._by_turn.get(request_id)

    def why_rejected(self, turn: EngineCoreRequest) -> Rejection | None:
        """Why `turn` cannot be added to its session; None if it can, or if it has no session."""
        if turn.session_id is None:
            return None
        session = self._sessions.get(turn.session_id)
        if session is None:
            ended = Rejection("the session has ended; begin another", "session")
            return ended if turn.continues_session else None
        if not turn.continues_session:
            return Rejection(f"session id {turn.session_id!r} is in use", "session_id")
        if turn.follows_unfinished and session.has_rejected_last:
            return Rejection("the turn before this one was rejected; append this one again", "session")
        return None

    def add_turn(self, turn: EngineCoreRequest) -> Session:
        """Queue `turn`, which `why_rejected` accepts, and return its session. A first turn begins it."""
        assert turn.session_id is not None, "a turn has a session"
        session = self._sessions.get(turn.session_id)
        if session is None:
            session = self._sessions[turn.session_id] = Session(turn.session_id, turn)
        session.streaming_queue.append(turn)
        session.has_rejected_last = False
        self._by_turn[turn.request_id] = session
        return session

    def end_turn(self, session: Session, block_size: int) -> None:
        """End the turn under way. `session` goes on and keeps the turn's tokens."""
        assert session.turn is not None, "a turn that ends has begun"
        del self._by_turn[session.turn.request_id]
        session.end_turn(block_size)

    def drop_turns(self, request_ids: Collection[str]) -> None:
        """Forget turns that have not begun. Their sessions go on without them. Other ids are ignored."""
        for session in {self._by_turn[each] for each in request_ids if each in self._by_turn}:
            dropped = [turn for turn in session.streaming_queue if turn.request_id in request_ids]
            for turn in dropped:
                session.streaming_queue.remove(turn)
                del self._by_turn[turn.request_id]

    def end(self, session: Session) -> list[str]:
        """Forget `session` and its turns. Returns the ids of the turns (`turn_ids`)."""
        del self._sessions[session.session_id]
        turn_ids = session.turn_ids
        for request_id in turn_ids:
            del self._by_turn[request_id]
        return turn_ids

    def end_all(self) -> None:
        """Forget all sessions and their turns."""
        self._sessions.clear()
        self._by_turn.clear()

    def check(self) -> None:
        """Verify every invariant between sessions and their turns. Raises AssertionError."""
        turns = {request_id: session for session in self for request_id in session.turn_ids}
        assert turns == self._by_turn, "a turn is lost"
        assert all(session.turn is not None for session in self if session.streaming_queue), "a turn is due"
