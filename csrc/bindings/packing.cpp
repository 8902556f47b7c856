// Packing as Python sees it: memory for packed matrices, and putting matrices there on all threads.
#include "program/packing.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <string>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/formats.h"
#include "bindings/gil.h"
#include "platform/memory.h"
#include "program/device.h"

namespace nb = nanobind;

namespace octavo {

namespace {

// A matrix [n, k] as it lies in its file.
struct FileMatrix {
    Format format;
    int64_t n, k;
    const uint8_t* rows;

    int64_t num_panels() const { return round_up(n, PANEL) / PANEL; }

    int64_t panel_bytes() const { return panel_layout(format, k).num_bytes; }
};

int64_t checked_k(Format format, int64_t k) {
    const FormatInfo& f = info(format);
    constexpr int64_t LARGEST = std::numeric_limits<int32_t>::max();
    require(0 < k && k <= LARGEST && k % f.quant_block == 0, "k is ", k, "; ", f.name,
            " takes a multiple of ", f.quant_block, " from ", f.quant_block, " to ", LARGEST);
    return k;
}

// `rows` must outlive the returned value.
FileMatrix file_matrix(const std::string& format_name, const Array<uint8_t, 2>& rows, int64_t k) {
    const Format format = format_named(format_name);
    const int64_t n = rows.shape(0), row_bytes = rows.shape(1),
                  needed = file_row_bytes(format, checked_k(format, k));
    require(n > 0 && row_bytes == needed, "rows have the shape (", n, ", ", row_bytes, "); a matrix of ",
            format_name, " with k = ", k, " has at least one row and ", needed, " bytes in each");
    return {format, n, k, rows.data()};
}

void pack_on_all_threads(Device& device, const FileMatrix& matrix, uint8_t* panels, int64_t panel_stride) {
    const WithoutGil without_gil;
    device.pool.run([&](Worker& worker) {
        const Range range = share(matrix.num_panels(), worker);
        pack_panels(matrix.format, matrix.rows, matrix.n, matrix.k, range.begin, range.end, panels,
                    panel_stride);
    });
}

// Zeros in memory of their own.
template <class T>
nb::ndarray<nb::numpy, T> new_array(size_t num_rows, size_t num_columns) {
    Memory* memory = new Memory(num_rows * num_columns * sizeof(T));
    const nb::capsule owner(memory, [](void* owned) noexcept { delete static_cast<Memory*>(owned); });
    return nb::ndarray<nb::numpy, T>(memory->data(), {num_rows, num_columns}, owner);
}

nb::ndarray<nb::numpy, uint8_t> pack(Device& device, const std::string& format, nb::handle rows, int64_t k) {
    const auto array = array_of<uint8_t, 2>(rows, "rows");
    const FileMatrix matrix = file_matrix(format, array, k);
    auto panels = new_array<uint8_t>(matrix.num_panels(), matrix.panel_bytes());
    pack_on_all_threads(device, matrix, panels.data(), matrix.panel_bytes());
    return panels;
}

void pack_into(Device& device, const std::string& format, nb::handle rows, int64_t k, Memory& memory,
               int64_t offset, int64_t panel_stride) {
    const auto array = array_of<uint8_t, 2>(rows, "rows");
    const FileMatrix matrix = file_matrix(format, array, k);
    const int64_t size = memory.size(), panel_bytes = matrix.panel_bytes(), num_panels = matrix.num_panels();
    require(offset >= 0 && offset % 64 == 0 && panel_stride % 64 == 0, "offset is ", offset,
            " and panel_stride ", panel_stride, "; both must be multiples of 64, and not negative");
    require(panel_stride >= panel_bytes, "panel_stride is ", panel_stride, "; a panel of ", format,
            " with k = ", k, " takes ", panel_bytes, " bytes");
    // Divided, because the product may be more than an integer holds.
    const int64_t last_may_begin = size - panel_bytes - offset;
    require(last_may_begin >= 0 && num_panels - 1 <= last_may_begin / panel_stride, num_panels, " panels of ",
            panel_bytes, " bytes, every ", panel_stride, " from ", offset, " on, do not fit into memory of ",
            size, " bytes");
    pack_on_all_threads(device, matrix, memory.data() + offset, panel_stride);
}

int64_t panel_bytes(const std::string& format_name, int64_t k) {
    const Format format = format_named(format_name);
    return panel_layout(format, checked_k(format, k)).num_bytes;
}

nb::ndarray<nb::numpy, float> dequantize(const std::string& format, nb::handle rows, int64_t k) {
    const auto array = array_of<uint8_t, 2>(rows, "rows");
    const FileMatrix matrix = file_matrix(format, array, k);
    auto values = new_array<float>(matrix.n, k);
    for (int64_t i = 0; i < matrix.n; ++i) {
        dequantize_row(matrix.format, matrix.rows + i * array.shape(1), k, values.data() + i * k);
    }
    return values;
}

}  // namespace

void bind_packing(nb::module_& module) {
    nb::class_<Memory>(module, "Memory", "Zeroed memory at a multiple of 64, freed with the object.")
        .def(nb::init<size_t>(), nb::arg("num_bytes"))
        .def_prop_ro(
            "address", [](const Memory& memory) { return reinterpret_cast<uintptr_t>(memory.data()); },
            "Where it begins; 0 when it is empty.")
        .def_prop_ro("size", &Memory::size, "Bytes.");
    module.def("panel_bytes", &panel_bytes, nb::arg("format"), nb::arg("k"),
               "Bytes of a packed panel: 16 outputs of `k` inputs in `format`, a multiple of 64. Raises "
               "ValueError.");
    module.def("pack", &pack, nb::arg("device"), nb::arg("format"), nb::arg("rows"), nb::arg("k"),
               "The matrix [n, k] whose file has `rows`, uint8 [n, row bytes], as uint8 [panels, "
               "panel_bytes]. Raises ValueError.");
    module.def(
        "pack_into", &pack_into, nb::arg("device"), nb::arg("format"), nb::arg("rows"), nb::arg("k"),
        nb::arg("memory"), nb::arg("offset"), nb::arg("panel_stride"),
        "The same into `memory`: panel p begins at byte offset + p * panel_stride. Raises ValueError, before "
        "anything is written, for a matrix that is not one or does not fit.");
    module.def("dequantize", &dequantize, nb::arg("format"), nb::arg("rows"), nb::arg("k"),
               "The numbers of the matrix [n, k] whose file has `rows`, uint8 [n, row bytes], as new float32 "
               "[n, k]. Raises ValueError.");
}

}  // namespace octavo
