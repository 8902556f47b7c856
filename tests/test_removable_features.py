"""A feature is a folder and a line: without them the engine is whole, and says what it lacks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import octavo
from octavo.features import FEATURES

ROOT = Path(octavo.__file__).parent
SCRIPT = """
import os, sys

# An editable install finds the package by a hook that comes before any path.
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")]
import octavo
assert octavo.__file__.startswith(os.getcwd()), octavo.__file__

from octavo import LLM, SamplingParams
from octavo.errors import UnsupportedError

llm = LLM(sys.argv[1], kv_cache_memory="8MiB")
output = llm.generate("hello", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)[0]
assert len(output.outputs[0].token_ids) == 3
fields = {
    "prompt_logprobs": {"prompt_logprobs": 1},
    "penalties": {"presence_penalty": 1.0},
    "logits_control": {"logit_bias": {5: 1.0}},
}
try:
    llm.generate("hello", SamplingParams(**fields[sys.argv[2]]), use_tqdm=False)
except UnsupportedError as error:
    assert sys.argv[2] in str(error), error
else:
    raise AssertionError("a request was served by a feature that is not there")
"""


@pytest.mark.parametrize("feature", [name for name in FEATURES if (ROOT / name).is_dir()])
def test_deleting_a_folder_and_its_line_removes_the_feature(
    feature: str, tmp_path: Path, tiny_model: Path
) -> None:
    shutil.copytree(ROOT, tmp_path / "octavo", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "octavo" / feature)
    listing = tmp_path / "octavo/features.py"
    text, count = re.subn(rf'\n    "{feature}": .*', "", listing.read_text())
    assert count == 1, f"{feature} should have one line in FEATURES"
    listing.write_text(text)

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_model), feature],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
