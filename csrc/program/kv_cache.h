// K and V of all layers of one KV cache group: one block of memory, a layer after the other.
#pragma once

#include <cstdint>

#include "platform/memory.h"
#include "program/instructions.h"

namespace octavo {

// Bytes of one token's K and V in one KV head of one layer, with their scales for fp8_e4m3.
int64_t kv_head_bytes(KVType type, int head_size);

class KVCacheGroup {
  public:
    // `shape` without data and page_bytes, which are found here. Memory begins zeroed. Throws std::bad_alloc.
    KVCacheGroup(const KVCache& shape, int num_layers);

    const KVCache& shape() const { return shape_; }

    int num_layers() const { return num_layers_; }

    int64_t num_bytes() const { return num_layers_ * layer_bytes(); }

    // Layer `layer` of the group, as instructions name it.
    KVCache layer(int layer) const;

    // Set K and V of `block` to zero in every layer.
    void zero(int64_t block);

  private:
    int64_t block_bytes() const { return shape_.num_kv_heads * shape_.page_bytes; }

    int64_t layer_bytes() const { return shape_.num_blocks * block_bytes(); }

    KVCache shape_;
    int num_layers_;
    Memory memory_;
};

}  // namespace octavo
