"""What a start does not do: read a header twice, import what the first token can do without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.frontend.llm_engine import LLMEngine
from octavo.weights import gguf

NOT_NEEDED = {"huggingface_hub", "tqdm", "urllib.request"}


def test_the_header_of_a_gguf_file_is_read_once(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    original = gguf.read_metadata

    def counting(reader: Any, num_keys: int) -> Any:
        read.append(reader.file.path)
        return original(reader, num_keys)

    monkeypatch.setattr(gguf, "read_metadata", counting)
    engine = LLMEngine.from_config(EngineConfig.from_settings(model=str(smollm2_path), max_model_len=64))
    assert engine.tokenizer.vocab_size == engine.info.vocab_size
    assert read == [smollm2_path]


def test_a_start_imports_nothing_that_the_first_token_does_not_need(tiny_model: Path) -> None:
    program = (
        "import sys\n"
        "from octavo.config import EngineConfig\n"
        "from octavo.frontend.llm_engine import LLMEngine\n"
        "from octavo.types.params import SamplingParams\n"
        "config = EngineConfig.from_settings(model=sys.argv[1], max_model_len=64)\n"
        "engine = LLMEngine.from_config(config)\n"
        "engine.add_request('a', 'hello', SamplingParams(max_tokens=1))\n"
        "engine.step()\n"
        "print(*sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(tiny_model)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not NOT_NEEDED.intersection(loaded)
