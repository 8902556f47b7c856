"""Text of logprobs where tokens are pieces of characters."""

from __future__ import annotations

from pathlib import Path

from octavo.frontend.logprobs import LogprobsProcessor
from octavo.frontend.tokenizer import Tokenizer
from octavo.types.sampling import TokenLogprobs
from tests.tiny_model import END_TOKEN_ID


def positions(*token_ids: int) -> list[TokenLogprobs]:
    return [TokenLogprobs([token_id], [-0.5], 1) for token_id in token_ids]


def chosen_texts(processor: LogprobsProcessor) -> list[str]:
    return [next(iter(place.values())).decoded_token for place in processor.logprobs]


def test_a_character_of_several_tokens_shows_where_it_is_complete(tiny_model: Path) -> None:
    processor = LogprobsProcessor(Tokenizer.from_folder(tiny_model))
    processor.update(positions(*"a日b".encode()))
    assert chosen_texts(processor) == ["a", "", "", "日", "b"]
    assert "".join(chosen_texts(processor)) == "a日b"


def test_bytes_that_are_no_character_show_as_replacement_and_harm_nothing(tiny_model: Path) -> None:
    processor = LogprobsProcessor(Tokenizer.from_folder(tiny_model))
    processor.update(positions(0xFF, 0x80, ord("x")))
    assert chosen_texts(processor) == ["\ufffd", "\ufffd", "x"]


def test_control_tokens_show_their_names_and_break_characters(tiny_model: Path) -> None:
    processor = LogprobsProcessor(Tokenizer.from_folder(tiny_model))
    processor.update(positions(0xE6, END_TOKEN_ID, ord("x")))
    assert chosen_texts(processor) == ["", "<|end|>", "x"]


def test_ranks_and_values_are_kept_and_the_chosen_token_is_not_doubled(tiny_model: Path) -> None:
    processor = LogprobsProcessor(Tokenizer.from_folder(tiny_model))
    processor.update([TokenLogprobs([98, 97, 98], [-1.0, -0.5, -1.0], 2)])
    (place,) = processor.logprobs
    assert {token_id: (at.logprob, at.rank) for token_id, at in place.items()} == {
        98: (-1.0, 2),
        97: (-0.5, 1),
    }
    assert processor.cumulative_logprob == -1.0
