// A step's arrays, checked before a kernel sees them.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "program/program.h"

namespace octavo {

// What a program needs of every step.
struct StepNeeds {
    struct Input {
        std::string name;
        int num_columns;
    };

    struct Group {
        int64_t num_blocks;  // 0: no instruction of the program reads this group
        int block_size;
    };

    bool token_ids = false;
    bool positions = false;
    std::vector<Input> inputs;
    std::vector<Input> rows_inputs;
    std::vector<Group> groups;
};

// Views of the arrays, which must outlive them. Throws ValueError, naming the array, for anything that would
// make a kernel read or write what is not the step's.
StepInputs check_step(const StepNeeds& needs, int64_t num_tokens, nanobind::handle token_ids,
                      nanobind::handle positions, nanobind::sequence groups, nanobind::sequence inputs,
                      nanobind::dict rows_inputs);

}  // namespace octavo
