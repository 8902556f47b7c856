#include "program/kv_cache.h"

#include <cstring>

namespace octavo {

namespace {

// The bytes of a page that one KV head needs.
int64_t share_bytes(const KVCache& shape) {
    return shape.block_size * kv_head_bytes(shape.type, shape.head_size);
}

}  // namespace

int64_t kv_head_bytes(KVType type, int head_size) {
    const int64_t scale_bytes = type == KVType::fp8_e4m3 ? sizeof(float) : 0;
    return 2 * (head_size * number_bytes(type) + scale_bytes);
}

int64_t kv_page_bytes(const KVCache& shape) {
    return shape.num_kv_heads * share_bytes(shape);
}

KVPages::KVPages(int num_pages, int64_t num_blocks, int64_t page_bytes)
    : num_pages_(num_pages),
      num_blocks_(num_blocks),
      page_bytes_(page_bytes),
      memory_(num_pages * num_blocks * page_bytes) {}

KVCache KVPages::layer(const KVCache& shape, int page) const {
    KVCache found = shape;
    found.data = page_of(0, page);
    found.num_blocks = num_blocks_;
    found.page_bytes = page_bytes_;
    found.share_bytes = share_bytes(shape);
    return found;
}

void KVPages::zero(int64_t block) {
    for (int page = 0; page < num_pages_; ++page) {
        std::memset(page_of(block, page), 0, page_bytes_);
    }
}

void KVPages::copy(int64_t source, int64_t destination) {
    for (int page = 0; page < num_pages_; ++page) {
        std::memcpy(page_of(destination, page), page_of(source, page), page_bytes_);
    }
}

}  // namespace octavo
