"""Text as it is generated, of several requests at once.

`LLM` returns finished answers. `LLMEngine`, on which it is built, gives you each step: add requests whenever
they come, call `step` while there are unfinished ones, and take what is new from each request's collector.
"""

import sys

from octavo import EngineConfig, LLMEngine, RequestOutputKind, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
engine = LLMEngine.from_config(EngineConfig.from_settings(model=model))

# DELTA: each output holds only what is new since the last one.
params = SamplingParams(temperature=0, max_tokens=24, output_kind=RequestOutputKind.DELTA)
collectors = [
    engine.add_request("rivers", "The longest rivers are", params),
    engine.add_request("cities", "The largest cities are", params),
]
while engine.has_unfinished_requests():
    engine.step()
    for collector in collectors:
        output = collector.get_nowait()
        if output is None:
            continue
        answer = output.outputs[0]
        print(f"{output.request_id}: {answer.text!r}")
        if output.finished:
            print(f"{output.request_id} ended: {answer.finish_reason}")
engine.close()
