#include <cmath>

#include "kernels/declarations.h"
#include "kernels/rows.h"
#include "kernels/simd.h"
#include "program/packing.h"

namespace octavo::OCTAVO_ISA {

void embedding(const Embedding& instruction, const Step& step, Worker& worker) {
    const Range tokens = share(step.num_tokens, worker);
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        const int64_t last = instruction.num_rows - 1;
        const int64_t id = smaller(larger<int64_t>(step.token_ids[t], 0), last);
        const uint8_t* row = instruction.table + id * instruction.row_bytes;
        float* out = step.row(instruction.out, t);
        dequantize_row(instruction.format, row, instruction.k, out);
        scale_row(out, instruction.k, instruction.scale);
    }
}

void replace_rows(const ReplaceRows& instruction, const Step& step, Worker& worker) {
    const RowsInput& given = step.rows_inputs.data()[instruction.input];
    const Range tokens = share(step.num_tokens, worker);
    const int64_t width = instruction.x.num_columns, num_bytes = width * sizeof(float);
    if (step.row(instruction.x, 0) != step.row(instruction.out, 0)) {
        for (int64_t t = tokens.begin; t < tokens.end; ++t) {
            __builtin_memcpy(step.row(instruction.out, t), step.row(instruction.x, t), num_bytes);
        }
    }
    for (int64_t i = 0; i < given.num_rows && given.indices[i] < tokens.end; ++i) {
        if (given.indices[i] >= tokens.begin) {
            __builtin_memcpy(step.row(instruction.out, given.indices[i]), given.values + i * width,
                             num_bytes);
        }
    }
}

// Angles are float32 products, as in the code that models are trained with.
void rope_angles(const RopeAngles& instruction, const Step& step, Worker& worker) {
    const int64_t num_frequencies = instruction.frequencies.size();
    const float* frequencies = instruction.frequencies.data();
    const Range angles = share(step.num_tokens * num_frequencies, worker);
    for (int64_t i = angles.begin; i < angles.end; ++i) {
        const int64_t t = i / num_frequencies, frequency = i % num_frequencies;
        const float angle = static_cast<float>(step.positions[t]) * frequencies[frequency];
        float* cosines = step.row(instruction.out, t);
        cosines[frequency] = std::cos(angle) * instruction.magnitude;
        cosines[num_frequencies + frequency] = std::sin(angle) * instruction.magnitude;
    }
}

void rms_norm(const RmsNorm& instruction, const Step& step, Worker& worker) {
    const int64_t size = instruction.size, num_heads = instruction.x.num_columns / size;
    const Range heads = share(step.num_tokens * num_heads, worker);
    for (int64_t i = heads.begin; i < heads.end; ++i) {
        const int64_t t = i / num_heads, column = i % num_heads * size;
        const float* residual =
            instruction.residual.exists() ? step.row(instruction.residual, t) + column : nullptr;
        norm_row(step.row(instruction.x, t) + column, instruction.weight, size, instruction.eps, residual,
                 step.row(instruction.out, t) + column);
    }
}

void activate_and_mul(const ActivateAndMul& instruction, const Step& step, Worker& worker) {
    const int64_t size = instruction.x.num_columns / 2;
    const Range tokens = share(step.num_tokens, worker);
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        const float* gate = step.row(instruction.x, t);
        activate_and_mul_row(instruction.activation, gate, gate + size, size, step.row(instruction.out, t));
    }
}

void rope(const Rope& instruction, const Step& step, Worker& worker) {
    const int64_t head_size = instruction.head_size, num_heads = instruction.x.num_columns / head_size;
    const Range heads = share(step.num_tokens * num_heads, worker);
    for (int64_t i = heads.begin; i < heads.end; ++i) {
        const int64_t t = i / num_heads, column = i % num_heads * head_size;
        rope_head(step.row(instruction.x, t) + column, step.row(instruction.angles, t), instruction.style,
                  instruction.head_size, instruction.rotary_size, 1.0f,
                  step.row(instruction.out, t) + column);
    }
}

}  // namespace octavo::OCTAVO_ISA
