"""Tables of what requests have seen, as `Penalties` takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np


def penalty_tables(
    histories: Sequence[tuple[Sequence[int], Sequence[int]]], num_token_ids: int
) -> dict[str, np.ndarray]:
    """`seen`, `num_seen` and `counts`: a row for each (prompt, output)."""
    seen = np.full((len(histories), num_token_ids), -1, np.int32)
    num_seen = np.zeros(len(histories), np.int64)
    counts = np.zeros((len(histories), num_token_ids), np.int32)
    for row, (prompt, output) in enumerate(histories):
        used = Counter(output)
        tokens = sorted({*prompt, *output}, reverse=True)
        seen[row, : len(tokens)] = tokens
        num_seen[row] = len(tokens)
        counts[row, tokens] = [1 + used[token] for token in tokens]
    return {"seen": seen, "num_seen": num_seen, "counts": counts}
