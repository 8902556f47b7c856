#include "bindings/step.h"

#include <algorithm>
#include <utility>

#include "bindings/arrays.h"

namespace nb = nanobind;

namespace octavo {

namespace {

constexpr int64_t MAX_TOKENS = 1 << 24;  // so that no size of a step overflows 64 bits

// Every request's tokens are a range, the ranges follow each other, and its sequence holds them.
void check_requests(const AttentionGroup& group, int64_t num_tokens) {
    const int32_t* starts = group.query_start_loc;
    require(starts[0] == 0 && starts[group.num_reqs] == num_tokens, "query_start_loc runs from ", starts[0],
            " to ", starts[group.num_reqs], "; it must run from 0 to the ", num_tokens,
            " tokens of the step");
    for (int request = 0; request < group.num_reqs; ++request) {
        const int64_t num_queries = static_cast<int64_t>(starts[request + 1]) - starts[request];
        require(num_queries >= 0, "query_start_loc falls at request ", request);
        require(group.seq_lens[request] >= num_queries, "seq_lens says ", group.seq_lens[request],
                " tokens for request ", request, ", which has ", num_queries, " in this step alone");
    }
}

// All blocks that hold a request's tokens are named and exist.
void check_blocks(const AttentionGroup& group, const StepNeeds::Group& cache) {
    for (int request = 0; request < group.num_reqs; ++request) {
        const int64_t num_blocks =
            (static_cast<int64_t>(group.seq_lens[request]) + cache.block_size - 1) / cache.block_size;
        require(num_blocks <= group.block_table_stride, "block_table has ", group.block_table_stride,
                " columns, one for each block, and request ", request, " needs ", num_blocks);
        const int32_t* block_ids = group.block_table + request * group.block_table_stride;
        for (int64_t i = 0; i < num_blocks; ++i) {
            require(0 <= block_ids[i] && block_ids[i] < cache.num_blocks, "block_table holds ", block_ids[i],
                    " for request ", request, "; blocks are 0 up to ", cache.num_blocks - 1);
        }
    }
}

void check_slots(const int64_t* slots, int64_t num_tokens, const StepNeeds::Group& cache) {
    const int64_t num_slots = cache.num_blocks * cache.block_size;
    for (int64_t t = 0; t < num_tokens; ++t) {
        require(-1 <= slots[t] && slots[t] < num_slots, "slot_mapping holds ", slots[t],
                "; slots are 0 up to ", num_slots - 1, ", and -1 is nowhere");
    }
}

// Tokens of the leading blocks that all requests share, as far as none of them is still inside.
int check_common_blocks(const AttentionGroup& group, nb::handle given, int64_t block_size) {
    int64_t num_blocks = 0;
    require(
        nb::try_cast(given, num_blocks, false) && 0 <= num_blocks && num_blocks <= group.block_table_stride,
        "num_common_prefix_blocks is ", text_of(given), "; it must be a number from 0 to the ",
        group.block_table_stride, " columns of block_table");
    for (int request = 0; request < group.num_reqs; ++request) {
        const int num_queries = group.query_start_loc[request + 1] - group.query_start_loc[request];
        num_blocks = std::min(num_blocks, (group.seq_lens[request] - num_queries) / block_size);
    }
    for (int request = 1; request < group.num_reqs; ++request) {
        const int32_t* block_ids = group.block_table + request * group.block_table_stride;
        require(std::equal(block_ids, block_ids + num_blocks, group.block_table),
                "num_common_prefix_blocks is ", text_of(given), ", but in block_table request ", request,
                " begins with other blocks than request 0");
    }
    return group.num_reqs > 0 ? static_cast<int>(num_blocks * block_size) : 0;
}

AttentionGroup check_group(nb::handle arrays, const StepNeeds::Group& cache, int64_t num_tokens) {
    const auto starts = array_of<int32_t, 1>(arrays[0], "query_start_loc");
    require(starts.shape(0) >= 1, "query_start_loc is empty; it must begin with 0");
    const int64_t num_reqs = static_cast<int64_t>(starts.shape(0)) - 1;
    const auto block_table = array_of<int32_t, 2>(arrays[2], "block_table");
    require(static_cast<int64_t>(block_table.shape(0)) == num_reqs, "block_table has ", block_table.shape(0),
            " rows; it must have one for each of the ", num_reqs, " requests");
    AttentionGroup group{
        static_cast<int>(num_reqs),
        static_cast<int64_t>(block_table.shape(1)),
        starts.data(),
        numbers<int32_t>(arrays[1], "seq_lens", num_reqs),
        block_table.data(),
        numbers<int64_t>(arrays[3], "slot_mapping", num_tokens),
        0,
    };
    check_requests(group, num_tokens);
    check_blocks(group, cache);
    check_slots(group.slot_mapping, num_tokens, cache);
    group.num_common_tokens = check_common_blocks(group, arrays[4], cache.block_size);
    return group;
}

RowsInput check_rows(nb::handle given, const StepNeeds::Input& needed, int64_t num_tokens) {
    const auto indices = array_of<int64_t, 1>(given.attr("indices"), needed.name + ".indices");
    const auto num_rows = static_cast<int64_t>(indices.shape(0));
    int64_t last = -1;
    for (int64_t i = 0; i < num_rows; ++i) {
        const int64_t index = indices.data()[i];
        require(last < index && index < num_tokens, needed.name, ".indices holds ", index, " after ", last,
                "; indices must rise, from 0 up to ", num_tokens - 1);
        last = index;
    }
    return {num_rows, indices.data(),
            table<float>(given.attr("values"), needed.name + ".values", num_rows, needed.num_columns)};
}

// The rows inputs that the program reads. Inputs that the step does not have get no rows.
std::vector<RowsInput> check_rows_inputs(nb::dict given, const std::vector<StepNeeds::Input>& needed,
                                         int64_t num_tokens) {
    std::vector<RowsInput> found;
    size_t num_found = 0;
    for (const StepNeeds::Input& each : needed) {
        const nb::str name(each.name.c_str());
        const bool is_given = given.contains(name);
        found.push_back(is_given ? check_rows(given[name], each, num_tokens) : RowsInput{});
        num_found += is_given;
    }
    require(num_found == nb::len(given), "rows_inputs names ", text_of(nb::list(given.keys())),
            ", and the program does not replace rows by all of these names");
    return found;
}

}  // namespace

StepInputs check_step(const StepNeeds& needs, int64_t num_tokens, nb::handle token_ids, nb::handle positions,
                      nb::sequence groups, nb::sequence inputs, nb::dict rows_inputs) {
    require(0 <= num_tokens && num_tokens <= MAX_TOKENS, "num_tokens is ", num_tokens,
            "; it must be from 0 to ", MAX_TOKENS);
    StepInputs step{};
    step.num_tokens = num_tokens;
    if (needs.token_ids) {
        step.token_ids = numbers<int32_t>(token_ids, "token_ids", num_tokens);
    }
    if (needs.positions) {
        step.positions = numbers<int64_t>(positions, "positions", num_tokens);
    }
    require(nb::len(groups) >= needs.groups.size(), "attention has ", nb::len(groups),
            " groups; the program attends in ", needs.groups.size());
    for (size_t i = 0; i < needs.groups.size(); ++i) {
        const StepNeeds::Group& cache = needs.groups[i];
        step.groups.push_back(cache.num_blocks > 0 ? check_group(groups[i], cache, num_tokens)
                                                   : AttentionGroup{});
    }
    require(nb::len(inputs) == needs.inputs.size(), nb::len(inputs), " inputs are given; the program has ",
            needs.inputs.size());
    for (size_t i = 0; i < needs.inputs.size(); ++i) {
        const StepNeeds::Input& input = needs.inputs[i];
        step.inputs.push_back(table<float>(inputs[i], input.name, num_tokens, input.num_columns));
    }
    step.rows_inputs = check_rows_inputs(rows_inputs, needs.rows_inputs, num_tokens);
    return step;
}

}  // namespace octavo
