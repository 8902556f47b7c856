"""Log-probabilities of prompt tokens (`SamplingParams.prompt_logprobs`).

Only a worker half: a request that wants them does not read the prefix cache, which `SamplingParams` says
itself.
"""
