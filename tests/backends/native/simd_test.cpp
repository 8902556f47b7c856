// One operation of kernels/simd.h on vectors from standard input, for test_simd.py, which knows the right
// results.
//
//   simd_test OPERATION COUNT   reads COUNT vectors of 64 bytes for each of a, b and c; writes COUNT vectors
#include "kernels/simd.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace octavo::OCTAVO_ISA {

// The 64 bytes of one operand, as whatever the operation takes.
struct Operand {
    const uint8_t* bytes;

    template <class T>
    const T* as() const {
        return reinterpret_cast<const T*>(bytes);
    }

    f32x16 f32() const { return load(as<float>()); }

    i32x16 i32() const { return load(as<int32_t>()); }

    bytes64 u8() const { return load(bytes); }
};

// Where a result goes: numbers and shorter vectors are followed by zeros.
struct Result {
    uint8_t* bytes;

    void operator=(f32x16 x) const { store(reinterpret_cast<float*>(bytes), x); }

    void operator=(i32x16 x) const { store(reinterpret_cast<int32_t*>(bytes), x); }

    void operator=(bytes64 x) const { store(bytes, x); }

    void operator=(float x) const { std::memcpy(bytes, &x, sizeof x); }
};

constexpr uint8_t TABLE[16] = {7, 0, 255, 31, 4, 128, 127, 9, 80, 1, 2, 200, 33, 64, 16, 250};

struct Operation {
    const char* name;
    void (*run)(Operand a, Operand b, Operand c, Result out);
};

