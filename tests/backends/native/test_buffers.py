from __future__ import annotations

from functools import partial
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from octavo.backends.native.buffers import ALIGNMENT, Lifetime, find_lifetimes, place, plan_buffers
from octavo.backends.native.fusion import fuse
from octavo.backends.native.recorder import record
from octavo.models.model import forward
from tests.models.tiny_llama import make_config, make_model

LIFETIMES = st.lists(
    st.builds(
        lambda columns, first, length: Lifetime(columns, first, first + length),
        st.integers(1, 200),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=24,
)


def span(start: int, lifetime: Lifetime) -> range:
    return range(start, start + lifetime.num_columns)


@given(LIFETIMES)
def test_values_that_live_together_lie_apart(lifetimes: list[Lifetime]) -> None:
    offsets = place(lifetimes)
    assert all(offset >= 0 and offset % ALIGNMENT == 0 for offset in offsets)
    for (a, first), (b, second) in combinations(zip(offsets, lifetimes, strict=True), 2):
        together = first.first <= second.last and second.first <= first.last
        overlap = max(a, b) < min(span(a, first).stop, span(b, second).stop)
        assert not (together and overlap)


def test_a_dead_value_gives_its_columns_to_a_later_one() -> None:
    assert place([Lifetime(32, 0, 1), Lifetime(32, 1, 2), Lifetime(32, 2, 3)]) == [0, 32, 0]


def test_the_narrowest_gap_that_is_wide_enough_is_taken() -> None:
    kept = [Lifetime(16, 0, 9), Lifetime(16, 0, 9), Lifetime(16, 0, 9)]
    wide, narrow = Lifetime(64, 0, 1), Lifetime(32, 0, 1)
    offsets = place([kept[0], wide, kept[1], narrow, kept[2], Lifetime(20, 5, 6)])
    assert offsets == [0, 16, 80, 96, 128, 96]


def test_a_value_never_lies_where_its_operation_still_reads() -> None:
    first, second = place([Lifetime(16, 0, 1), Lifetime(16, 1, 1)])
    assert first != second


def test_outputs_live_to_the_end_and_inputs_lie_elsewhere() -> None:
    model = make_model(make_config(num_hidden_layers=3))
    recording = fuse(record(partial(forward, model)))
    lifetimes = find_lifetimes(recording)
    (output,) = recording.outputs
    assert lifetimes[output.value].last == len(recording.operations)
    logits = record(lambda ops, ids, positions, x: model.compute_logits(ops, x), {"x": 48})
    assert logits.inputs["x"].value not in plan_buffers(logits).offsets


def test_more_layers_take_no_more_columns() -> None:
    columns = {
        plan_buffers(
            fuse(record(partial(forward, make_model(make_config(num_hidden_layers=layers)))))
        ).num_columns
        for layers in (3, 8)
    }
    assert len(columns) == 1
