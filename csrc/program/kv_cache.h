// The memory of a KV cache: pages of one size, which layers of every kind share.
#pragma once

#include <cstdint>

#include "platform/memory.h"
#include "program/instructions.h"

namespace octavo {

// Bytes of one token's K and V in one KV head of one layer, with their scales for fp8_e4m3.
int64_t kv_head_bytes(KVType type, int head_size);

// The bytes of a page that a layer of `shape` needs.
int64_t kv_page_bytes(const KVCache& shape);

// A block is `num_pages` pages, one for each layer of the group that it serves; each time it is allocated, it
// may serve another group with layers of another shape. So a page may hold anything where a layer has not
// written.
class KVPages {
  public:
    // Memory begins zeroed. Throws std::bad_alloc.
    KVPages(int num_pages, int64_t num_blocks, int64_t page_bytes);

    uint8_t* data() { return memory_.data(); }

    int num_pages() const { return num_pages_; }

    int64_t num_blocks() const { return num_blocks_; }

    int64_t page_bytes() const { return page_bytes_; }

    // The cache of a layer whose pages are page `page` of each block: `shape`, completed.
    KVCache layer(const KVCache& shape, int page) const;

    // Set all pages of `block` to zero.
    void zero(int64_t block);

    // Copy all pages of block `source` to block `destination`, which is another.
    void copy(int64_t source, int64_t destination);

  private:
    uint8_t* page_of(int64_t block, int page) const {
        return memory_.data() + (page * num_blocks_ + block) * page_bytes_;
    }

    int num_pages_;
    int64_t num_blocks_, page_bytes_;
    Memory memory_;
};

}  // namespace octavo
