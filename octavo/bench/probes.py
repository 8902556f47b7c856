"""What this machine can do at most with the native kernels' instructions: what speeds are compared with.

The probes are in csrc/kernels/probes.cpp. Each takes a `Device` of the native backend and uses all its
threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.backends.native.library import load_library
from octavo.bench.work import Work

if TYPE_CHECKING:
    from octavo.backends.native._native import Device

PROBE_BYTES = 256 * 2**20  # so that second-level caches hold next to nothing of it
ARITHMETICS = ("f32", "bf16", "int8", "bf16_tiles", "int8_tiles")

# A virtual machine may be moved to processors that lie further apart, or back. Barriers tell, which then take
# five times as long (70 and 390 ns were measured). What was measured across such a change means nothing.
SAME_STATE_RATIO = 1.5
# No machine needs so long; threads do that wait for a processor.
BUSY_BARRIER_NS = 5000.0


@dataclass(frozen=True, slots=True)
class MachineProbe:
    """The most that all threads of a device together can do."""

    read_bytes_per_s: float  # from memory
    ops_per_s: Mapping[str, float]  # by arithmetic; those of ARITHMETICS that the instruction set has

    def peak(self, arithmetic: str) -> float:
        """Operations per second, with matrix tiles where there are some."""
        return max(self.ops_per_s[arithmetic], self.ops_per_s.get(f"{arithmetic}_tiles", 0.0))

    def memory_s(self, work: Work) -> float:
        """Seconds that reading takes at least."""
        return work.num_bytes / self.read_bytes_per_s

    def arithmetic_s(self, work: Work) -> float:
        """Seconds that computing takes at least."""
        return sum(count / self.peak(arithmetic) for arithmetic, count in work.num_ops.items())


def probe_machine(device: Device) -> MachineProbe:
    """Measure what `device` can do. Takes about half a second and 256 MiB of memory meanwhile."""
    library = load_library()
    measured = {name: library.measure_arithmetic(device, name) for name in ARITHMETICS}
    return MachineProbe(
        read_bytes_per_s=library.measure_read_bandwidth(device, PROBE_BYTES),
        ops_per_s={name: rate for name, rate in measured.items() if rate},
    )


def is_same_state(barrier_before_ns: float, barrier_after_ns: float) -> bool:
    """Whether two probes of `Device.barrier_ns` speak of one and the same state of the machine."""
    low, high = sorted((barrier_before_ns, barrier_after_ns))
    return high <= low * SAME_STATE_RATIO
