#pragma once

#include <cstdint>

#include "platform/inline.h"

namespace octavo {

// The least multiple of `multiple` that is at least `value`; neither is negative.
OCTAVO_INLINE constexpr int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

}  // namespace octavo
