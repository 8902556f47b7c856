import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.errors import ModelNotFoundError, WeightError
from octavo.weights.gguf import GGUFFile
from octavo.weights.loader import open_weights
from octavo.weights.safetensors import SafetensorsFolder
from tests.weights.gguf_writer import build_gguf

TENSORS = {"t": np.zeros(4, np.float32)}


@pytest.mark.parametrize("name", ["model.gguf", "sha256-0123"])
def test_a_gguf_file_is_known_by_its_name_or_its_content(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(build_gguf({}, TENSORS))
    weights = open_weights(tmp_path / name)
    assert isinstance(weights, GGUFFile)
    assert weights.path == tmp_path / name


def test_a_folder_with_safetensors_is_opened_whole(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path)
    assert isinstance(weights, SafetensorsFolder)
    assert weights.path == tmp_path


def test_a_path_to_nothing_is_refused_with_what_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no such file or folder; give a GGUF file .* or a folder"):
        open_weights(tmp_path / "none")


def test_another_kind_of_file_is_refused_with_what_is_accepted(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    with pytest.raises(
        WeightError, match=r"model\.safetensors: is not a model file; give a GGUF file .* or a folder"
    ):
        open_weights(tmp_path / "model.safetensors")


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WeightError, match="pipe: is not a regular file"):
        open_weights(tmp_path / "pipe")


def test_a_damaged_gguf_file_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GG")
    with pytest.raises(WeightError, match="the header needs 8 bytes at byte 0, the file has 2"):
        open_weights(tmp_path / "model.gguf")


def test_a_folder_without_weights_is_refused_with_the_gguf_files_in_it(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"the folder has no weights; .* GGUF files in it: none"):
        open_weights(tmp_path)
    (tmp_path / "model.gguf").write_bytes(build_gguf({}, TENSORS))
    with pytest.raises(WeightError, match=r"GGUF files in it: model\.gguf"):
        open_weights(tmp_path)
