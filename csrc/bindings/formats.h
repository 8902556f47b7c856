// Formats by the names that octavo.weights.formats gives them.
#pragma once

#include <string>

#include "bindings/arrays.h"
#include "kernels/formats.h"

namespace octavo {

// Throws ValueError for a format that kernels do not read.
inline Format format_named(const std::string& name) {
    std::string known;
    for (int i = 0; i < NUM_FORMATS; ++i) {
        if (name == FORMATS[i].name) {
            return static_cast<Format>(i);
        }
        known += (i == 0 ? "" : ", ") + std::string(FORMATS[i].name);
    }
    refuse("the native backend does not read the format '", name, "'; it reads ", known);
}

}  // namespace octavo
