"""A conversation: messages go in, and the model's chat template makes a prompt of them."""

import sys

from octavo import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
params = SamplingParams(temperature=0, max_tokens=40)
questions = ["Name three rivers in Europe.", "Which of them is the longest?"]
messages: list[dict[str, str]] = []

with LLM(model) as llm:
    for question in questions:
        messages.append({"role": "user", "content": question})
        # The prefix cache still holds the earlier messages, so only the new ones are computed.
        output = llm.chat(messages, params, use_tqdm=False)[0]
        answer = output.outputs[0].text
        print(f"{question}\n{answer}\n({output.num_cached_tokens} tokens were in the prefix cache)\n")
        messages.append({"role": "assistant", "content": answer})
