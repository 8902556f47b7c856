"""Measures the highest speeds that this machine reaches with the native kernels' instructions.

Benchmarks compare their figures with these speeds. The probes are in csrc/kernels/probes.cpp. Each takes a
`Device` of the native backend and uses all its threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.backends.native.library import load_library
from octavo.bench.work import Work

if TYPE_CHECKING:
    from octavo.backends.native._native import Device

PROBE_BYTES = 256 * 2**20  # so many that second-level caches hold only a small part
ARITHMETICS = ("f32", "bf16", "int8", "bf16_tiles", "int8_tiles")

# A virtual machine may be moved to processors that are further apart, or back. Further apart, a barrier takes
# about five times as long (390 ns instead of 70 ns). Figures from both states cannot be compared.
SAME_STATE_RATIO = 1.5
# A barrier takes this long only if threads wait for a processor.
BUSY_BARRIER_NS = 5000.0


@dataclass(frozen=True, slots=True)
class MachineProbe:
    """The highest speeds of all threads of a device together."""

    read_bytes_per_s: float  # from memory
    ops_per_s: Mapping[str, float]  # by arithmetic, for those of ARITHMETICS that the instruction set has

    def peak(self, arithmetic: str) -> float:
        """Operations per second, with matrix tiles if the instruction set has them and they are faster."""
        return max(self.ops_per_s[arithmetic], self.ops_per_s.get(f"{arithmetic}_tiles", 0.0))

    def memory_s(self, work: Work) -> float:
        """The least time to read the bytes of `work`, in seconds."""
        return work.num_bytes / self.read_bytes_per_s

    def arithmetic_s(self, work: Work) -> float:
        """The least time to compute the operations of `work`, in seconds."""
        return sum(count / self.peak(arithmetic) for arithmetic, count in work.num_ops.items())


def probe_machine(device: Device) -> MachineProbe:
    """Measure the highest speeds of `device`. This takes about half a second and 256 MiB of memory."""
    library = load_library()
    measured = {name: library.measure_arithmetic(device, name) for name in ARITHMETICS}
    return MachineProbe(
        read_bytes_per_s=library.measure_read_bandwidth(device, PROBE_BYTES),
        ops_per_s={name: rate for name, rate in measured.items() if rate},
    )


def is_same_state(barrier_before_ns: float, barrier_after_ns: float) -> bool:
    """Whether two times of `Device.barrier_ns` were measured in the same state of the machine."""
    low, high = sorted((barrier_before_ns, barrier_after_ns))
    return high <= low * SAME_STATE_RATIO
