"""`Retention`: which blocks stay cached after they have slid out of a window."""

from __future__ import annotations

from typing import Any

from octavo.kv_cache.single_type_kv_cache_manager import SingleTypeKVCacheManager


class Retention:
    """Keeps all blocks, or only the windows at the end of each prompt and at certain lengths.

    A block that has slid out of a window is of use only together with the rest of that window. A forgotten
    block is the first to be reused. A block that is kept is evicted in turn, the least recently used first.
    """

    def __init__(self, interval: int | None, block_size: int) -> None:
        """Keep a window at each multiple of `interval` tokens; 0 = at the end of prompts only, None = all."""
        self.interval = interval
        self.block_size = block_size

    def keeps(self, manager: SingleTypeKVCacheManager[Any], index: int, num_prompt_tokens: int) -> bool:
        """Whether block `index` stays cached, in a request whose prompt has `num_prompt_tokens` tokens."""
        if self.interval is None:
            return True
        end = (index + 1) * self.block_size
        lengths = [num_prompt_tokens - 1]  # a hit never covers the last token
        if self.interval:
            lengths.append(-(-end // self.interval) * self.interval)
        whole = [length // self.block_size * self.block_size for length in lengths]
        return any(end <= length and manager.num_skipped_blocks(length) <= index for length in whole)
