"""What a start does not do: read a header twice, import what the first token can do without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NOT_NEEDED = {"huggingface_hub", "tqdm", "urllib.request"}


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
