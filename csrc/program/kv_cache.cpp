#include "program/kv_cache.h"

#include <cstring>
#include <new>

namespace octavo {

namespace {

KVCache with_page_bytes(KVCache shape) {
    shape.page_bytes = kv_page_bytes(shape.type, shape.block_size, shape.head_size);
    return shape;
}

}  // namespace

int64_t kv_page_bytes(KVType type, int block_size, int head_size) {
    const int64_t num_elements = 2 * static_cast<int64_t>(block_size) * head_size;
    switch (type) {
        case KVType::bf16:
            return num_elements * 2;
        case KVType::f32:
            return num_elements * 4;
        case KVType::fp8_e4m3:
            return num_elements + 2 * static_cast<int64_t>(block_size) * sizeof(float);
    }
    return 0;
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
