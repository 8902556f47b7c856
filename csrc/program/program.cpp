#include "program/program.h"

#include <algorithm>
#include <utility>

namespace octavo {

namespace {

int64_t padded(int64_t num_tokens) {
    return round_up(num_tokens, ARENA_ALIGNMENT);
}

struct Runner {
    const Kernels& kernels;
    const Step& step;
    Worker& worker;

#define OCTAVO_CALL(Record, kernel)                    \
    void operator()(const Record& instruction) const { \
        kernels.kernel(instruction, step, worker);     \
    }
    OCTAVO_INSTRUCTIONS(OCTAVO_CALL)
#undef OCTAVO_CALL
};

// Bytes of shared scratch that an instruction needs; most need none.
struct ScratchBytes {
    const Kernels& kernels;
    int64_t num_tokens;
    int num_threads;

    int64_t operator()(const Linear& instruction) const {
        return kernels.linear_scratch_bytes(instruction, num_tokens);
    }

    int64_t operator()(const Attention& instruction) const {
        return kernels.attention_scratch_bytes(instruction, num_tokens, num_threads);
    }

    template <class Other>
    int64_t operator()(const Other&) const {
        return 0;
    }
};

}  // namespace

int Program::add_input(int num_columns) {
    const std::lock_guard<std::mutex> lock(state_.get().mutex);
    plan_.push_back({0, num_inputs_++, num_columns});
    return num_buffers() - 1;
}

int Program::add_buffer(int64_t offset, int num_columns) {
    const std::lock_guard<std::mutex> lock(state_.get().mutex);
    plan_.push_back({offset, -1, num_columns});
    arena_columns_ = std::max(arena_columns_, offset + round_up(num_columns, ARENA_ALIGNMENT));
    return num_buffers() - 1;
}

void Program::add(Instruction instruction) {
    State& state = state_.get();
    const std::lock_guard<std::mutex> lock(state.mutex);
    instructions_.push_back(std::move(instruction));
    state.scratch_tokens = 0;  // this instruction may need more than the earlier ones
}

Buffer Program::find(int buffer, const Memory& arena, int64_t num_tokens) const {
    const Plan& plan = plan_[buffer];
    return {reinterpret_cast<float*>(arena.data()) + plan.offset * padded(num_tokens), plan.num_columns};
}

Arena Program::take_arena(State& state, int64_t num_tokens) const {
    const size_t num_bytes = arena_columns_ * padded(num_tokens) * sizeof(float);
    const auto unused = std::partition(state.arenas.begin(), state.arenas.end(),
                                       [](const Arena& each) { return each.use_count() > 1; });
    Arena arena = unused != state.arenas.end() && (*unused)->size() >= num_bytes ? *unused : nullptr;
    state.arenas.erase(unused, state.arenas.end());  // before another is made: both need not be there at once
    if (!arena) {
        arena = std::make_shared<Memory>(num_bytes);
    }
    state.arenas.push_back(arena);
    return arena;
}

void Program::size_scratch(State& state, int64_t num_tokens) const {
    // No instruction needs less for more tokens, so scratch sized for one step is enough for all shorter
    // ones.
    if (num_tokens <= state.scratch_tokens) {
        return;
    }
    const ScratchBytes wanted{*device_.kernels, num_tokens, device_.pool.num_threads()};
    int64_t num_bytes = 0;
    for (const Instruction& instruction : instructions_) {
        num_bytes = std::max(num_bytes, std::visit(wanted, instruction));
    }
    if (num_bytes > static_cast<int64_t>(state.scratch.size())) {
        state.scratch = Memory(num_bytes);
    }
    state.scratch_tokens = num_tokens;
}

Arena Program::run(const StepInputs& inputs) {
    State& state = state_.get();
    const std::lock_guard<std::mutex> lock(state.mutex);
    Arena arena = take_arena(state, inputs.num_tokens);
    if (inputs.num_tokens == 0) {
        return arena;
    }
    size_scratch(state, padded(inputs.num_tokens));
    Step& step = state.step;
    step.num_tokens = inputs.num_tokens;
    step.token_ids = inputs.token_ids;
    step.positions = inputs.positions;
    step.groups = inputs.groups;
    step.rows_inputs = inputs.rows_inputs;
    step.shared_scratch = state.scratch.data();
    step.shared_scratch_bytes = static_cast<int64_t>(state.scratch.size());
    step.buffers.resize(plan_.size());
    for (int buffer = 0; buffer < num_buffers(); ++buffer) {
        const int input = plan_[buffer].input;
        // Kernels only read inputs: no instruction has one as its `out`.
        step.buffers[buffer] =
            input >= 0 ? Buffer{const_cast<float*>(inputs.inputs[input]), plan_[buffer].num_columns}
                       : find(buffer, *arena, inputs.num_tokens);
    }
    device_.pool.run([this, &step](Worker& worker) {
        const Runner runner{*device_.kernels, step, worker};
        for (const Instruction& instruction : instructions_) {
            std::visit(runner, instruction);
            worker.wait();
        }
    });
    return arena;
}

}  // namespace octavo
