// Choosing the most likely among many tokens, without sorting them all.
//
// A logit and its token are kept together as one integer, an entry: of two tokens the more likely one has the
// larger entry, and between equal logits the one of the smaller id.
#pragma once

#include <cstdint>

#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA {

OCTAVO_INLINE uint64_t make_entry(float logit, int64_t token) {
    const float unsigned_zero = logit + 0.0f;  // -0 equals 0, so their bits must too
    uint32_t bits;
    __builtin_memcpy(&bits, &unsigned_zero, sizeof bits);
    const uint32_t ordered = bits & 0x80000000 ? ~bits : bits | 0x80000000;
    return static_cast<uint64_t>(ordered) << 32 | (0xffffffff - static_cast<uint32_t>(token));
}

OCTAVO_INLINE float logit_of(uint64_t entry) {
    const uint32_t ordered = static_cast<uint32_t>(entry >> 32);
    const uint32_t bits = ordered & 0x80000000 ? ordered & 0x7fffffff : ~ordered;
    float logit;
    __builtin_memcpy(&logit, &bits, sizeof logit);
    return logit;
}

OCTAVO_INLINE int64_t token_of(uint64_t entry) {
    return 0xffffffff - static_cast<uint32_t>(entry);
}

// The least likely token that may still be chosen. Every filter, and any combination of filters, reduces to
// such a limit.
struct Cut {
    float logit = LOWEST;
    int64_t token = INT64_MAX;  // of tokens with just this logit, the last one that is kept

    // Without branches, for loops that become vectors. Never true of NaN and -inf.
    OCTAVO_INLINE bool keeps(float x, int64_t id) const {
        return (x > logit) | ((x == logit) & (id <= token));
    }
};

OCTAVO_INLINE Cut cut_at(uint64_t entry) {
    return {logit_of(entry), token_of(entry)};
}

// The `k`-th largest of `count` different entries, 1 <= k <= count: digit by digit, from the highest.
inline uint64_t kth_largest(const uint64_t* entries, int64_t count, int64_t k) {
    constexpr int DIGIT_BITS = 8;
    constexpr int NUM_DIGITS = 1 << DIGIT_BITS;
    uint64_t known = 0, mask = 0;  // the digits found so far, and where they are
    for (int shift = 64 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        int64_t counts[NUM_DIGITS] = {};
        for (int64_t i = 0; i < count; ++i) {
            if ((entries[i] & mask) == known) {
                ++counts[entries[i] >> shift & (NUM_DIGITS - 1)];
            }
        }
        uint64_t digit = NUM_DIGITS - 1;
        for (; counts[digit] < k; --digit) {
            k -= counts[digit];
        }
        known |= digit << shift;
        mask |= static_cast<uint64_t>(NUM_DIGITS - 1) << shift;
    }
    return known;
}

// Drop all but the `k` largest of `count` > k entries and return the smallest that stays. Their order stays.
inline uint64_t keep_largest(uint64_t* entries, int64_t count, int64_t k) {
    const uint64_t smallest = kth_largest(entries, count, k);
    int64_t num_kept = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (entries[i] >= smallest) {
            entries[num_kept++] = entries[i];
        }
    }
    return smallest;
}

// Sort `count` entries that are in the order of their tokens, largest first. `other` must hold as many.
inline void sort_entries(uint64_t* entries, uint64_t* other, int64_t count) {
    constexpr int DIGIT_BITS = 8;
    constexpr int NUM_DIGITS = 1 << DIGIT_BITS;
    // Stable, so only the logits' digits are looked at. There are four, so the last pass is back into
    // `entries`.
    for (int shift = 32; shift < 64; shift += DIGIT_BITS) {
        int64_t places[NUM_DIGITS] = {};
        for (int64_t i = 0; i < count; ++i) {
            ++places[entries[i] >> shift & (NUM_DIGITS - 1)];
        }
        int64_t next = 0;
        for (int digit = NUM_DIGITS - 1; digit >= 0; --digit) {
            const int64_t num = places[digit];
            places[digit] = next;
            next += num;
        }
        for (int64_t i = 0; i < count; ++i) {
            other[places[entries[i] >> shift & (NUM_DIGITS - 1)]++] = entries[i];
        }
        uint64_t* swapped = entries;
        entries = other;
        other = swapped;
    }
}

}  // namespace octavo::OCTAVO_ISA
