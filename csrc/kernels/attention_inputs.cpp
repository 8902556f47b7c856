// What attention reads: turned and scaled queries in a buffer, turned K and V in the cache.
#include "kernels/declarations.h"
#include "kernels/fp8.h"
#include "kernels/kv_panels.h"
#include "kernels/rows.h"

namespace octavo::OCTAVO_ISA {

namespace {

// Write x [size] as the cache's numbers. Returns their scale.
float encode(const float* x, int size, float* out) {
    __builtin_memcpy(out, x, size * sizeof(float));
    return 1.0f;
}

float encode(const float* x, int size, uint16_t* out) {
    round_row(x, size, size, out);
    return 1.0f;
}

float encode(const float* x, int size, uint8_t* out) {
    constexpr float LARGEST = 0x1p127f;          // far enough from infinity for what is rounded later
    constexpr float SMALLEST_SCALE = 0x1p-126f;  // of the scales with full precision
    f32x16 maximum = zeros();
    for (int i = 0; i < size; i += LANES) {
        maximum = max(abs(load(x + i)), maximum);  // in this order, so that NaN is passed over
    }
    const float scale = larger(smaller(reduce_max(maximum), LARGEST) / LARGEST_FP8, SMALLEST_SCALE);
    for (int i = 0; i < size; ++i) {
        out[i] = to_fp8(x[i] / scale);
    }
    return scale;
}

// Put one token's k and v, [head_size] each, into its lane of a panel.
template <class Number>
void put(const float* k, const float* v, int head_size, const KVPanel& panel, int lane) {
    constexpr int WIDTH = NEIGHBOURS<Number>;
    Number numbers[MAX_HEAD_SIZE];
    const float key_scale = encode(k, head_size, numbers);
    Number* keys = reinterpret_cast<Number*>(panel.keys) + lane * WIDTH;
    for (int d = 0; d < head_size; d += WIDTH) {
        __builtin_memcpy(keys + d * KV_PANEL, numbers + d, WIDTH * sizeof(Number));
    }
    const float value_scale = encode(v, head_size, numbers);
    Number* values =
        reinterpret_cast<Number*>(panel.values) + lane / WIDTH * head_size * WIDTH + lane % WIDTH;
    for (int d = 0; d < head_size; ++d) {
        values[d * WIDTH] = numbers[d];
    }
    if (panel.key_scales != nullptr) {
        panel.key_scales[lane] = key_scale;
        panel.value_scales[lane] = value_scale;
    }
}

using Put = void (*)(const float*, const float*, int, const KVPanel&, int);

Put put_for(KVType type) {
    switch (type) {
        case KVType::bf16:
            return put<uint16_t>;
        case KVType::f32:
            return put<float>;
        default:
            return put<uint8_t>;
    }
}

// Put k and v of token `t` of the step into the cache.
void write_cache(const AttentionInputs& instruction, const Step& step, int64_t t, int kv_head, int64_t slot) {
    const KVCache& cache = instruction.cache;
    const int size = cache.head_size, lane = static_cast<int>(slot % KV_PANEL);
    const int offset = static_cast<int>(slot % cache.block_size);
    const KVPanel panel = kv_panel(cache, slot / cache.block_size, offset - lane, kv_head);
    const float* angles = instruction.style == RopeStyle::none ? nullptr : step.row(instruction.angles, t);
    float k[MAX_HEAD_SIZE];
    rope_head(step.row(instruction.k, t) + kv_head * size, angles, instruction.style, size,
              instruction.rotary_size, 1.0f, k);
    put_for(cache.type)(k, step.row(instruction.v, t) + kv_head * size, size, panel, lane);
}

// Turn and scale the query heads that share a KV head.
void write_queries(const AttentionInputs& instruction, const Step& step, int64_t t, int kv_head) {
    const int size = instruction.cache.head_size;
    const int num_heads = instruction.num_heads / instruction.cache.num_kv_heads;
    const float* angles = instruction.style == RopeStyle::none ? nullptr : step.row(instruction.angles, t);
    for (int head = kv_head * num_heads; head < (kv_head + 1) * num_heads; ++head) {
        rope_head(step.row(instruction.q, t) + head * size, angles, instruction.style, size,
                  instruction.rotary_size, instruction.scale, step.row(instruction.out, t) + head * size);
    }
}

void write(const AttentionInputs& instruction, const Step& step, int64_t t, int kv_head) {
    write_queries(instruction, step, t, kv_head);
    const int64_t slot = step.groups.data()[instruction.group].slot_mapping[t];
    if (slot >= 0) {
        write_cache(instruction, step, t, kv_head, slot);
    }
}

}  // namespace

void attention_inputs(const AttentionInputs& instruction, const Step& step, Worker& worker) {
    const int num_kv_heads = instruction.cache.num_kv_heads;
    if (step.num_tokens < MIN_QUEUE_ROWS) {
        const Range heads = share(step.num_tokens * num_kv_heads, worker);
        for (int64_t i = heads.begin; i < heads.end; ++i) {
            write(instruction, step, i / num_kv_heads, static_cast<int>(i % num_kv_heads));
        }
        return;
    }
    // Neighbours in a panel share the cache lines of its K.
    const int64_t total = (step.num_tokens + KV_PANEL - 1) / KV_PANEL;
    WorkQueue queue(worker, total);
    for (int64_t item; (item = queue.next()) < total;) {
        const int64_t end = smaller((item + 1) * KV_PANEL, step.num_tokens);
        for (int64_t t = item * KV_PANEL; t < end; ++t) {
            for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
                write(instruction, step, t, kv_head);
            }
        }
    }
}

}  // namespace octavo::OCTAVO_ISA
