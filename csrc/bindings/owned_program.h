// Programs and matrices as Python holds them: with everything they point to.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/step.h"
#include "program/program.h"

namespace octavo {

// Buffer, first column, number of columns.
using Operand = std::tuple<int, int, int>;

struct OwnedMatrix {
    PackedMatrix matrix;
    nanobind::object memory, bias;
};

class OwnedProgram {
  public:
    explicit OwnedProgram(nanobind::object device);

    int add_input(const std::string& name, int num_columns);
    int add_buffer(int64_t offset, int num_columns);
    void add_output(const Operand& operand);

    // Run a step. Returns the outputs as arrays that own the arena they lie in.
    nanobind::tuple run(int64_t num_tokens, nanobind::handle token_ids, nanobind::handle positions,
                        nanobind::sequence groups, nanobind::sequence inputs, nanobind::dict rows_inputs);

    // What instructions are made from (bindings/instructions.cpp). All throw ValueError, naming the argument
    // `name`.

    struct Vector {
        const float* data;
        int64_t size;
    };

    View read(const Operand& operand, const char* name) const;
    View write(const Operand& operand, const char* name) const;  // not in an input
    Vector vector(nanobind::object array, const char* name);
    const float* optional_vector(nanobind::object array, const char* name, int64_t size);  // null for None
    KVCache cache_of(nanobind::object cache, int group);
    int rows_input(const std::string& name, int num_columns);  // its number

    void need_token_ids() { needs_.token_ids = true; }

    void need_positions() { needs_.positions = true; }

    // Keep `object` alive as long as the program.
    void own(nanobind::object object) { owners_.push_back(std::move(object)); }

    // What the instruction's kernel relies on must be checked.
    void add(Instruction instruction) { program_.add(std::move(instruction)); }

  private:
    std::vector<nanobind::object> owners_;  // of the memory that the program points to
    Program program_;
    StepNeeds needs_;
    std::vector<View> outputs_;
};

using ProgramClass = nanobind::class_<OwnedProgram>;

// Give `program` a method for each instruction of OCTAVO_INSTRUCTIONS.
void bind_instructions(ProgramClass& program);

}  // namespace octavo
