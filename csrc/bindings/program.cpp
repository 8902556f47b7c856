#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/formats.h"
#include "bindings/gil.h"
#include "bindings/owned_program.h"
#include "platform/memory.h"

namespace nb = nanobind;

namespace octavo {

namespace {

constexpr int64_t MOST = (int64_t{1} << 31) - 1;  // of any size or offset: an int must hold it
constexpr int64_t MOST_INPUTS = 1 << 15;  // of a matrix: each thread's scratch memory is sized for this many

nb::tuple format_names() {
    nb::list names;
    for (const FormatInfo& format : FORMATS) {
        names.append(format.name);
    }
    return nb::tuple(names);
}

void make_matrix(OwnedMatrix* self, nb::object memory, int64_t offset, const std::string& format, int64_t n,
                 int64_t k, int64_t panel_stride, nb::object bias) {
    const Memory& arena = nb::cast<const Memory&>(memory);
    PackedMatrix matrix{format_named(format), n, k, nullptr, panel_stride, nullptr};
    const int block = info(matrix.format).quant_block;
    require(0 < n && n <= MOST && 0 < k && k <= MOST_INPUTS && k % block == 0, "the matrix is ", n, " x ", k,
            "; both must be positive, and the second a multiple of ", block, ", at most ", MOST_INPUTS);
    const int64_t num_panels = round_up(n, PANEL) / PANEL,
                  panel_bytes = panel_layout(matrix.format, k).num_bytes;
    const int64_t num_bytes = static_cast<int64_t>(arena.size());
    require(panel_bytes <= panel_stride && 0 <= offset && offset <= num_bytes - panel_bytes &&
                num_panels - 1 <= (num_bytes - panel_bytes - offset) / panel_stride,
            num_panels, " panels of ", panel_bytes, " bytes, every ", panel_stride, " bytes from ", offset,
            " on, do not fit into ", num_bytes);
    require(offset % 64 == 0 && panel_stride % 64 == 0, "offset is ", offset, " and panel_stride ",
            panel_stride, "; both must be multiples of 64");
    matrix.data = arena.data() + offset;
    if (!bias.is_none()) {
        const auto values = array_of<float, 1>(bias, "bias");
        require(static_cast<int64_t>(values.shape(0)) == n, "bias has ", values.shape(0),
                " numbers; it must have ", n);
        matrix.bias = values.data();
    }
    new (self) OwnedMatrix{matrix, std::move(memory), std::move(bias)};
}

}  // namespace

OwnedProgram::OwnedProgram(nb::object device) : program_(nb::cast<Device&>(device)) {
    owners_.push_back(std::move(device));
}

int OwnedProgram::add_input(const std::string& name, int num_columns) {
    require(num_columns > 0, "num_columns of ", name, " is ", num_columns, "; it must be positive");
    needs_.inputs.push_back({name, num_columns});
    return program_.add_input(num_columns);
}

int OwnedProgram::add_buffer(int64_t offset, int num_columns) {
    require(num_columns > 0, "num_columns is ", num_columns, "; it must be positive");
    require(0 <= offset && offset <= MOST && offset % ARENA_ALIGNMENT == 0, "offset is ", offset,
            "; it must be a multiple of ", ARENA_ALIGNMENT, ", and not negative");
    return program_.add_buffer(offset, num_columns);
}

void OwnedProgram::add_output(const Operand& operand) {
    outputs_.push_back(write(operand, "output"));
}

nb::tuple OwnedProgram::run(int64_t num_tokens, nb::handle token_ids, nb::handle positions,
                            nb::sequence groups, nb::sequence inputs, nb::dict rows_inputs) {
    const StepInputs step = check_step(needs_, num_tokens, token_ids, positions, groups, inputs, rows_inputs);
    Arena arena;
    {
        const WithoutGil without_gil;
        arena = program_.run(step);
    }
    nb::list outputs;
    for (const View& view : outputs_) {
        const Buffer buffer = program_.find(view.buffer, *arena, num_tokens);
        nb::capsule owner(new Arena(arena), [](void* held) noexcept { delete static_cast<Arena*>(held); });
        outputs.append(nb::ndarray<nb::numpy, float, nb::ndim<2>>(
            buffer.data + view.column,
            {static_cast<size_t>(num_tokens), static_cast<size_t>(view.num_columns)}, owner,
            {buffer.stride, 1}));
    }
    return nb::tuple(outputs);
}

void bind_program(nb::module_& module) {
    using namespace nb::literals;
    module.attr("FORMATS") = format_names();
    nb::class_<OwnedMatrix>(module, "PackedMatrix",
                            "A matrix [n, k] in a Memory, and the bias [n] of its outputs.")
        .def("__init__", &make_matrix, nb::kw_only(), "memory"_a, "offset"_a, "format"_a, "n"_a, "k"_a,
             "panel_stride"_a, "bias"_a.none());
    ProgramClass program(
        module, "Program",
        "Instructions over planned buffers (csrc/program/instructions.h), each added by the method of "
        "its\nname. Operands are tuples (buffer, first column, number of columns).");
    program.def(nb::init<nb::object>(), "device"_a)
        .def("add_input", &OwnedProgram::add_input, "name"_a, "num_columns"_a)
        .def("add_buffer", &OwnedProgram::add_buffer, "offset"_a, "num_columns"_a)
        .def("add_output", &OwnedProgram::add_output, "operand"_a)
        .def("run", &OwnedProgram::run, "num_tokens"_a, "token_ids"_a.none(), "positions"_a.none(),
             "groups"_a, "inputs"_a, "rows_inputs"_a = nb::dict(),
             "Run a step; returns the outputs, each float32 [num_tokens, columns].");
    bind_instructions(program);
}

}  // namespace octavo
