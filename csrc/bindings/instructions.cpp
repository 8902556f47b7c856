// The methods that add an instruction to a program. Each checks all that its kernel relies on, and throws
// ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/formats.h"
#include "bindings/owned_program.h"
#include "program/kv_cache.h"
#include "program/packing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

constexpr int MAX_GROUPS = 1 << 10;  // a program keeps a record of every group up to the largest it uses

// Query heads that may share a KV head: each thread's scratch memory is sized for this many.
constexpr int MOST_SHARING = 1 << 10;

RopeStyle rope_style_named(const std::string& name) {
    if (name == "none") {
        return RopeStyle::none;
    }
    if (name == "half") {
        return RopeStyle::half;
    }
    if (name == "interleaved") {
        return RopeStyle::interleaved;
    }
    refuse("style is '", name, "'; it must be none, half or interleaved");
}

Activation activation_named(const std::string& name) {
    if (name == "none") {
        return Activation::none;
    }
    if (name == "silu") {
        return Activation::silu;
    }
    if (name == "gelu_tanh") {
        return Activation::gelu_tanh;
    }
    refuse("activation is '", name, "'; it must be none, silu or gelu_tanh");
}

void require_columns(const char* name, const View& view, int64_t num_columns) {
    require(view.num_columns == num_columns, name, " has ", view.num_columns, " columns; it must have ",
            num_columns);
}

void require_heads(const char* name, const View& view, int64_t head_size) {
    require(head_size > 0 && view.num_columns % head_size == 0, name, " has ", view.num_columns,
            " columns, which are no whole number of heads of ", head_size);
}

void require_rotary(const View& angles, int rotary_size, int head_size) {
    require(0 < rotary_size && rotary_size <= head_size && rotary_size % 2 == 0, "rotary_size is ",
            rotary_size, "; it must be an even number up to the head's ", head_size);
    require_columns("angles", angles, rotary_size);
}

// Heads of `q`, which share the cache's KV heads evenly.
int num_query_heads(const View& q, const KVCache& cache) {
    require_heads("q", q, cache.head_size);
    const int num_heads = q.num_columns / cache.head_size;
    require(num_heads % cache.num_kv_heads == 0, "q has ", num_heads, " heads, which cannot share the ",
            cache.num_kv_heads, " of the cache evenly");
    require(num_heads / cache.num_kv_heads <= MOST_SHARING, "q has ", num_heads, " heads for ",
            cache.num_kv_heads, " KV heads; at most ", MOST_SHARING, " may share one");
    return num_heads;
}

}  // namespace

View OwnedProgram::read(const Operand& operand, const char* name) const {
    const auto [buffer, column, num_columns] = operand;
    require(0 <= buffer && buffer < program_.num_buffers(), name, " is in buffer ", buffer, "; there are ",
            program_.num_buffers());
    const int width = program_.num_columns(buffer);
    require(0 <= column && 0 < num_columns && num_columns <= width && column <= width - num_columns, name,
            " is ", num_columns, " columns from ", column, " on, of a buffer of ", width);
    return {buffer, column, num_columns};
}

View OwnedProgram::write(const Operand& operand, const char* name) const {
    const View view = read(operand, name);
    require(!program_.is_input(view.buffer), name, " is in an input, which is the caller's and only read");
    return view;
}

OwnedProgram::Vector OwnedProgram::vector(nb::object array, const char* name) {
    const auto values = array_of<float, 1>(array, name);
    owners_.push_back(std::move(array));
    return {values.data(), static_cast<int64_t>(values.shape(0))};
}

const float* OwnedProgram::optional_vector(nb::object array, const char* name, int64_t size) {
    if (array.is_none()) {
        return nullptr;
    }
    const Vector values = vector(std::move(array), name);
    require(values.size == size, name, " has ", values.size, " numbers; it must have ", size);
    return values.data;
}

KVCache OwnedProgram::cache_of(nb::object cache, int group) {
    const KVCache found = nb::cast<const KVCache&>(cache);
    require(0 <= group && group < MAX_GROUPS, "group is ", group, "; it must be from 0 to ", MAX_GROUPS - 1);
    if (needs_.groups.size() <= static_cast<size_t>(group)) {
        needs_.groups.resize(group + 1);
    }
    StepNeeds::Group& needed = needs_.groups[group];
    require(needed.num_blocks == 0 ||
                (needed.num_blocks == found.num_blocks && needed.block_size == found.block_size),
            "caches of group ", group, " have ", needed.num_blocks, " blocks of ", needed.block_size, " and ",
            found.num_blocks, " of ", found.block_size, "; they must be alike");
    needed = {found.num_blocks, found.block_size};
    owners_.push_back(std::move(cache));
    return found;
}

int OwnedProgram::rows_input(const std::string& name, int num_columns) {
    const int count = static_cast<int>(needs_.rows_inputs.size());
    for (int i = 0; i < count; ++i) {
        if (needs_.rows_inputs[i].name == name) {
            require(needs_.rows_inputs[i].num_columns == num_columns, "rows named ", name, " have ",
                    needs_.rows_inputs[i].num_columns, " columns elsewhere; here they have ", num_columns);
            return i;
        }
    }
    needs_.rows_inputs.push_back({name, num_columns});
    return count;
}

