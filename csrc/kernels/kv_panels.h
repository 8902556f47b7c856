// Where the numbers of a KV cache lie: the layout of KVCache (program/instructions.h) as addresses.
#pragma once

#include "kernels/simd.h"
#include "program/instructions.h"

namespace octavo::OCTAVO_ISA {

constexpr int KV_PANEL = 16;  // tokens whose K lie side by side, one a lane; a block holds whole panels

// How many numbers of one lane lie side by side: of a token in K, of neighbouring tokens in V.
template <class Number>
constexpr int NEIGHBOURS = sizeof(Number) == 4 ? 1 : 2;

// K and V of 16 tokens of one KV head.
//   keys    [head_size / NEIGHBOURS][16 tokens][NEIGHBOURS]
//   values  [16 tokens / NEIGHBOURS][head_size][NEIGHBOURS]
struct KVPanel {
    uint8_t* keys;
    uint8_t* values;
    float* key_scales;  // [16], as value_scales; null for types that have none
    float* value_scales;
};

// The panel whose first token is `offset` tokens into its block.
OCTAVO_INLINE KVPanel kv_panel(const KVCache& cache, int64_t block, int offset, int kv_head) {
    const int64_t token_bytes = cache.head_size * number_bytes(cache.type);
    uint8_t* keys = cache.data + block * cache.page_bytes + kv_head * cache.share_bytes;
    uint8_t* values = keys + cache.block_size * token_bytes;
    KVPanel panel{keys + offset * token_bytes, values + offset * token_bytes, nullptr, nullptr};
    if (cache.type == KVType::fp8_e4m3) {
        panel.key_scales = reinterpret_cast<float*>(values + cache.block_size * token_bytes) + offset;
        panel.value_scales = panel.key_scales + cache.block_size;
    }
    return panel;
}

}  // namespace octavo::OCTAVO_ISA
