#include "program/kv_cache.h"

#include <cstring>

namespace octavo {

namespace {

KVCache with_page_bytes(KVCache shape) {
    shape.page_bytes = shape.block_size * kv_head_bytes(shape.type, shape.head_size);
    return shape;
}

}  // namespace

int64_t kv_head_bytes(KVType type, int head_size) {
    const int64_t scale_bytes = type == KVType::fp8_e4m3 ? sizeof(float) : 0;
    return 2 * (head_size * number_bytes(type) + scale_bytes);
}

KVCacheGroup::KVCacheGroup(const KVCache& shape, int num_layers)
    : shape_(with_page_bytes(shape)), num_layers_(num_layers), memory_(num_bytes()) {
    shape_.data = memory_.data();
}

KVCache KVCacheGroup::layer(int layer) const {
    KVCache found = shape_;
    found.data += layer * layer_bytes();
    return found;
}

void KVCacheGroup::zero(int64_t block) {
    for (int layer = 0; layer < num_layers_; ++layer) {
        std::memset(shape_.data + layer * layer_bytes() + block * block_bytes(), 0, block_bytes());
    }
}

}  // namespace octavo
