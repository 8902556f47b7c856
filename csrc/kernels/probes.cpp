#include "kernels/probes.h"

#include "kernels/simd.h"
#include "kernels/tiles.h"

#if defined(__AMX_TILE__)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_ISA {

namespace {

// Sums that are under way at once. Their number hides the latency of an instruction, and with a column and a
// row they fill the registers: 32 of 64 bytes, 16 of 32 bytes, or 16 of 16 bytes.
#if defined(__AVX512F__)
constexpr int ROWS = 4, COLUMNS = 4;
#elif defined(__AVX2__)
constexpr int ROWS = 3, COLUMNS = 2;
#else
constexpr int ROWS = 2, COLUMNS = 1;
#endif

constexpr int COLUMN_BYTES = 64;
constexpr int ROW_BYTES = 4;
constexpr int OPERAND_BYTES = 1024;  // of scratch: all columns and rows, or one tile

// The same address, which the compiler cannot know: it would compute the products of all rounds in the first.
OCTAVO_INLINE uint8_t* forget(uint8_t* address) {
    asm volatile("" : "+r"(address));
    return address;
}

struct Float32 {
    using Sum = f32x16;
    static constexpr int DEPTH = 1;  // products that one lane adds in one step

    static OCTAVO_INLINE f32x16 column(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }

    static OCTAVO_INLINE f32x16 row(const uint8_t* p) { return splat(*reinterpret_cast<const float*>(p)); }

    static OCTAVO_INLINE Sum add(Sum sum, f32x16 column, f32x16 row) { return fma(column, row, sum); }

    static OCTAVO_INLINE void put(uint8_t* p, Sum sum) { store(reinterpret_cast<float*>(p), sum); }
};

struct BFloat16 {
    using Sum = f32x16;
    static constexpr int DEPTH = 2;

    static OCTAVO_INLINE bytes64 column(const uint8_t* p) {
        return load_pairs(reinterpret_cast<const uint16_t*>(p));
    }

    static OCTAVO_INLINE bytes64 row(const uint8_t* p) {
        return splat_pair(reinterpret_cast<const uint16_t*>(p));
    }

    static OCTAVO_INLINE Sum add(Sum sum, bytes64 column, bytes64 row) { return dot_pairs(sum, column, row); }

    static OCTAVO_INLINE void put(uint8_t* p, Sum sum) { store(reinterpret_cast<float*>(p), sum); }
};

struct Int8 {
    using Sum = i32x16;
    static constexpr int DEPTH = 4;

    static OCTAVO_INLINE bytes64 column(const uint8_t* p) { return load(p); }

    static OCTAVO_INLINE bytes64 row(const uint8_t* p) { return splat4(reinterpret_cast<const int8_t*>(p)); }

    static OCTAVO_INLINE Sum add(Sum sum, bytes64 column, bytes64 row) { return dot4(sum, column, row); }

    static OCTAVO_INLINE void put(uint8_t* p, Sum sum) { store(reinterpret_cast<int32_t*>(p), sum); }
};

// The inner loop of a matrix product: ROWS x COLUMNS sums, a few loads for many products. Unrolled whole,
// because GCC keeps an array in registers only where it sees no loop over it.
template <class Type>
int64_t multiply_vectors(int64_t num_rounds, uint8_t* operands) {
    typename Type::Sum sums[ROWS][COLUMNS] = {};
    for (int64_t round = 0; round < num_rounds; ++round) {
        operands = forget(operands);
        const uint8_t* rows = operands + COLUMNS * COLUMN_BYTES;
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; ++c) {
            const auto column = Type::column(operands + c * COLUMN_BYTES);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) {
                sums[r][c] = Type::add(sums[r][c], column, Type::row(rows + r * ROW_BYTES));
            }
        }
    }
#pragma GCC unroll 4
    // Without a use of the result, the compiler would leave out the products.
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; ++c) {
            Type::put(operands + (r * COLUMNS + c) * COLUMN_BYTES, sums[r][c]);
        }
    }
    return num_rounds * ROWS * COLUMNS * 16 * Type::DEPTH * 2;
}

#if defined(__AMX_TILE__)

// Tiles 0 to 3 are sums, 4 and 5 rows of the left matrix, 6 and 7 columns of the right one.
int64_t multiply_tiles(bool is_int8, int64_t num_rounds, const uint8_t* operands) {
    TileConfiguration().load();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, operands, 64);
    _tile_loadd(5, operands, 64);
    _tile_loadd(6, operands, 64);
    _tile_loadd(7, operands, 64);
    for (int64_t round = 0; round < num_rounds; ++round) {
        if (is_int8) {
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 4, 7);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_release();
    return num_rounds * 4 * 16 * 16 * (is_int8 ? 64 : 32) * 2;
}

#else

int64_t multiply_tiles(bool, int64_t, const uint8_t*) {
    return 0;
}

#endif

}  // namespace

void probe_memory(const uint8_t* data, int64_t num_bytes, Worker& worker) {
    constexpr int64_t STEP = 4 * 64;  // four loads under way that wait for nothing
    const Range steps = share(num_bytes / STEP, worker);
    bytes64 seen[4] = {splat_byte(0), splat_byte(0), splat_byte(0), splat_byte(0)};
    for (const uint8_t* p = data + steps.begin * STEP; p < data + steps.end * STEP; p += STEP) {
        seen[0] = seen[0] | load(p);
        seen[1] = seen[1] | load(p + 64);
        seen[2] = seen[2] | load(p + 128);
        seen[3] = seen[3] | load(p + 192);
    }
    store(worker.scratch, (seen[0] | seen[1]) | (seen[2] | seen[3]));
}

int64_t probe_arithmetic(Arithmetic arithmetic, int64_t num_rounds, Worker& worker) {
    // What kernels left in the scratch memory may be numbers that the processor is slow with.
    for (int i = 0; i < OPERAND_BYTES; i += 4) {
        *reinterpret_cast<float*>(worker.scratch + i) = 1.0f;
    }
    switch (arithmetic) {
        case Arithmetic::f32:
            return multiply_vectors<Float32>(num_rounds, worker.scratch);
        case Arithmetic::bf16:
            return multiply_vectors<BFloat16>(num_rounds, worker.scratch);
        case Arithmetic::int8:
            return multiply_vectors<Int8>(num_rounds, worker.scratch);
        case Arithmetic::bf16_tiles:
        case Arithmetic::int8_tiles:
            return multiply_tiles(arithmetic == Arithmetic::int8_tiles, num_rounds, worker.scratch);
    }
    return 0;
}

}  // namespace octavo::OCTAVO_ISA
