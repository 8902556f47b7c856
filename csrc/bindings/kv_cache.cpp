#include "program/kv_cache.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <string>

#include "bindings/arrays.h"
#include "bindings/bindings.h"

namespace nb = nanobind;

namespace octavo {

namespace {

constexpr int MAX_BLOCK_SIZE = 1 << 16;  // so that the bytes of a page fit 32 bits

KVType kv_type_named(const std::string& name) {
    if (name == "bf16") {
        return KVType::bf16;
    }
    if (name == "f32") {
        return KVType::f32;
    }
    if (name == "fp8_e4m3") {
        return KVType::fp8_e4m3;
    }
    refuse("type is '", name, "'; it must be bf16, f32 or fp8_e4m3");
}

void require_between(const char* name, int64_t value, int64_t least, int64_t most) {
    require(least <= value && value <= most, name, " is ", value, "; it must be from ", least, " to ", most);
}

void require_multiple_of_16(const char* name, int value) {
    require(value % 16 == 0, name, " is ", value, "; it must be a multiple of 16");
}

void make(KVCacheGroup* self, const std::string& type, int num_layers, int64_t num_blocks, int block_size,
          int num_kv_heads, int head_size) {
    const KVType kv_type = kv_type_named(type);
    require_between("num_layers", num_layers, 1, 1 << 16);
    require_between("num_blocks", num_blocks, 1, std::numeric_limits<int32_t>::max());
    require_between("block_size", block_size, 16, MAX_BLOCK_SIZE);
    require_multiple_of_16("block_size", block_size);
    require_between("num_kv_heads", num_kv_heads, 1, 1 << 12);
    require_between("head_size", head_size, 16, MAX_HEAD_SIZE);
    require_multiple_of_16("head_size", head_size);
    // As floating point first: the bytes may be more than an integer holds.
    const double num_bytes =
        1.0 * num_layers * num_blocks * num_kv_heads * block_size * kv_head_bytes(kv_type, head_size);
    if (num_bytes > std::numeric_limits<int64_t>::max() / 2) {
        throw std::bad_alloc();
    }
    new (self)
        KVCacheGroup({kv_type, nullptr, num_blocks, 0, block_size, num_kv_heads, head_size}, num_layers);
}

void zero_blocks(KVCacheGroup& self, nb::handle block_ids) {
    const auto ids = array_of<int32_t, 1>(block_ids, "block_ids");
    const int64_t num_blocks = self.shape().num_blocks;
    for (size_t i = 0; i < ids.shape(0); ++i) {
        require(0 <= ids.data()[i] && ids.data()[i] < num_blocks, "block_ids holds ", ids.data()[i],
                "; blocks are 0 up to ", num_blocks - 1);
    }
    for (size_t i = 0; i < ids.shape(0); ++i) {
        self.zero(ids.data()[i]);
    }
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> bytes_of(KVCacheGroup& self) {
    return {self.shape().data, {static_cast<size_t>(self.num_bytes())}, nb::find(self)};
}

}  // namespace

void bind_kv_cache(nb::module_& module) {
    nb::class_<KVCacheGroup>(module, "KVCache",
                             "K and V of all layers of one KV cache group, zeroed at first.")
        .def("__init__", &make, nb::kw_only(), nb::arg("type"), nb::arg("num_layers"), nb::arg("num_blocks"),
             nb::arg("block_size"), nb::arg("num_kv_heads"), nb::arg("head_size"))
        .def_prop_ro("num_bytes", &KVCacheGroup::num_bytes)
        .def_prop_ro("bytes", &bytes_of,
                     "All of it, uint8 [num_bytes], as program/instructions.h lays it out.")
        .def("zero_blocks", &zero_blocks, nb::arg("block_ids"),
             "Set K and V of the blocks int32 [k] to zero in every layer.");
    module.def(
        "kv_head_bytes",
        [](const std::string& type, int head_size) { return kv_head_bytes(kv_type_named(type), head_size); },
        nb::arg("type"), nb::arg("head_size"), "Bytes of one token's K and V in one KV head of a KVCache.");
}

}  // namespace octavo
