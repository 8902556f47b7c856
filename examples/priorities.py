"""Urgent requests first: the priority policy, and a deadline."""

import sys

from octavo import LLM, RequestError, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
params = SamplingParams(temperature=0, max_tokens=8)
prompts = ["A report about rain:", "A report about snow:", "Urgent! The fire brigade's number is"]

# One request at a time, so that the order shows. A lower number is more urgent. For every `priority_aging_s`
# seconds that a request waits, it becomes more urgent by one level, so none waits for ever.
with LLM(model, max_num_seqs=1, scheduling_policy="priority", priority_aging_s=60) as llm:
    outputs = llm.generate(prompts, params, priority=[5, 5, 0], use_tqdm=False)
    for output in sorted(outputs, key=lambda output: output.metrics.finished_time or 0):
        print(f"{output.prompt}{output.outputs[0].text}")

    # A request whose deadline cannot be met at the speed measured so far is refused at once.
    try:
        llm.generate(prompts[0], SamplingParams(max_tokens=400), deadline_s=0.001, use_tqdm=False)
    except RequestError as error:
        print(f"refused: {error}")
