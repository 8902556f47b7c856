"""`LogitsAdjustments`: changes that features make to a step's logits before sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.types.sampling import LogitBias, Penalties, SamplingMetadata, TokenLists


class LogitsAdjustments:
    """Collects the adjustments of all features for the L rows of logits of one step. Mutable.

    Several features may restrict and bias one row: a token is allowed if every feature allows it, and biases
    add up. An adjustment that no feature makes takes no memory and no time. `row` is an index among the L
    rows.
    """

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._num_rows = num_rows
        self._vocab_size = vocab_size
        self._allowed: np.ndarray | None = None  # [L, ceil(V / 32)] uint32
        self._biases: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}  # row → (token ids, values)
        self._penalties: Penalties | None = None

    def allow_only(self, row: int, words: np.ndarray) -> None:
        """Forbid all tokens whose bits are clear in `words` [ceil(V / 32)] uint32.

        Token t is bit t % 32 of word t // 32.
        """
        self._mask()[row] &= words

    def forbid(self, row: int, token_ids: Sequence[int] | np.ndarray) -> None:
        """Forbid tokens of the vocabulary."""
        ids = np.asarray(token_ids, np.int64)
        np.bitwise_and.at(self._mask()[row], ids // 32, ~(np.uint32(1) << (ids % 32).astype(np.uint32)))

    def add_bias(self, row: int, token_ids: np.ndarray, values: np.ndarray) -> None:
        """Add `values` [k] float32 to the logits of `token_ids` [k] int32."""
        self._biases.setdefault(row, []).append((token_ids, values))

    def penalize(self, penalties: Penalties) -> None:
        """Penalize the tokens that rows have seen. At most one feature may call this in a step."""
        assert self._penalties is None, "two features penalize tokens"
        self._penalties = penalties

    def apply_to(self, metadata: SamplingMetadata) -> SamplingMetadata:
        """Return the same metadata with these adjustments."""
        if self._allowed is None and not self._biases and self._penalties is None:
            return metadata
        return SamplingMetadata(
            temperature=metadata.temperature,
            top_k=metadata.top_k,
            top_p=metadata.top_p,
            min_p=metadata.min_p,
            seeds=metadata.seeds,
            positions=metadata.positions,
            num_logprobs=metadata.num_logprobs,
            allowed=self._allowed,
            bias=self._make_bias(),
            penalties=self._penalties,
        )

    def _mask(self) -> np.ndarray:
        if self._allowed is None:
            self._allowed = np.full((self._num_rows, num_mask_words(self._vocab_size)), 2**32 - 1, np.uint32)
        return self._allowed

    def _make_bias(self) -> LogitBias | None:
        if not self._biases:
            return None
        offsets = np.zeros(self._num_rows + 1, np.int64)
        token_ids, values = [], []
        for row in sorted(self._biases):
            for ids, added in self._biases[row]:
                offsets[row + 1] += len(ids)
                token_ids.append(ids)
                values.append(added)
        tokens = TokenLists(offsets.cumsum(), np.concatenate(token_ids, dtype=np.int32))
        return LogitBias(tokens, np.concatenate(values, dtype=np.float32))


def num_mask_words(vocab_size: int) -> int:
    """Return the number of 32-bit words in a mask over the vocabulary."""
    return -(-vocab_size // 32)


def make_mask(token_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """Return the mask that allows only `token_ids`: [ceil(V / 32)] uint32."""
    words = np.zeros(num_mask_words(vocab_size), np.uint32)
    ids = np.asarray(token_ids, np.int64)
    np.bitwise_or.at(words, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
    return words
