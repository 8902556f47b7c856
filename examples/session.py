"""A session: you and the model write one text in turns, and nothing of it is computed twice."""

import sys

from octavo import LLM, RequestOutputKind, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
params = SamplingParams(temperature=0, max_tokens=8)

with LLM(model) as llm, llm.session() as session:
    # One turn: wait for its whole answer.
    print(session.generate("The capital of France is", params).outputs[0].text)

    # Another turn, read as it is generated. Its prompt comes after the first turn's answer.
    delta = SamplingParams(temperature=0, max_tokens=8, output_kind=RequestOutputKind.DELTA)
    session.append(" And the capital of Italy is", delta)
    for output in session.stream():
        print(output.outputs[0].text, end="", flush=True)
    print()
