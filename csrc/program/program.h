// A model as a list of instructions over planned buffers. A step runs all of it as one job of the thread
// pool.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "platform/memory.h"
#include "platform/per_process.h"
#include "program/device.h"
#include "program/instructions.h"

namespace octavo {

// Numbers begin at multiples of this many columns of the arena, so that every buffer begins on a cache line.
constexpr int64_t ARENA_ALIGNMENT = 16;

// The inputs of a step. Arrays belong to the caller and are only read.
struct StepInputs {
    int64_t num_tokens;
    const int32_t* token_ids;  // [T], or null if no instruction reads them
    const int64_t* positions;  // [T], or null likewise
    std::vector<AttentionGroup> groups;
    std::vector<const float*> inputs;  // [T, columns] for each input, in the order they were added
    std::vector<RowsInput> rows_inputs;
};

// Memory that holds the values of a step. It is not reused while it has an owner other than the program.
using Arena = std::shared_ptr<Memory>;

class Program {
  public:
    explicit Program(Device& device) : device_(device) {}

    // A buffer that the caller brings to each step. Returns its number, as `add_buffer` does.
    int add_input(int num_columns);

    // A buffer in the arena. A step of T tokens finds it `offset` * T' numbers into the arena, T' being T
    // rounded up to a multiple of 16. Buffers may share columns if they are never needed at the same time.
    int add_buffer(int64_t offset, int num_columns);

    // The instruction's views and pointers must be valid: `run` checks nothing.
    void add(Instruction instruction);

    int num_buffers() const { return static_cast<int>(plan_.size()); }

    int num_columns(int buffer) const { return plan_[buffer].num_columns; }

    bool is_input(int buffer) const { return plan_[buffer].input >= 0; }

    // Run every instruction. One step at a time: other threads wait. Throws std::bad_alloc.
    Arena run(const StepInputs& inputs);

    // Where `buffer`, not an input, lies in the arena that a step of `num_tokens` gave back.
    Buffer find(int buffer, const Memory& arena, int64_t num_tokens) const;

  private:
    struct Plan {
        int64_t offset;  // in the arena, columns
        int input;       // which of the step's inputs; -1: this one is in the arena
        int num_columns;
    };

    // The state that a step uses and leaves for the next step.
    struct State {
        std::mutex mutex;  // guards the instructions and buffers of the program too
        Step step{};
        std::vector<Arena> arenas;  // the arenas in use when the last step began, and that step's arena
        Memory scratch{0};
        int64_t scratch_tokens = 0;  // the longest step that scratch was sized for
    };

    Arena take_arena(State& state, int64_t num_tokens) const;
    void size_scratch(State& state, int64_t num_tokens) const;

    Device& device_;
    std::vector<Instruction> instructions_;
    std::vector<Plan> plan_;
    int num_inputs_ = 0;
    int64_t arena_columns_ = 0;
    PerProcess<State> state_{[] { return std::make_unique<State>(); }};
};

}  // namespace octavo
