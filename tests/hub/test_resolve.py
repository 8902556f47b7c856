from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.config import DEFAULT_MODEL
from octavo.errors import ConfigError, ModelNotFoundError
from octavo.hub import ALIASES, pull_model, resolve_model, resolve_tokenizer
from octavo.hub.aliases import Alias
from octavo.hub.cache import cache_folder
from octavo.hub.selection import Select, select_model, select_tokenizer


@pytest.fixture(autouse=True)
def nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this file may reach for the network; those that expect a fetch put their own in place."""

    def refuse(*args: object, **options: object) -> None:
        pytest.fail(f"fetched {args}")

    monkeypatch.setattr("octavo.hub.fetch.fetch_alias", refuse)
    monkeypatch.setattr("octavo.hub.repository.fetch_repository", refuse)


def place_default_model(cache: Path, size_bytes: int) -> Path:
    alias = ALIASES[DEFAULT_MODEL]
    path = cache / "models" / alias.name / alias.file_name
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)  # sparse: takes no space
    return path


def test_cached_alias_is_found_in_the_cache_that_the_environment_names(cache: Path) -> None:
    path = place_default_model(cache, ALIASES[DEFAULT_MODEL].size_bytes)
    assert resolve_model(DEFAULT_MODEL) == path
    assert resolve_model(DEFAULT_MODEL, offline=True) == path


@pytest.mark.parametrize("is_truncated", [True, False])
def test_alias_that_is_not_whole_in_the_cache_is_fetched(
    cache: Path, monkeypatch: pytest.MonkeyPatch, is_truncated: bool
) -> None:
    fetched: list[tuple[Alias, Path]] = []

    def fetch(alias: Alias, folder: Path) -> Path:
        fetched.append((alias, folder))
        return folder / alias.file_name

    monkeypatch.setattr("octavo.hub.fetch.fetch_alias", fetch)
    if is_truncated:
        place_default_model(cache, ALIASES[DEFAULT_MODEL].size_bytes - 1)
    path = resolve_model(DEFAULT_MODEL)
    assert fetched == [(ALIASES[DEFAULT_MODEL], cache / "models" / DEFAULT_MODEL)]
    assert path == cache / "models" / DEFAULT_MODEL / ALIASES[DEFAULT_MODEL].file_name


def test_pull_looks_at_the_bytes_of_a_cached_alias(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_default_model(cache, ALIASES[DEFAULT_MODEL].size_bytes)
    folders: list[Path] = []

    def fetch(alias: Alias, folder: Path) -> Path:
        folders.append(folder)
        return folder / "verified"

    monkeypatch.setattr("octavo.hub.fetch.fetch_alias", fetch)  # which verifies
    assert pull_model(DEFAULT_MODEL) == cache / "models" / DEFAULT_MODEL / "verified"
    assert folders == [cache / "models" / DEFAULT_MODEL]


def test_pull_of_anything_else_resolves_it(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    assert pull_model(str(path)) == path
    with pytest.raises(ConfigError, match="'v1' is for a Hugging Face id"):
        pull_model(DEFAULT_MODEL, revision="v1")


def test_offline_fetches_no_alias(cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=f"octavo pull {DEFAULT_MODEL}"):
        resolve_model(DEFAULT_MODEL, offline=True)
    assert not cache.exists()


def test_folder_with_an_aliass_name_changes_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place_default_model(cache, ALIASES[DEFAULT_MODEL].size_bytes)
    (tmp_path / DEFAULT_MODEL).mkdir()
    (tmp_path / DEFAULT_MODEL / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    assert resolve_model(DEFAULT_MODEL) == path
    assert resolve_model(f"./{DEFAULT_MODEL}") == Path(DEFAULT_MODEL)


def test_cache_is_under_the_xdg_cache_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OCTAVO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "octavo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "octavo"


def test_tilde_in_the_caches_name_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OCTAVO_CACHE", "~/models")
    assert cache_folder() == tmp_path / "models"
    monkeypatch.setenv("OCTAVO_CACHE", "~nobody-of-this-name/models")
    assert cache_folder() == Path("~nobody-of-this-name/models")


def test_gguf_file_is_itself_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"GGUF and more")
    assert resolve_model(str(path)) == path


def test_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert resolve_model("~/a.gguf") == tmp_path / "a.gguf"


def test_folder_with_config_is_a_model_and_wins_over_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json: a model is"):
        resolve_model(str(tmp_path))
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json: name one of its GGUF files, a\.gguf"):
        resolve_model(str(tmp_path))


def test_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x08\0\0\0")
    with pytest.raises(ModelNotFoundError, match=r"not a GGUF file: a model is"):
        resolve_model(str(path))
    (tmp_path / "config.json").touch()
    with pytest.raises(ModelNotFoundError, match=f"give its folder, {tmp_path}"):
        resolve_model(str(path))


def test_what_is_neither_file_nor_folder_is_said_to_be_so() -> None:
    with pytest.raises(ModelNotFoundError, match="is neither a regular file nor a folder: a model is"):
        resolve_model(os.devnull)


def test_tokenizer_of_an_alias_or_a_gguf_file_is_the_file(cache: Path, tmp_path: Path) -> None:
    path = place_default_model(cache, ALIASES[DEFAULT_MODEL].size_bytes)
    assert resolve_tokenizer(DEFAULT_MODEL) == path
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert resolve_tokenizer(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"


def test_folder_with_nothing_but_tokenizer_json_is_a_tokenizer_and_no_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    assert resolve_tokenizer(str(tmp_path)) == tmp_path
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_what_is_no_tokenizer_is_refused_with_what_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer\.json: a tokenizer is taken from"):
        resolve_tokenizer(str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="there is no tokenizer 'nothing'"):
        resolve_tokenizer("nothing")
    with pytest.raises(ConfigError, match="'v1' is for a Hugging Face id"):
        resolve_tokenizer(str(tmp_path), revision="v1")


@pytest.mark.parametrize("name", ["org/name", "org/name:Q4_K_M", "org/name:a/b.gguf", "o.r-g/n_a.me"])
def test_hub_id_goes_to_the_hub(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked: list[tuple[str, Select, str | None, bool]] = []

    def fetch(reference: str, *, select: Select, revision: str | None, offline: bool) -> Path:
        asked.append((reference, select, revision, offline))
        return Path("fetched")

    monkeypatch.setattr("octavo.hub.repository.fetch_repository", fetch)
    assert resolve_model(name) == Path("fetched")
    assert resolve_model(name, revision="v1", offline=True) == Path("fetched")
    assert resolve_tokenizer(name, revision="v1") == Path("fetched")
    assert asked == [
        (name, select_model, None, False),
        (name, select_model, "v1", True),
        (name, select_tokenizer, "v1", False),
    ]


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "./path", "/", "unknown"])
def test_revision_is_refused_where_it_means_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match="'v1' is for a Hugging Face id"):
        resolve_model(name, revision="v1")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("smollm", "smollm2"), ("SmolLM2", "smollm2"), ("gemma3", "gemma3-270m"), ("mode", "model")],
)
def test_unknown_name_suggests_aliases_and_paths_like_it(
    name: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=f"no model '{name}'; did you mean {meant}?"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["", "zzz", "a/b/c", "./a/b", "org/", "\0", "x" * 5000])
def test_unknown_name_lists_what_a_model_can_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(name)
    assert "did you mean" not in str(caught.value)
    for expected in (*ALIASES, ".gguf file", "org/name:Q4_K_M"):
        assert expected in str(caught.value)


def test_path_that_does_not_exist_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "tiny-Q4_K_M.gguf").touch()
    with pytest.raises(ModelNotFoundError, match="no file or folder") as caught:
        resolve_model(str(tmp_path / "tiny-q4_k_n.gguf"))
    assert f"did you mean {tmp_path / 'tiny-Q4_K_M.gguf'}?" in str(caught.value)


def test_what_is_no_model_is_not_suggested(tmp_path: Path) -> None:
    (tmp_path / "tine.py").touch()
    (tmp_path / "tina").mkdir()
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(str(tmp_path / "tiny"))
    assert "did you mean" not in str(caught.value)


def test_gguf_path_that_does_not_exist_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no file or folder 'models/tiny\.gguf'"):
        resolve_model("models/tiny.gguf")


def test_resolving_a_cached_alias_imports_nothing_that_downloads(cache: Path) -> None:
    place_default_model(cache, ALIASES[DEFAULT_MODEL].size_bytes)
    code = f"import octavo.hub, sys; octavo.hub.resolve_model({DEFAULT_MODEL!r}); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path), "OCTAVO_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "octavo.hub.resolve" in loaded
    heavy = {
        "huggingface_hub",
        "tqdm",
        "filelock",
        "requests",
        "httpx",
        "octavo.hub.fetch",
        "octavo.hub.repository",
    }
    assert heavy.isdisjoint(loaded)
