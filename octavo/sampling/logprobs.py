"""Log-probabilities (or logits) that are reported with a token."""

from __future__ import annotations

import numpy as np

from octavo.sampling.filters import most_likely
from octavo.types.sampling import TokenLogprobs

# logprobs_mode → (after adjustments, temperature and filters?, normalized to log-probabilities?)
LOGPROBS_MODES = {
    "raw_logprobs": (False, True),
    "raw_logits": (False, False),
    "processed_logprobs": (True, True),
    "processed_logits": (True, False),
}


def gather_logprobs(logits: np.ndarray, token_id: int, count: int, *, normalize: bool) -> TokenLogprobs:
    """Return the log-probabilities of `token_id` and of the `count` most likely tokens, from logits [V].

    With `normalize` off, return their logits instead. Likely tokens of logit -inf cannot be chosen and are
    not reported, so the result may have fewer than `count` of them.
    """
    chosen = logits[token_id]
    likely = most_likely(logits, count)
    ids = np.concatenate(([token_id], likely[logits[likely] > -np.inf]))
    values = logits[ids].astype(np.float64)
    if normalize:
        values -= _log_sum_exp(logits)
    return TokenLogprobs(
        token_ids=ids.tolist(), logprobs=values.tolist(), rank=int(np.count_nonzero(logits >= chosen))
    )


def _log_sum_exp(logits: np.ndarray) -> float:
    wide = logits.astype(np.float64)
    largest = wide.max()
    return float(largest + np.log(np.exp(wide - largest).sum()))
