"""Backends and instruction sets, for tests that run on each; native ones are skipped where there are none."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from octavo.backends.backend import Backend
from octavo.backends.native.backend import NativeBackend
from octavo.backends.native.kv_cache import KVType
from octavo.backends.native.library import load_library, make_device, usable_instruction_sets
from octavo.backends.native.sampling import NativeSampler
from octavo.backends.reference.backend import ReferenceBackend
from octavo.sampling.sampler import Sampler
from octavo.weights.formats import format_named

# Every weight format that has kernels.
FORMATS = [format_named(name) for name in load_library().FORMATS] if usable_instruction_sets() else []

NATIVE = pytest.param(
    "native",
    marks=pytest.mark.skipif(not usable_instruction_sets(), reason="the native extension is not built"),
)
BACKENDS = ["reference", NATIVE]


def instruction_sets(among: Collection[str] | None = None) -> list[Any]:
    """Parameters of a test: each set that this machine can run, or one None. Only the first and the last of
    them, the least and the most capable, run without `--all`.
    """
    usable: list[Any] = usable_instruction_sets()
    if among is not None:
        usable = [name for name in usable if name in among]
    return [
        pytest.param(name, marks=[pytest.mark.slow] * (name in usable[1:-1])) for name in usable or [None]
    ]


def make_backend(name: str, kv_type: KVType = "bf16", num_threads: int = 2) -> Backend:
    """The backend `name`, without a model. The reference backend has neither threads nor types of cache."""
    if name == "reference":
        return ReferenceBackend(Sampler(None))
    device = make_device(num_threads)
    return NativeBackend(device, NativeSampler(device, None), kv_type)
