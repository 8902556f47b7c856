"""Addresses of the event stream: what ZeroMQ takes without a word and should not."""

from __future__ import annotations

from octavo.errors import ConfigError

MAX_PORT = 65535


def check_port(setting: str, endpoint: str) -> None:
    """Raise ConfigError, naming the setting, for a TCP port that is neither a number that there is nor the
    wildcard. ZeroMQ would read the number that it begins with, modulo 65536.
    """
    port = endpoint.rpartition(":")[2]
    if not endpoint.startswith("tcp://") or port == "*":
        return
    is_number = port.isascii() and port.isdecimal() and len(port) <= len(str(MAX_PORT))
    if not is_number or int(port) > MAX_PORT:
        raise ConfigError(
            f"{setting} is {endpoint!r:.80}; a TCP port is a number from 0 to {MAX_PORT}, or * for any"
        )
