from __future__ import annotations

import pytest

from octavo.errors import ModelNotFoundError
from octavo.hub.selection import complete_shards, select_model, select_tokenizer

FOLDER = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "merges.txt"]
SHARDS = [f"Big-Q8_0-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
GGUFS = ["tiny-Q4_K_M.gguf", "tiny-Q4_K_S.gguf", "tiny.q4_k.gguf", "tiny-f16.gguf", "mmproj-tiny-f16.gguf"]


def test_folder_is_its_weights_configuration_and_tokenizer() -> None:
    useless = [
        "README.md",
        "pytorch_model.bin",
        "onnx/model.onnx",
        "original/model.safetensors",
        ".gitattributes",
    ]
    selection = select_model("org/tiny", [*useless, *FOLDER], "")
    assert selection.entry == ""
    assert sorted(selection.files) == sorted(FOLDER)


def test_weights_are_told_from_what_is_to_be_there_before_them() -> None:
    selection = select_model("org/tiny", FOLDER, "")
    assert selection.weights == ("model.safetensors",)
    assert select_model("org/big", SHARDS, "").weights == tuple(SHARDS)


def test_second_copy_of_the_weights_is_left_alone() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    files = ["config.json", "model.safetensors.index.json", *shards, "consolidated.safetensors"]
    assert sorted(select_model("org/tiny", files, "").files) == sorted(files[:-1])


def test_only_copy_of_the_weights_is_taken_whatever_its_name() -> None:
    assert (
        "consolidated.safetensors"
        in select_model("o/t", ["config.json", "consolidated.safetensors"], "").files
    )


def test_later_stages_of_an_embedding_model_come_along() -> None:
    stages = ["modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    assert set(select_model("org/tiny", [*FOLDER, *stages], "").files) == {*FOLDER, *stages}


def test_folder_is_preferred_where_nothing_is_chosen() -> None:
    assert select_model("org/tiny", [*FOLDER, *GGUFS], "").entry == ""


@pytest.mark.parametrize(
    ("choice", "entry"),
    [
        ("Q4_K_M", "tiny-Q4_K_M.gguf"),
        ("q4_k_s", "tiny-Q4_K_S.gguf"),
        ("Q4_K", "tiny.q4_k.gguf"),
        ("F16", "tiny-f16.gguf"),
        ("tiny-Q4_K_S.gguf", "tiny-Q4_K_S.gguf"),
    ],
)
def test_choice_picks_one_file(choice: str, entry: str) -> None:
    selection = select_model("org/tiny", [*FOLDER, *GGUFS], choice)
    assert (selection.entry, selection.files) == (entry, (entry,))


@pytest.mark.parametrize("choice", ["", "Q8_0", SHARDS[0], SHARDS[2]])
def test_split_model_is_one_model_opened_at_its_first_file(choice: str) -> None:
    selection = select_model("org/big", SHARDS[::-1], choice)
    assert (selection.entry, selection.files) == (SHARDS[0], tuple(SHARDS))


def test_choice_finds_files_in_folders() -> None:
    files = ["Q4_K_M/tiny-Q4_K_M.gguf", "Q8_0/tiny-Q8_0.gguf"]
    assert select_model("org/tiny", files, "Q8_0").entry == files[1]
    assert select_model("org/tiny", files, "tiny-Q8_0.gguf").entry == files[1]
    assert select_model("org/tiny", files, files[1]).entry == files[1]


def test_only_gguf_model_needs_no_choice() -> None:
    assert select_model("org/tiny", ["README.md", "a.gguf", "mmproj-a.gguf"], "").entry == "a.gguf"


def test_several_gguf_models_are_listed_as_they_can_be_asked_for() -> None:
    with pytest.raises(ModelNotFoundError, match="more than one GGUF model") as caught:
        select_model("org/tiny", GGUFS, "")
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        f"org/tiny:{name}" for name in sorted(GGUFS) if not name.startswith("mmproj")
    ]


def test_choice_that_fits_several_lists_only_those() -> None:
    files = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "b-Q8_0.gguf"]
    with pytest.raises(ModelNotFoundError, match="more than one GGUF model 'Q4_K_M'") as caught:
        select_model("org/tiny", files, "Q4_K_M")
    assert "b-Q4_K_M.gguf" in str(caught.value)
    assert "b-Q8_0.gguf" not in str(caught.value)


@pytest.mark.parametrize("choice", ["Q2_K", "other.gguf", "iny"])
def test_choice_that_fits_nothing_lists_what_there_is(choice: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"no GGUF model '{choice}'") as caught:
        select_model("org/tiny", GGUFS, choice)
    assert "org/tiny:tiny-f16.gguf" in str(caught.value)


@pytest.mark.parametrize("choice", ["", "Q4_0"])
@pytest.mark.parametrize("files", [[], ["config.json", "pytorch_model.bin"], ["adapter.safetensors"]])
def test_repository_without_a_readable_model_is_refused(files: list[str], choice: str) -> None:
    with pytest.raises(ModelNotFoundError, match="neither a GGUF model nor config"):
        select_model("org/tiny", files, choice)


def test_tokenizer_is_the_folder_without_its_weights() -> None:
    stages = ["1_Pooling/config.json", "2_Dense/model.safetensors"]
    selection = select_tokenizer("org/8B", [*FOLDER, *stages, *GGUFS], "")
    assert selection.entry == ""
    assert sorted(selection.files) == sorted(set(FOLDER) - {"model.safetensors"})


def test_tokenizer_needs_no_model_beside_it() -> None:
    assert select_tokenizer("org/t", ["README.md", "tokenizer.json"], "").files == ("tokenizer.json",)


@pytest.mark.parametrize("choice", ["", "Q8_0"])
def test_tokenizer_is_taken_from_a_gguf_model_where_that_is_all_there_is_or_is_chosen(choice: str) -> None:
    files = ["README.md", "tiny-Q8_0.gguf", *(["tokenizer.json"] if choice else [])]
    selection = select_tokenizer("org/tiny", files, choice)
    assert (selection.entry, selection.files) == ("tiny-Q8_0.gguf", ("tiny-Q8_0.gguf",))


def test_repository_without_a_readable_tokenizer_is_refused() -> None:
    files = ["config.json", "model.safetensors", "tokenizer.model"]
    with pytest.raises(ModelNotFoundError, match=r"nor tokenizer\.json \(tokenizer\.model alone cannot"):
        select_tokenizer("org/8B", files, "")


def test_a_shard_speaks_of_all_its_siblings() -> None:
    assert sorted(complete_shards([SHARDS[1], "config.json"])) == sorted([*SHARDS, "config.json"])
    files = ["model-00002-of-00002.safetensors", "sub/a-00001-of-00001.gguf", "model.safetensors"]
    assert sorted(complete_shards(files)) == sorted([*files, "model-00001-of-00002.safetensors"])
