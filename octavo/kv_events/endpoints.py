"""Checks the addresses of the event stream, since ZeroMQ accepts wrong ports silently."""

from __future__ import annotations

from octavo.errors import ConfigError

MAX_PORT = 65535


def check_port(setting: str, endpoint: str) -> None:
    """Raise ConfigError, naming the setting, for a TCP port that is neither a valid number nor "*". ZeroMQ
    would take the number at the beginning of the text, modulo 65536.
    """
    port = endpoint.rpartition(":")[2]
    if not endpoint.startswith("tcp://") or port == "*":
        return
    is_number = port.isascii() and port.isdecimal() and len(port) <= len(str(MAX_PORT))
    if not is_number or int(port) > MAX_PORT:
        raise ConfigError(
            f"{setting} is {endpoint!r:.80}; a TCP port is a number from 0 to {MAX_PORT}, or * for any"
        )
