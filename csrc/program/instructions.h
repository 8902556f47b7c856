// The instructions of a program: one record for each kernel call. Plain data, which kernels read.
//
// Numbers between instructions are float32 in buffers [rows, columns], one row for each token of the step.
// Where a buffer lies depends on how many rows the step has, so instructions name buffers and a `Step` finds
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/formats.h"
#include "platform/dcheck.h"
#include "platform/inline.h"

namespace octavo {

// Columns `column` up to `column + num_columns` of every row of a buffer.
struct View {
    int buffer = -1;  // -1: there is none
    int column = 0;
    int num_columns = 0;

    OCTAVO_INLINE bool exists() const { return buffer >= 0; }
};

// A matrix [n, k] (out, in) as `pack_panels` left it.
struct PackedMatrix {
    Format format;
    int64_t n, k;
    const uint8_t* data;
    int64_t panel_stride;  // bytes from one panel to the next; more than a panel's size where two matrices
                           // alternate
    const float* bias;     // [n], or null
};

// out[t] = row token_ids[t] of the table, which is as it lies in its file, times `scale`. Ids are clipped to
// the table.
struct Embedding {
    Format format;
    const uint8_t* table;
    int64_t num_rows, row_bytes, k;
    float scale;
    View out;
};

// out = x, except that the rows of the step's rows input `input` replace rows of x. Costs nothing if the step
// has no such rows and `out` lies where `x` does.
struct ReplaceRows {
    View x;
    int input;
    View out;
};

// out[t] = cos of every angle, then sin of every angle, times `magnitude`; angle i is positions[t] *
// frequencies[i].
struct RopeAngles {
    std::vector<float> frequencies;
    float magnitude;
    View out;  // [T, 2 * frequencies]
};

// out = x / sqrt(mean(x^2) + eps) * weight, over each head of `weight`'s size (a row may hold several), plus
// residual.
struct RmsNorm {
    View x;
    const float* weight;  // [size]
    int size;
    float eps;
    View residual;
    View out;
};

// The RMS norm that a linear map applies to its input first; weight null: none.
struct InputNorm {
    const float* weight = nullptr;
    float eps = 0;
};

enum class Activation { none, silu, gelu_tanh };

// out = norm(x) times the stacked parts, plus biases, plus residual.
// With an activation there are two parts of one n, gate and up, and out = activation(gate) * up.
struct Linear {
    View x;
    InputNorm norm;
    std::vector<PackedMatrix> parts;
    Activation activation;
    View residual;
    View out;

