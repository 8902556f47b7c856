"""Addresses of the event stream: what ZeroMQ takes without a word and should not."""

from __future__ import annotations

from octavo.errors import ConfigError

MAX_PORT = 65535


def check_port(setting: str, endpoint: str) -> None:
    """Raise ConfigError, naming the setting, for a TCP port that ZeroMQ would take modulo 65536."""
    if not endpoint.startswith("tcp://"):
        return
    port = endpoint.rpartition(":")[2]
    try:
        exists = 0 <= float(port) <= MAX_PORT
    except ValueError:
        return  # the wildcard, or a word that ZeroMQ refuses
    if not exists:
        raise ConfigError(f"{setting} is {endpoint!r:.80}; a TCP port is a number from 0 to {MAX_PORT}")
