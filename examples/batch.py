"""Many prompts in one call: they run together, and share the work of every step."""

import sys

from octavo import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
prompts = ["The capital of France is", "Water boils at", "The largest planet is"]
params = SamplingParams(temperature=0, max_tokens=12)

with LLM(model) as llm:
    # Outputs are in the order of the prompts. A list of SamplingParams gives each prompt its own.
    for output in llm.generate(prompts, params):
        answer = output.outputs[0]
        print(f"{output.prompt}{answer.text}  [{answer.finish_reason}]")

    # Two answers to one prompt. The seed makes them the same in every run.
    several = SamplingParams(n=2, temperature=0.8, seed=7, max_tokens=12)
    for answer in llm.generate("My favourite colour is", several)[0].outputs:
        print(f"answer {answer.index}: {answer.text}")