    OCTAVO_INLINE bool gated() const { return activation != Activation::none; }
};

// out = activation(first half of x) * second half.
struct ActivateAndMul {
    View x;
    Activation activation;
    View out;
};

enum class RopeStyle { none, half, interleaved };

// Turn each head of x by the angles: features from `rotary_size` on stay. Angles as RopeAngles leaves them.
struct Rope {
    View x, angles;
    RopeStyle style;
    int head_size, rotary_size;
    View out;
};

enum class KVType { bf16, f32, fp8_e4m3 };

// Of a number of K or V.
OCTAVO_INLINE constexpr int64_t number_bytes(KVType type) {
    return type == KVType::f32 ? 4 : type == KVType::bf16 ? 2 : 1;
}

constexpr int MAX_HEAD_SIZE = 256;  // that a cache may have: kernels keep a few heads in fixed buffers

// One layer's KV cache. Block b has a page at data + b * page_bytes; KV head h's share of it begins
// share_bytes * h further, K before V:
//
//   bf16, fp8_e4m3   K [block_size / 16][head_size / 2][16 tokens][2]  V [block_size / 2][head_size][2 tokens]
//   f32              K [block_size / 16][head_size][16 tokens]         V [block_size][head_size]
//
// For fp8_e4m3 the scales follow, float32: of K [block_size], of V [block_size]. A number is scale * fp8.
struct KVCache {
    KVType type;
    uint8_t* data;
    int64_t num_blocks, page_bytes, share_bytes;  // the heads' shares may end before the page does
    int block_size;                               // a multiple of 16
    int num_kv_heads, head_size;
};

// Put this step's k and v into the cache, at the step's slots, and q times `scale` into `out`. Both q and k
// are turned first unless style is none.
struct AttentionInputs {
    View q, k, v, angles;
    RopeStyle style;
    int rotary_size;
    int num_heads;
    float scale;
    KVCache cache;
    int group;  // which of the step's attention groups
    View out;   // [T, num_heads * head_size]: turned and scaled q, still float32
};

// Each token attends to its request's tokens in the cache, up to itself if causal, otherwise to all of them.
struct Attention {
    View q;  // as AttentionInputs left it
    KVCache cache;
    int group;
    int num_heads;
    bool causal;
    int window;          // sees the last `window` tokens, itself included; 0: all
    float soft_cap;      // score = soft_cap * tanh(score / soft_cap); 0: none
    const float* sinks;  // [num_heads]: logits that take part in the softmax and have no value; null: none
    View out;            // [T, num_heads * head_size]
};

// Every instruction: its record and its name, which is that of its kernel and of its method in Python. From
// this list come the variant below, the declarations and the table of kernels, the call of each kernel and
// the bindings.
#define OCTAVO_INSTRUCTIONS(X)           \
    X(Embedding, embedding)              \
    X(ReplaceRows, replace_rows)         \
    X(RopeAngles, rope_angles)           \
    X(RmsNorm, rms_norm)                 \
    X(Linear, linear)                    \
    X(ActivateAndMul, activate_and_mul)  \
    X(Rope, rope)                        \
    X(AttentionInputs, attention_inputs) \
    X(Attention, attention)

template <class, class... Records>
struct VariantOf {
    using Type = std::variant<Records...>;
};

#define OCTAVO_RECORD(Record, kernel) , Record
using Instruction = VariantOf<void OCTAVO_INSTRUCTIONS(OCTAVO_RECORD)>::Type;
#undef OCTAVO_RECORD

// How a step's tokens lie in the blocks of one KV cache group. Arrays belong to the caller.
struct AttentionGroup {
    int num_reqs;
    int64_t block_table_stride;
    const int32_t* query_start_loc;  // [num_reqs + 1]
    const int32_t* seq_lens;         // [num_reqs]
    const int32_t* block_table;      // [num_reqs, block_table_stride]
    const int64_t* slot_mapping;     // [T]; -1: nowhere
    int num_common_tokens;           // whole blocks that all requests begin with, computed before the step
};

// Rows of numbers that a step brings for some of its tokens. Arrays belong to the caller.
struct RowsInput {
    int64_t num_rows;        // 0: the step brings none
    const int64_t* indices;  // [num_rows]: tokens of the step, rising
    const float* values;     // [num_rows, columns]
};

struct Buffer {
    float* data;
    int64_t stride;  // numbers from one row to the next
};

// What changes from step to step.
struct Step {
    int64_t num_tokens;
    const int32_t* token_ids;  // [T]
    const int64_t* positions;  // [T]
    std::vector<AttentionGroup> groups;
    std::vector<RowsInput> rows_inputs;
    std::vector<Buffer> buffers;
    // Seen by all threads, a multiple of 64. Its content does not survive an instruction.
    uint8_t* shared_scratch;
    int64_t shared_scratch_bytes;

    OCTAVO_INLINE float* row(const View& view, int64_t t) const {
        OCTAVO_DCHECK(0 <= view.buffer && view.buffer < static_cast<int>(buffers.size()));
        const Buffer& buffer = buffers[view.buffer];
        OCTAVO_DCHECK(0 <= t && t < num_tokens && view.column + view.num_columns <= buffer.stride);
        return buffer.data + t * buffer.stride + view.column;
    }
};

}  // namespace octavo
