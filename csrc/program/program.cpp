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

    void operator()(const Embedding& instruction) const { kernels.embedding(instruction, step, worker); }

    void operator()(const RopeAngles& instruction) const { kernels.rope_angles(instruction, step, worker); }

    void operator()(const RmsNorm& instruction) const { kernels.rms_norm(instruction, step, worker); }

    void operator()(const Linear& instruction) const { kernels.linear(instruction, step, worker); }

    void operator()(const SiluAndMul& instruction) const { kernels.silu_and_mul(instruction, step, worker); }

    void operator()(const Rope& instruction) const { kernels.rope(instruction, step, worker); }

    void operator()(const AttentionInputs& instruction) const {
        kernels.attention_inputs(instruction, step, worker);
    }

    void operator()(const Attention& instruction) const { kernels.attention(instruction, step, worker); }
};

// Bytes of shared scratch that an instruction wants; most want none.
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
    const std::lock_guard<std::mutex> lock(mutex_);
    plan_.push_back({0, num_inputs_++, num_columns});
    return num_buffers() - 1;
}

int Program::add_buffer(int64_t offset, int num_columns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    plan_.push_back({offset, -1, num_columns});
    arena_columns_ = std::max(arena_columns_, offset + round_up(num_columns, ARENA_ALIGNMENT));
    return num_buffers() - 1;
}

void Program::add(Instruction instruction) {
    const std::lock_guard<std::mutex> lock(mutex_);
    instructions_.push_back(std::move(instruction));
    scratch_tokens_ = 0;  // it may want more than those before it
}

Buffer Program::find(int buffer, const Memory& arena, int64_t num_tokens) const {
    const Plan& plan = plan_[buffer];
    return {reinterpret_cast<float*>(arena.data()) + plan.offset * padded(num_tokens), plan.num_columns};
}

Arena Program::take_arena(int64_t num_tokens) {
    const size_t num_bytes = arena_columns_ * padded(num_tokens) * sizeof(float);
    const auto unused = std::partition(arenas_.begin(), arenas_.end(),
                                       [](const Arena& each) { return each.use_count() > 1; });
    Arena arena = unused != arenas_.end() && (*unused)->size() >= num_bytes ? *unused : nullptr;
    arenas_.erase(unused, arenas_.end());  // before another is made: both need not be there at once
    if (!arena) {
        arena = std::make_shared<Memory>(num_bytes);
    }
    arenas_.push_back(arena);
    return arena;
}

void Program::size_scratch(int64_t num_tokens) {
    // No instruction wants less for more tokens, so that one look is enough for all shorter steps.
    if (num_tokens <= scratch_tokens_) {
        return;
    }
    const ScratchBytes wanted{*engine_.kernels, num_tokens, engine_.pool.num_threads()};
    int64_t num_bytes = 0;
    for (const Instruction& instruction : instructions_) {
        num_bytes = std::max(num_bytes, std::visit(wanted, instruction));
    }
    if (num_bytes > static_cast<int64_t>(scratch_.size())) {
        scratch_ = Memory(num_bytes);
    }
    scratch_tokens_ = num_tokens;
}

Arena Program::run(const StepInputs& inputs) {
    std::lock_guard<std::mutex> lock(mutex_);
    Arena arena = take_arena(inputs.num_tokens);
    if (inputs.num_tokens == 0) {
        return arena;
    }
    size_scratch(padded(inputs.num_tokens));
    step_.num_tokens = inputs.num_tokens;
    step_.token_ids = inputs.token_ids;
    step_.positions = inputs.positions;
    step_.groups = inputs.groups;
    step_.shared_scratch = scratch_.data();
    step_.shared_scratch_bytes = static_cast<int64_t>(scratch_.size());
    step_.buffers.resize(plan_.size());
    for (int buffer = 0; buffer < num_buffers(); ++buffer) {
        const int input = plan_[buffer].input;
        // Kernels only read inputs: no instruction has one as its `out`.
        step_.buffers[buffer] =
            input >= 0 ? Buffer{const_cast<float*>(inputs.inputs[input]), plan_[buffer].num_columns}
                       : find(buffer, *arena, inputs.num_tokens);
    }
    engine_.pool.run([this](Worker& worker) {
        const Runner runner{*engine_.kernels, step_, worker};
        for (const Instruction& instruction : instructions_) {
            std::visit(runner, instruction);
            worker.wait();
        }
    });
    return arena;
}

}  // namespace octavo
