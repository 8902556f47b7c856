"""From plans to arrays: what the worker derives from its rows, and what it remembers between steps."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.types.batch import Batch
from octavo.types.sampling import INVALID_TOKEN_ID
from octavo.types.steps import SchedulerOutput
from tests.worker.steps import Rows, make_input_batch, new, plan


def lay_out(batch: Rows, output: SchedulerOutput) -> Batch:
    batch.update(output)
    return batch.build(output)


def test_one_five_and_one_tokens_give_logits_at_0_5_and_6() -> None:
    rows = make_input_batch()
    decodes = [new(name, row, range(18), [10 + row, 20 + row], 17) for row, name in ((0, "a"), (2, "c"))]
    step = lay_out(rows, plan({"a": 1, "b": 5, "c": 1}, [*decodes, new("b", 1, range(5), [65])]))
    assert step.query_start_loc.tolist() == [0, 1, 6, 7]
    assert step.logits_indices.tolist() == [0, 5, 6]
    assert step.sampled_index.tolist() == [0, 1, 2]
    assert step.rows.tolist() == [0, 1, 2]
    assert step.seq_lens.tolist() == [18, 5, 18]
    assert step.positions.tolist() == [17, 0, 1, 2, 3, 4, 17]
    assert rows.tokens_of(step) == [17, 0, 1, 2, 3, 4, 17]
    metadata = step.attention[0]
    assert metadata.slot_mapping.tolist() == [321, 1040, 1041, 1042, 1043, 1044, 353]
    assert metadata.block_table.tolist() == [[10, 20], [65, 0], [12, 22]]
    assert (step.num_tokens, step.num_logits) == (7, 3)


def test_arrays_have_the_types_that_backends_count_on() -> None:
    step = lay_out(make_input_batch(), plan({"a": 3}, [new("a", 0, range(3), [1])]))
    metadata = step.attention[0]
    wide = (
        step.rows,
        step.positions,
        step.logits_indices,
        step.sampled_index,
        step.token_rows,
        step.logits_start_loc,
        step.logits_rows,
        step.logits_positions,
        metadata.slot_mapping,
    )
    assert {array.dtype for array in wide} == {np.dtype(np.int64)}
    narrow = (step.query_start_loc, step.seq_lens, metadata.block_table)
    assert {array.dtype for array in narrow} == {np.dtype(np.int32)}


def test_requests_run_in_the_order_of_the_plan_whatever_their_rows() -> None:
    rows = make_input_batch()
    admitted = [new("a", 5, [1, 2], [1]), new("b", 0, [3], [2]), new("c", 3, [4, 5, 6], [3])]
    step = lay_out(rows, plan({"c": 3, "a": 2, "b": 1}, admitted))
    assert step.req_ids == ["c", "a", "b"]
    assert step.rows.tolist() == [3, 5, 0]
    assert rows.tokens_of(step) == [4, 5, 6, 1, 2, 3]


def test_an_unfinished_prompt_samples_nothing() -> None:
    rows = make_input_batch()
    admitted = [new("long", 0, range(40), [1, 2]), new("short", 1, range(3), [4])]
    step = lay_out(rows, plan({"long": 20, "short": 3}, admitted))
    assert step.sampled_index.tolist() == [1]
    assert step.logits_indices.tolist() == [22]
    rows.take_sampled(step, 70)
    step = lay_out(rows, plan({"long": 19, "short": 1}, new_blocks={"long": ([3],)}))
    assert step.sampled_index.tolist() == [1]
    assert step.positions.tolist() == [*range(20, 39), 3]
    rows.take_sampled(step, 71)
    step = lay_out(rows, plan({"long": 1, "short": 1}))
    assert step.sampled_index.tolist() == [0, 1]
    assert step.attention[0].slot_mapping.tolist() == [3 * 16 + 7, 4 * 16 + 4]


def test_sampled_tokens_are_the_next_steps_input() -> None:
    rows = make_input_batch()
    step = lay_out(rows, plan({"a": 2, "b": 1}, [new("a", 1, [5, 6], [1]), new("b", 0, [7], [2])]))
    rows.take_sampled(step, 50, 60)
    step = lay_out(rows, plan({"b": 1, "a": 1}))
    assert rows.tokens_of(step) == [60, 50]
    assert step.positions.tolist() == [1, 2]


def test_cached_tokens_are_not_run_again() -> None:
    rows = make_input_batch()
    step = lay_out(rows, plan({"a": 4}, [new("a", 0, range(20), [7, 8], 16)]))
    assert rows.tokens_of(step) == [16, 17, 18, 19]
    assert step.positions.tolist() == [16, 17, 18, 19]
    assert step.attention[0].slot_mapping.tolist() == [128, 129, 130, 131]
    assert step.seq_lens.tolist() == [20]


def test_a_request_that_sits_a_step_out_stays_where_it_was() -> None:
    rows = make_input_batch()
    step = lay_out(rows, plan({"a": 1, "b": 1}, [new("a", 0, [1], [1]), new("b", 1, [2], [2])]))
    rows.take_sampled(step, 10, 20)
    rows.take_sampled(lay_out(rows, plan({"b": 1})), 21)
    step = lay_out(rows, plan({"a": 1, "b": 1}))
    assert step.positions.tolist() == [1, 2]
    assert rows.tokens_of(step) == [10, 21]


def test_a_row_that_changes_hands_shows_nothing_of_its_last_owner() -> None:
    rows = make_input_batch()
    step = lay_out(rows, plan({"a": 40}, [new("a", 0, range(40), [1, 2, 3])]))
    rows.take_sampled(step, 99)
    step = lay_out(rows, plan({"b": 2}, [new("b", 0, [7, 8], [9])], finished=["a"]))
    assert rows.tokens_of(step) == [7, 8]
    assert step.attention[0].block_table.tolist() == [[9]]
    assert step.sampled_index.tolist() == [0]
    assert rows.row_of == {"b": 0}


def test_an_aborted_request_and_a_new_one_with_its_id_are_two_requests() -> None:
    rows = make_input_batch()
    step = lay_out(rows, plan({"a": 3}, [new("a", 0, [1, 2, 3], [1])]))
    rows.take_sampled(step, 50)
    step = lay_out(rows, plan({"a": 2}, [new("a", 4, [8, 9], [2])], finished=["a"]))
    assert step.rows.tolist() == [4]
    assert rows.tokens_of(step) == [8, 9]


def test_a_preempted_request_comes_back_in_any_row_with_all_its_tokens() -> None:
    rows = make_input_batch()
    step = lay_out(rows, plan({"a": 2, "b": 2}, [new("a", 0, [1, 2], [1]), new("b", 1, [3, 4], [2])]))
    rows.take_sampled(step, 10, 20)
    rows.take_sampled(lay_out(rows, plan({"a": 1}, preempted=["b"])), 11)
    assert "b" not in rows.row_of
    step = lay_out(rows, plan({"a": 1, "b": 3}, [new("b", 5, [3, 4, 20], [6], num_prompt_tokens=2)]))
    assert step.rows.tolist() == [0, 5]
    assert rows.tokens_of(step) == [11, 3, 4, 20]
    assert step.positions.tolist() == [3, 0, 1, 2]
    assert step.sampled_index.tolist() == [0, 1]
    rows.take_sampled(step, 12, 21)


def test_every_group_has_its_own_table_and_slots() -> None:
    rows = make_input_batch(num_groups=2)
    output = plan({"a": 17}, [new("a", 0, range(17), ([1, 2], [8, 9]))], num_common_prefix_blocks=[1, 0])
    first, second = lay_out(rows, output).attention
    assert (first.block_table.tolist(), second.block_table.tolist()) == ([[1, 2]], [[8, 9]])
    assert (first.slot_mapping[16], second.slot_mapping[16]) == (32, 144)
    assert (first.num_common_prefix_blocks, second.num_common_prefix_blocks) == (1, 0)
    rows.update(plan({"a": 1}, new_blocks={"a": ([3], [7])}))
    assert rows.block_tables.get_rows(np.array([0])).tolist() == [[[1, 2, 3]], [[8, 9, 7]]]


def test_a_group_may_get_no_block_where_another_does() -> None:
    rows = make_input_batch(num_groups=2)
    step = lay_out(
        rows, plan({"a": 17}, [new("a", 0, range(17), ([1, 2], [0, 9]))], num_common_prefix_blocks=[0, 0])
    )
    rows.take_sampled(step, 5)
    output = plan({"a": 1}, new_blocks={"a": ([3], [])}, num_common_prefix_blocks=[0, 0])
    first, second = lay_out(rows, output).attention
    assert (first.block_table.tolist(), second.block_table.tolist()) == ([[1, 2, 3]], [[0, 9, 0]])
    assert (first.slot_mapping.tolist(), second.slot_mapping.tolist()) == ([2 * 16 + 1], [9 * 16 + 1])
    assert all(each.block_table.flags.c_contiguous for each in (first, second))


def test_an_invalid_token_changes_no_other_row_and_no_later_request_in_its_row() -> None:
    rows = make_input_batch()
    step = lay_out(rows, plan({"a": 1, "b": 1}, [new("a", 0, [1], [1]), new("b", 1, [2], [2])]))
    rows.take_sampled(step, INVALID_TOKEN_ID, 20)
    step = lay_out(rows, plan({"b": 1, "c": 1}, [new("c", 0, [3], [1])], finished=["a"]))
    assert rows.tokens_of(step) == [20, 3]
    rows.take_sampled(step, 21, 30)
    assert rows.tokens_of(lay_out(rows, plan({"b": 1, "c": 1}))) == [21, 30]


def test_the_last_token_fills_the_row() -> None:
    rows = make_input_batch(max_model_len=4)
    step = lay_out(rows, plan({"a": 3}, [new("a", 0, [1, 2, 3], [1])]))
    rows.take_sampled(step, 9)
    assert rows.num_tokens[0] == 4
    assert lay_out(rows, plan({"a": 1})).positions.tolist() == [3]


def test_rows_are_told_how_to_sample_and_at_which_position() -> None:
    rows = make_input_batch()
    admitted = [new("a", 3, range(6), [1]), new("long", 0, range(40), [2, 3, 4])]
    step = lay_out(rows, plan({"long": 8, "a": 6}, admitted))
    metadata = rows.get_sampling_metadata(step)
    assert metadata.positions.tolist() == [6]
    assert metadata.temperature.tolist() == [0]


def test_an_unknown_request_is_a_bug_that_shows() -> None:
    with pytest.raises(KeyError):
        lay_out(make_input_batch(), plan({"stranger": 1}))


def test_a_batch_does_not_change_when_the_next_one_is_built() -> None:
    rows = make_input_batch()
    first = lay_out(rows, plan({"a": 2}, [new("a", 0, [1, 2], [1])]))
    kept = (
        first.positions.copy(),
        first.seq_lens.copy(),
        first.attention[0].block_table.copy(),
        first.token_rows.copy(),
    )
    rows.take_sampled(first, 9)
    lay_out(rows, plan({"b": 1}, [new("b", 0, [5], [7])], finished=["a"]))
    shown = (first.positions, first.seq_lens, first.attention[0].block_table, first.token_rows)
    assert all(np.array_equal(before, after) for before, after in zip(kept, shown, strict=True))


def test_a_request_with_drafts_has_a_row_of_logits_for_each_and_one_more() -> None:
    rows = make_input_batch()
    step = lay_out(rows, plan({"a": 2, "b": 1}, [new("a", 0, [1, 2], [1]), new("b", 1, [3], [2])]))
    rows.take_sampled(step, 50, 60)
    step = lay_out(rows, plan({"b": 1, "a": 3}, scheduled_spec_decode_tokens={"a": [51, 52]}))
    assert rows.tokens_of(step) == [60, 50, 51, 52]
    assert step.sampled_index.tolist() == [0, 1]
    assert step.logits_start_loc.tolist() == [0, 1, 4]
    assert step.logits_indices.tolist() == [0, 1, 2, 3]
    assert step.logits_rows.tolist() == [1, 0, 0, 0]
    assert step.logits_positions.tolist() == [2, 3, 4, 5]
    assert step.draft_token_ids == {1: [51, 52]}
    assert rows.get_sampling_metadata(step).positions.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("sampled", "gained", "next_token"),
    [
        ((51, 52, 53), 3, 53),
        ((51, 70, 53), 2, 70),
        ((70, 52, 53), 1, 70),
        ((INVALID_TOKEN_ID, 52, 53), 1, -1),
    ],
)
def test_a_request_gains_a_token_for_each_draft_that_is_right_and_one_more(
    sampled: tuple[int, ...], gained: int, next_token: int
) -> None:
    rows = make_input_batch()
    rows.take_sampled(lay_out(rows, plan({"a": 2}, [new("a", 0, [1, 2], [1])])), 50)
    step = lay_out(rows, plan({"a": 3}, scheduled_spec_decode_tokens={"a": [51, 52]}))
    assert rows.take_sampled(step, *sampled) == [gained]
    assert (rows.num_tokens[0], rows.num_computed_tokens[0]) == (3 + gained, 2 + gained)
    step = lay_out(rows, plan({"a": 1}))
    assert step.positions.tolist() == [2 + gained]
    assert rows.tokens_of(step) == [next_token]


def test_drafts_whose_request_is_cut_short_by_the_budget_do_not_sample() -> None:
    rows = make_input_batch()
    step = lay_out(rows, plan({"a": 1}, [new("a", 0, [1, 2, 3], [1])]))
    assert step.sampled_index.tolist() == []
    assert step.num_logits == 0
