"""`Retention`: what stays in the prefix cache of blocks that their request can see no longer."""

from __future__ import annotations

from typing import Any

from octavo.kv_cache.single_type_kv_cache_manager import SingleTypeKVCacheManager


class Retention:
    """Everything, or only what a sequence needs that goes on after the prompt or after certain lengths.

    What has slid out of a window is of use to others only together with the rest of that window. Forgotten,
    it is the first memory to be reused; kept, it stays as long as what was used about as recently.
    """

    def __init__(self, interval: int | None, block_size: int) -> None:
        """Keep what goes on after each multiple of `interval` tokens (0: of none); None = keep everything."""
        self.interval = interval
        self.block_size = block_size

    def keeps(self, manager: SingleTypeKVCacheManager[Any], index: int, num_prompt_tokens: int) -> bool:
        """Whether block `index` of a request with such a prompt is to stay cached."""
        if self.interval is None:
            return True
        end = (index + 1) * self.block_size
        lengths = [num_prompt_tokens - 1]  # the last token is run again, whatever is cached
        if self.interval:
            lengths.append(-(-end // self.interval) * self.interval)
        whole = [length // self.block_size * self.block_size for length in lengths]
        return any(end <= length and manager.num_skipped_blocks(length) <= index for length in whole)
