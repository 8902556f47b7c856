"""How tests are chosen, and the models that they run.

`make test` runs what every change should run. `make test-all` passes `--all`, which adds the tests marked
`slow` and makes the searches among random worlds large, from a seed that differs from run to run. The first
lines of the output name that seed; `--seed N` searches from the same one again.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import DownloadError, ModelNotFoundError
from octavo.hub import resolve_model
from tests.seeds import Search
from tests.tiny_model import write_tiny_model


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests too, and the large searches")
    parser.addoption(
        "--seed", type=int, help="first seed of the large searches that --all runs (default: a fresh one)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        config.option.seed = config.workerinput["seed"]
    elif config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(2**32) if config.option.all else 0


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let every worker of pytest-xdist search from the same seed."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"searches begin at seed {config.option.seed}: run them again with --seed {config.option.seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.all:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in set(slow)]


@pytest.fixture(scope="session")
def search(pytestconfig: pytest.Config) -> Search:
    """The seeds that a search among random worlds tries."""
    return Search(pytestconfig.option.seed, pytestconfig.option.all)


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Python's own handling of Ctrl-C, also where the tests were started with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny random model."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, Q4_1."""
    return _cached("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The GGUF file of Gemma 3 270M, Q4_K_M."""
    return _cached("gemma3-270m")


def _cached(alias: str) -> Path:
    try:
        return resolve_model(alias, offline=True)
    except (ModelNotFoundError, DownloadError):
        pytest.skip(f"{alias} is not here: run `octavo pull {alias}`, as `make test` does")
