"""The free queue: an order, and removal from anywhere."""

import random

import pytest

from octavo.kv_cache.block import FreeKVCacheBlockQueue, KVCacheBlock


def make_queue(num_blocks: int) -> tuple[FreeKVCacheBlockQueue, list[KVCacheBlock]]:
    blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
    return FreeKVCacheBlockQueue(blocks), blocks


def ids(queue: FreeKVCacheBlockQueue) -> list[int]:
    return [block.block_id for block in queue]


def test_blocks_leave_in_the_order_in_which_they_came() -> None:
    queue, _ = make_queue(4)
    assert queue.popleft().block_id == 0
    assert [block.block_id for block in queue.popleft_n(2)] == [1, 2]
    assert ids(queue) == [3]


def test_taking_from_an_empty_queue_is_a_value_error() -> None:
    queue, _ = make_queue(1)
    queue.popleft()
    with pytest.raises(ValueError, match="cannot take 1 free blocks: there are 0"):
        queue.popleft()


def test_taking_more_than_there_are_takes_none() -> None:
    queue, _ = make_queue(3)
    with pytest.raises(ValueError, match="cannot take 4 free blocks: there are 3"):
        queue.popleft_n(4)
    assert ids(queue) == [0, 1, 2]
    assert len(queue) == 3


def test_taking_nothing_changes_nothing() -> None:
    queue, _ = make_queue(2)
    assert queue.popleft_n(0) == []
    assert ids(queue) == [0, 1]


@pytest.mark.parametrize("index", [0, 2, 4])
def test_a_block_can_be_removed_from_either_end_and_from_the_middle(index: int) -> None:
    queue, blocks = make_queue(5)
    queue.remove(blocks[index])
    assert ids(queue) == [block_id for block_id in range(5) if block_id != index]
    assert len(queue) == 4


def test_removing_a_block_that_is_not_in_the_queue_is_a_value_error() -> None:
    queue, blocks = make_queue(2)
    queue.remove(blocks[0])
    with pytest.raises(ValueError, match="not in the free queue"):
        queue.remove(blocks[0])
    with pytest.raises(ValueError, match="not in the free queue"):
        queue.remove(KVCacheBlock(7))
    assert ids(queue) == [1]


def test_removal_looks_at_no_other_block_than_the_neighbours() -> None:
    queue, blocks = make_queue(100)
    far = [block for block in blocks if not 49 <= block.block_id <= 51]
    links = [(block.prev_free, block.next_free) for block in far]
    for block in far:  # a walk over the list would trip over these
        block.prev_free = block.next_free = None
    queue.remove(blocks[50])
    for block, (before, after) in zip(far, links, strict=True):
        block.prev_free, block.next_free = before, after
    assert ids(queue) == [*range(50), *range(51, 100)]


def test_appended_blocks_go_to_the_back_and_prepended_ones_to_the_front_both_in_their_order() -> None:
    queue, blocks = make_queue(4)
    taken = queue.popleft_n(4)
    assert taken == blocks
    queue.append_n(blocks[:1])
    queue.append_n([])
    queue.append_n([blocks[2], blocks[1]])
    queue.prepend_n([])
    queue.prepend_n([blocks[3]])
    assert ids(queue) == [3, 0, 2, 1]
    queue.popleft_n(4)
    queue.prepend_n([blocks[2], blocks[0]])
    assert ids(queue) == [2, 0]


def test_any_series_of_operations_agrees_with_a_plain_list() -> None:
    rng = random.Random(7)
    queue, blocks = make_queue(12)
    model, out = list(blocks), []
    for _ in range(2000):
        action = rng.randrange(4)
        if action == 0 and model:
            count = rng.randint(0, len(model))
            assert queue.popleft_n(count) == model[:count]
            out += model[:count]
            del model[:count]
        elif action == 1 and model:
            block = rng.choice(model)
            queue.remove(block)
            model.remove(block)
            out.append(block)
        elif out:
            rng.shuffle(out)
            back, out = out[: len(out) // 2 + 1], out[len(out) // 2 + 1 :]
            if action == 2:
                queue.append_n(back)
                model += back
            else:
                queue.prepend_n(back)
                model = back + model
        assert list(queue) == model
        assert len(queue) == queue.num_free_blocks == len(model)