const Operation OPERATIONS[] = {
    {"add", [](Operand a, Operand b, Operand, Result out) { out = a.f32() + b.f32(); }},
    {"subtract", [](Operand a, Operand b, Operand, Result out) { out = a.f32() - b.f32(); }},
    {"multiply", [](Operand a, Operand b, Operand, Result out) { out = a.f32() * b.f32(); }},
    {"divide", [](Operand a, Operand b, Operand, Result out) { out = a.f32() / b.f32(); }},
    {"add_i32", [](Operand a, Operand b, Operand, Result out) { out = a.i32() + b.i32(); }},
    {"subtract_i32", [](Operand a, Operand b, Operand, Result out) { out = a.i32() - b.i32(); }},
    {"multiply_i32", [](Operand a, Operand b, Operand, Result out) { out = a.i32() * b.i32(); }},
    {"fma", [](Operand a, Operand b, Operand c, Result out) { out = fma(a.f32(), b.f32(), c.f32()); }},
    {"max", [](Operand a, Operand b, Operand, Result out) { out = max(a.f32(), b.f32()); }},
    {"min", [](Operand a, Operand b, Operand, Result out) { out = min(a.f32(), b.f32()); }},
    {"abs", [](Operand a, Operand, Operand, Result out) { out = abs(a.f32()); }},
    {"exp2", [](Operand a, Operand, Operand, Result out) { out = exp2(a.f32()); }},
    {"exp", [](Operand a, Operand, Operand, Result out) { out = exp(a.f32()); }},
    {"silu", [](Operand a, Operand, Operand, Result out) { out = silu(a.f32()); }},
    {"gelu_tanh", [](Operand a, Operand, Operand, Result out) { out = gelu_tanh(a.f32()); }},
    {"reduce_add", [](Operand a, Operand, Operand, Result out) { out = reduce_add(a.f32()); }},
    {"reduce_max", [](Operand a, Operand, Operand, Result out) { out = reduce_max(a.f32()); }},
    {"to_f32", [](Operand a, Operand, Operand, Result out) { out = to_f32(a.i32()); }},
    {"to_i32", [](Operand a, Operand, Operand, Result out) { out = to_i32(a.f32()); }},
    {"load_f16", [](Operand a, Operand, Operand, Result out) { out = load_f16(a.as<uint16_t>()); }},
    {"load_bf16", [](Operand a, Operand, Operand, Result out) { out = load_bf16(a.as<uint16_t>()); }},
    {"load_u8", [](Operand a, Operand, Operand, Result out) { out = load_u8(a.bytes); }},
    {"load_i8", [](Operand a, Operand, Operand, Result out) { out = load_i8(a.bytes); }},
    {"store_bf16", [](Operand a, Operand, Operand,
                      Result out) { store_bf16(reinterpret_cast<uint16_t*>(out.bytes), a.f32()); }},
    {"store_i8", [](Operand a, Operand, Operand,
                    Result out) { store_i8(reinterpret_cast<int8_t*>(out.bytes), a.i32()); }},
    {"shift_right_i32",
     [](Operand a, Operand, Operand c, Result out) { out = shift_right(a.i32(), *c.as<int32_t>()); }},
    {"shift_left_i32",
     [](Operand a, Operand, Operand c, Result out) { out = shift_left(a.i32(), *c.as<int32_t>()); }},
    {"and_i32", [](Operand a, Operand b, Operand, Result out) { out = a.i32() & b.i32(); }},
    {"or_i32", [](Operand a, Operand b, Operand, Result out) { out = a.i32() | b.i32(); }},
    {"subtract_bytes", [](Operand a, Operand b, Operand, Result out) { out = a.u8() - b.u8(); }},
    {"shift_right", [](Operand a, Operand, Operand, Result out) { out = shift_right<3>(a.u8()); }},
    {"shift_left", [](Operand a, Operand, Operand, Result out) { out = shift_left<5>(a.u8()); }},
    {"and", [](Operand a, Operand b, Operand, Result out) { out = a.u8() & b.u8(); }},
    {"or", [](Operand a, Operand b, Operand, Result out) { out = a.u8() | b.u8(); }},
    {"lookup", [](Operand a, Operand, Operand, Result out) { out = lookup(TABLE, a.u8()); }},
    {"splat", [](Operand a, Operand, Operand, Result out) { out = splat(*a.as<float>()); }},
    {"splat_i32", [](Operand a, Operand, Operand, Result out) { out = splat(*a.as<int32_t>()); }},
    {"splat_byte", [](Operand a, Operand, Operand, Result out) { out = splat_byte(*a.bytes); }},
    {"splat4", [](Operand a, Operand, Operand, Result out) { out = splat4(a.as<int8_t>()); }},
    {"splat_pair", [](Operand a, Operand, Operand, Result out) { out = splat_pair(a.as<uint16_t>()); }},
    {"dot4", [](Operand a, Operand b, Operand c, Result out) { out = dot4(a.i32(), b.u8(), c.u8()); }},
    {"dot_pairs",
     [](Operand a, Operand b, Operand c,
        Result
            out) { out = dot_pairs(a.f32(), load_pairs(b.as<uint16_t>()), load_pairs(c.as<uint16_t>())); }},
    {"first_lanes", [](Operand a, Operand b, Operand c,
                       Result out) { out = select(first_lanes(*c.as<int32_t>()), a.i32(), b.i32()); }},
    {"greater", [](Operand a, Operand b, Operand c,
                   Result out) { out = select(greater(a.f32(), b.f32()), c.f32(), zeros()); }},
};

int run(const char* name, size_t count) {
    std::vector<uint8_t> operands(3 * count * 64), results(count * 64);
    if (std::fread(operands.data(), 64, 3 * count, stdin) != 3 * count) {
        return 1;
    }
    for (const Operation& operation : OPERATIONS) {
        if (std::strcmp(operation.name, name) != 0) {
            continue;
        }
        for (size_t i = 0; i < count; ++i) {
            const uint8_t* vector = operands.data() + i * 64;
            operation.run({vector}, {vector + count * 64}, {vector + 2 * count * 64},
                          {results.data() + i * 64});
        }
        return std::fwrite(results.data(), 64, count, stdout) == count ? 0 : 1;
    }
    return 1;
}

}  // namespace octavo::OCTAVO_ISA

int main(int argc, char** argv) {
    return argc == 3 ? octavo::OCTAVO_ISA::run(argv[1], std::strtoul(argv[2], nullptr, 10)) : 1;
}
