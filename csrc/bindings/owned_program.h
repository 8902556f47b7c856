// Programs and matrices as Python holds them: with everything they point to.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/step.h"
#include "program/program.h"

namespace octavo {

// Buffer, first column, number of columns.
using Place = std::tuple<int, int, int>;

struct OwnedMatrix {
    PackedMatrix matrix;
    nanobind::object memory, bias;
};

// Each method that adds an instruction checks all that its kernel relies on, and throws ValueError.
class OwnedProgram {
  public:
    explicit OwnedProgram(nanobind::object engine);

    int add_input(const std::string& name, int num_columns);
    int add_buffer(int64_t offset, int num_columns);
    void add_output(const Place& place);

    void embedding(const std::string& format, nanobind::object table, int64_t k, float scale,
                   const Place& out);
    void rope_angles(nanobind::object frequencies, float magnitude, const Place& out);
    void rms_norm(const Place& x, nanobind::object weight, float eps, const std::optional<Place>& residual,
                  const Place& out);
    void linear(const Place& x, nanobind::object norm_weight, float norm_eps,
                const std::vector<nanobind::object>& parts, const std::string& activation,
                const std::optional<Place>& residual, const Place& out);
    void activate_and_mul(const Place& x, const std::string& activation, const Place& out);
    void rope(const Place& x, const Place& angles, const std::string& style, int head_size, int rotary_size,
              const Place& out);
    void attention_inputs(const Place& q, const Place& k, const Place& v, const std::optional<Place>& angles,
                          const std::string& style, int rotary_size, float scale, nanobind::object cache,
                          int group, const Place& out);
    void attention(const Place& q, nanobind::object cache, int group, bool causal, int window, float soft_cap,
                   nanobind::object sinks, const Place& out);

    // Run a step. Returns the outputs as arrays that own the arena they lie in.
    nanobind::tuple run(int64_t num_tokens, nanobind::handle token_ids, nanobind::handle positions,
                        nanobind::sequence groups, nanobind::sequence inputs);

  private:
    struct Vector {
        const float* data;
        int64_t size;
    };

    View read(const Place& place, const char* name) const;
    View write(const Place& place, const char* name) const;  // not in an input
    Vector vector(nanobind::object array, const char* name);
    const float* optional_vector(nanobind::object array, const char* name, int64_t size);  // null for None
    KVCache cache_of(nanobind::object cache, int group);

    std::vector<nanobind::object> owners_;  // of what the program points to
    Program program_;
    StepNeeds needs_;
    std::vector<View> outputs_;
};

}  // namespace octavo
