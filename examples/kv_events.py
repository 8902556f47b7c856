"""A subscriber to KV events: it knows what the prefix cache of an engine holds.

A router uses this to send each request to the engine that has cached the beginning of its prompt. Here the
engine and the subscriber are in one program; usually they are on different machines.
"""

import sys

from octavo import LLM, SamplingParams
from octavo.kv_events.subscriber import CachedBlocks, KVEventsSubscriber

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
EVENTS, REPLAYS = "ipc:///tmp/octavo-events", "ipc:///tmp/octavo-replays"  # or tcp://HOST:PORT
if len(sys.argv) > 3:
    EVENTS, REPLAYS = sys.argv[2:]

with (
    LLM(model, kv_events_endpoint=EVENTS, kv_events_replay_endpoint=REPLAYS) as llm,
    KVEventsSubscriber(EVENTS, REPLAYS) as subscriber,
):
    cached = CachedBlocks()
    cached.apply(subscriber.take_snapshot())  # what is cached before the first event
    print(f"before: {len(cached.blocks)} blocks are cached")

    prompt = "Octavo keeps the keys and values of past prompts in blocks. " * 4
    llm.generate(prompt, SamplingParams(max_tokens=8), use_tqdm=False)

    # `read` returns the next batches, in order and without gaps; [] means that none came in time.
    while batches := subscriber.read(timeout_s=1.0):
        for batch in batches:
            cached.apply(batch)
    print(f"after: {len(cached.blocks)} blocks are cached")