namespace {

// One specialization for each instruction of the list; `name` is its name there.
template <class Record>
void bind(ProgramClass& program, const char* name);

template <>
void bind<Embedding>(ProgramClass& program, const char* name) {
    const auto add = [](OwnedProgram& self, const std::string& format, nb::object table, int64_t k,
                        float scale, const Operand& out) {
        const auto rows = array_of<uint8_t, 2>(table, "table");
        const Embedding embedding{format_named(format),
                                  rows.data(),
                                  static_cast<int64_t>(rows.shape(0)),
                                  static_cast<int64_t>(rows.shape(1)),
                                  k,
                                  scale,
                                  self.write(out, "out")};
        const int block = info(embedding.format).quant_block;
        require(k > 0 && k % block == 0, "k is ", k, "; ", format, " takes a multiple of ", block);
        require(embedding.num_rows > 0 && embedding.row_bytes == file_row_bytes(embedding.format, k),
                "table has ", embedding.num_rows, " rows of ", embedding.row_bytes,
                " bytes; it must have some of ", file_row_bytes(embedding.format, k));
        require_columns("out", embedding.out, k);
        self.need_token_ids();
        self.own(std::move(table));
        self.add(embedding);
    };
    program.def(name, add, nb::kw_only(), "format"_a, "table"_a, "k"_a, "scale"_a, "out"_a);
}

template <>
void bind<ReplaceRows>(ProgramClass& program, const char* name) {
    const auto add = [](OwnedProgram& self, const Operand& x, const std::string& name, const Operand& out) {
        ReplaceRows replace{self.read(x, "x"), 0, self.write(out, "out")};
        require_columns("out", replace.out, replace.x.num_columns);
        replace.input = self.rows_input(name, replace.x.num_columns);
        self.add(replace);
    };
    program.def(name, add, nb::kw_only(), "x"_a, "name"_a, "out"_a);
}

template <>
void bind<RopeAngles>(ProgramClass& program, const char* name) {
    const auto add = [](OwnedProgram& self, nb::object frequencies, float magnitude, const Operand& out) {
        const OwnedProgram::Vector values = self.vector(std::move(frequencies), "frequencies");
        const View to = self.write(out, "out");
        require_columns("out", to, 2 * values.size);
        self.need_positions();
        self.add(RopeAngles{{values.data, values.data + values.size}, magnitude, to});
    };
    program.def(name, add, nb::kw_only(), "frequencies"_a, "magnitude"_a, "out"_a);
}

template <>
void bind<RmsNorm>(ProgramClass& program, const char* name) {
    const auto add = [](OwnedProgram& self, const Operand& x, nb::object weight, float eps,
                        const std::optional<Operand>& residual, const Operand& out) {
        const OwnedProgram::Vector scale = self.vector(std::move(weight), "weight");
        RmsNorm norm{self.read(x, "x"),     scale.data, static_cast<int>(scale.size), eps, {},
                     self.write(out, "out")};
        require_heads("x", norm.x, scale.size);
        require_columns("out", norm.out, norm.x.num_columns);
        if (residual) {
            norm.residual = self.read(*residual, "residual");
            require_columns("residual", norm.residual, norm.x.num_columns);
        }
        self.add(norm);
    };
    program.def(name, add, nb::kw_only(), "x"_a, "weight"_a, "eps"_a, "residual"_a.none(), "out"_a);
}

// Append the matrices of `parts`. Returns the number of their outputs.
int64_t add_parts(OwnedProgram& program, const std::vector<nb::object>& parts, Linear& linear) {
    require(!parts.empty(), "parts is empty; a linear map has at least one matrix");
    int64_t num_outputs = 0;
    for (const nb::object& part : parts) {
        const PackedMatrix& matrix = nb::cast<const OwnedMatrix&>(part).matrix;
        require(matrix.k == linear.x.num_columns, "a matrix has ", matrix.k, " inputs; x has ",
                linear.x.num_columns, " columns");
        num_outputs += matrix.n;
        linear.parts.push_back(matrix);
        program.own(part);
    }
    if (!linear.gated()) {
        return num_outputs;
    }
    const PackedMatrix &gate = linear.parts.front(), &up = linear.parts.back();
    require(parts.size() == 2 && gate.n == up.n && gate.format == up.format && !gate.bias == !up.bias,
            "a gated linear map has two parts, of one size and format, both with a bias or both without");
    return gate.n;
}

template <>
void bind<Linear>(ProgramClass& program, const char* name) {
    const auto add = [](OwnedProgram& self, const Operand& x, nb::object norm_weight, float norm_eps,
                        const std::vector<nb::object>& parts, const std::string& activation,
                        const std::optional<Operand>& residual, const Operand& out) {
        Linear linear{self.read(x, "x"), {}, {}, activation_named(activation), {}, self.write(out, "out")};
        linear.norm = {self.optional_vector(std::move(norm_weight), "norm_weight", linear.x.num_columns),
                       norm_eps};
        const int64_t num_outputs = add_parts(self, parts, linear);
        require(!linear.gated() || !residual, "a gated linear map has no residual");
        require_columns("out", linear.out, num_outputs);
        if (residual) {
            linear.residual = self.read(*residual, "residual");
            require_columns("residual", linear.residual, num_outputs);
        }
        self.add(std::move(linear));
    };
    program.def(name, add, nb::kw_only(), "x"_a, "norm_weight"_a.none(), "norm_eps"_a, "parts"_a,
                "activation"_a, "residual"_a.none(), "out"_a);
}

template <>
void bind<ActivateAndMul>(ProgramClass& program, const char* name) {
    const auto add = [](OwnedProgram& self, const Operand& x, const std::string& activation,
                        const Operand& out) {
        const ActivateAndMul gate{self.read(x, "x"), activation_named(activation), self.write(out, "out")};
        require(gate.activation != Activation::none, "activation is 'none'; it must be silu or gelu_tanh");
        require_columns("x", gate.x, int64_t{2} * gate.out.num_columns);
        self.add(gate);
    };
    program.def(name, add, nb::kw_only(), "x"_a, "activation"_a, "out"_a);
}

template <>
void bind<Rope>(ProgramClass& program, const char* name) {
    const auto add = [](OwnedProgram& self, const Operand& x, const Operand& angles, const std::string& style,
                        int head_size, int rotary_size, const Operand& out) {
        const Rope rope{self.read(x, "x"), self.read(angles, "angles"), rope_style_named(style), head_size,
                        rotary_size,       self.write(out, "out")};
        require(rope.style != RopeStyle::none, "style is 'none'; it must be half or interleaved");
        require_heads("x", rope.x, head_size);
        require_rotary(rope.angles, rotary_size, head_size);
        require_columns("out", rope.out, rope.x.num_columns);
        self.add(rope);
    };
    program.def(name, add, nb::kw_only(), "x"_a, "angles"_a, "style"_a, "head_size"_a, "rotary_size"_a,
                "out"_a);
}

template <>
void bind<AttentionInputs>(ProgramClass& program, const char* name) {
    const auto add = [](OwnedProgram& self, const Operand& q, const Operand& k, const Operand& v,
                        const std::optional<Operand>& angles, const std::string& style, int rotary_size,
                        float scale, nb::object cache, int group, const Operand& out) {
        AttentionInputs inputs{};
        inputs.q = self.read(q, "q");
        inputs.k = self.read(k, "k");
        inputs.v = self.read(v, "v");
        inputs.style = rope_style_named(style);
        inputs.rotary_size = rotary_size;
        inputs.scale = scale;
        inputs.cache = self.cache_of(std::move(cache), group);
        inputs.group = group;
        inputs.out = self.write(out, "out");
        inputs.num_heads = num_query_heads(inputs.q, inputs.cache);
        const int kv_columns = inputs.cache.num_kv_heads * inputs.cache.head_size;
        require_columns("k", inputs.k, kv_columns);
        require_columns("v", inputs.v, kv_columns);
        require_columns("out", inputs.out, inputs.q.num_columns);
        require(angles.has_value() == (inputs.style != RopeStyle::none), "style is '", style,
                "'; angles are given if, and only if, it is not none");
        if (angles) {
            inputs.angles = self.read(*angles, "angles");
            require_rotary(inputs.angles, rotary_size, inputs.cache.head_size);
        }
        self.add(inputs);
    };
    program.def(name, add, nb::kw_only(), "q"_a, "k"_a, "v"_a, "angles"_a.none(), "style"_a, "rotary_size"_a,
                "scale"_a, "cache"_a, "group"_a, "out"_a);
}

template <>
void bind<Attention>(ProgramClass& program, const char* name) {
    const auto add = [](OwnedProgram& self, const Operand& q, nb::object cache, int group, bool causal,
                        int window, float soft_cap, nb::object sinks, const Operand& out) {
        const KVCache kv = self.cache_of(std::move(cache), group);
        Attention attention{self.read(q, "q"),     kv, group, 0, causal, window, soft_cap, nullptr,
                            self.write(out, "out")};
        attention.num_heads = num_query_heads(attention.q, kv);
        attention.sinks = self.optional_vector(std::move(sinks), "sinks", attention.num_heads);
        require(window >= 0, "window is ", window, "; it must be a number of tokens, or 0 for all");
        require(soft_cap >= 0, "soft_cap is ", soft_cap, "; it must be positive, or 0 for none");
        require_columns("out", attention.out, attention.q.num_columns);
        self.add(attention);
    };
    program.def(name, add, nb::kw_only(), "q"_a, "cache"_a, "group"_a, "causal"_a, "window"_a, "soft_cap"_a,
                "sinks"_a.none(), "out"_a);
}

}  // namespace

void bind_instructions(ProgramClass& program) {
#define OCTAVO_BIND(Record, kernel) bind<Record>(program, #kernel);
    OCTAVO_INSTRUCTIONS(OCTAVO_BIND)
#undef OCTAVO_BIND
}

}  // namespace octavo
