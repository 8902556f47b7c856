"""`Settings`: the types of the settings that `LLM(...)` takes by name, for editors and type checkers.

Defaults, meanings and limits are in `octavo.config`. A test keeps the names and types equal to those there.
A number may also be a text, and a whole number may have a unit: "2GiB", "32k".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict


class Settings(TypedDict, total=False):
    """Every setting of the engine except `model`."""

    revision: str | None
    tokenizer: str | None
    chat_template: str | None
    allow_special_tokens_in_content: bool
    max_model_len: int | Literal["auto"] | str | None
    max_logprobs: int | str
    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]

    block_size: int | str
    kv_cache_dtype: Literal["auto", "bf16", "f32", "fp8_e4m3"]
    enable_prefix_caching: bool
    prefix_cache_retention_interval: int | str | None
    kv_cache_memory: int | str | None
    memory_utilization: float | str
    num_blocks_override: int | str | None

    max_num_batched_tokens: int | str
    max_num_seqs: int | str
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int | str | None
    max_num_partial_prefills: int | str | None
    prefill_schedule_interval: int | str
    watermark: float | str
    scheduling_policy: Literal["fcfs", "priority", "fair"]
    priority_aging_s: float | str
    tenant_weights: Mapping[str, float] | str | None
    enable_cascade_attention: bool
    pipeline_depth: int | str

    log_stats: bool
    kv_events_endpoint: str | None
    kv_events_replay_endpoint: str | None
    kv_events_topic: str
    kv_events_buffer_steps: int | str
    kv_events_hwm: int | str

    backend: Literal["auto", "native", "reference"]
    threads: int | str | None
