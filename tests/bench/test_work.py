from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bench.work import AttentionWork, ModelWork, Work, arithmetic_of, count_work
from octavo.models.load import open_model
from octavo.ops import AttentionLayer
from tests.fakes import make_kv_config
from tests.tiny_model import CONFIG

HIDDEN, FFN, LAYERS, VOCAB = (
    CONFIG[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
)
KV_SIZE = HIDDEN // 2  # two KV heads for four query heads
BODY_NUMBERS = LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV_SIZE + 3 * HIDDEN * FFN)
HEAD_NUMBERS = VOCAB * HIDDEN


def test_a_models_work_is_counted_from_its_matrices_and_its_cache(tiny_model: Path) -> None:
    kv_config = make_kv_config(8, num_groups=LAYERS)
    work = count_work(open_model(tiny_model), kv_config)
    assert work.weight_bytes == 4 * (BODY_NUMBERS + HEAD_NUMBERS)
    assert work.token_ops == {"f32": 2 * BODY_NUMBERS}
    assert work.head_ops == {"f32": 2 * HEAD_NUMBERS}
    assert [layer.pair_ops for layer in work.attention] == [4 * HIDDEN] * LAYERS
    assert [layer.kv_bytes for layer in work.attention] == [
        group.spec.page_bytes / group.spec.block_size for group in kv_config.groups
    ]


def test_a_step_reads_the_weights_once_and_each_requests_context() -> None:
    work = ModelWork(1000, {"int8": 50}, {"int8": 7, "f32": 3}, (AttentionWork(4, 10.0, None),))
    step = work.of_step(num_requests=3, num_new_tokens=1, context=100)
    assert step == Work(1000 + 3 * 100 * 10, {"int8": 3 * 57, "f32": 3 * 3, "bf16": 3 * 100 * 4})


@pytest.mark.parametrize(("window", "num_read"), [(None, 60 + 3 * 40), (50, 10 + 3 * 40), (30, 3 * 30)])
def test_what_requests_share_is_read_once(window: int | None, num_read: int) -> None:
    step = AttentionWork(4, 10.0, window).of_step(num_requests=3, num_new_tokens=1, context=100, shared=60)
    assert step.num_bytes == 10 * num_read


def test_only_the_last_token_of_a_prompt_has_logits() -> None:
    work = ModelWork(1000, {"int8": 50}, {"int8": 7}, ())
    assert work.of_step(num_requests=2, num_new_tokens=5, context=5).num_ops == {"int8": 2 * 5 * 50 + 2 * 7}


@pytest.mark.parametrize("window", [None, 1, 4, 10, 30])
@pytest.mark.parametrize(("num_new_tokens", "context"), [(1, 20), (20, 20), (5, 20)])
def test_attention_costs_what_each_new_token_sees(
    num_new_tokens: int, context: int, window: int | None
) -> None:
    layer = AttentionLayer(0, num_heads=2, num_kv_heads=1, head_size=16, scale=1.0, window=window)
    step = AttentionWork.of_layer(layer, kv_bytes=64.0).of_step(1, num_new_tokens, context)
    seen = [
        range(max(0, position + 1 - (window or context)), position + 1)
        for position in range(context - num_new_tokens, context)
    ]
    assert step.num_ops == {"bf16": 4 * 2 * 16 * sum(map(len, seen))}
    assert step.num_bytes == 64 * len(set().union(*seen))


@pytest.mark.parametrize(
    ("format_name", "arithmetic"), [("F32", "f32"), ("F16", "f32"), ("BF16", "bf16"), ("Q4_K", "int8")]
)
def test_the_format_of_weights_decides_the_arithmetic(format_name: str, arithmetic: str) -> None:
    assert arithmetic_of(format_name) == arithmetic
