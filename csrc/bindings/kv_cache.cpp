#include "program/kv_cache.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <string>
#include <unordered_set>

#include "bindings/arrays.h"
#include "bindings/bindings.h"

namespace nb = nanobind;

namespace octavo {

namespace {

constexpr int MAX_BLOCK_SIZE = 1 << 16;  // so that the bytes of a head's share of a page fit 32 bits
constexpr int CACHE_LINE = 64;           // where pages begin

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

void require_multiple(const char* name, int64_t value, int of) {
    require(value % of == 0, name, " is ", value, "; it must be a multiple of ", of);
}

void make(KVPages* self, int num_pages, int64_t num_blocks, int64_t page_bytes) {
    require_between("num_pages", num_pages, 0, 1 << 16);
    require_between("num_blocks", num_blocks, 1, std::numeric_limits<int32_t>::max());
    require_between("page_bytes", page_bytes, 0, int64_t{1} << 40);
    require_multiple("page_bytes", page_bytes, CACHE_LINE);
    // As floating point first: the bytes may be more than an integer holds.
    if (1.0 * num_pages * num_blocks * page_bytes > std::numeric_limits<int64_t>::max() / 2) {
        throw std::bad_alloc();
    }
    new (self) KVPages(num_pages, num_blocks, page_bytes);
}

KVCache layer(const KVPages& self, int page, const std::string& type, int block_size, int num_kv_heads,
              int head_size) {
    require_between("page", page, 0, self.num_pages() - 1);
    require_between("block_size", block_size, 16, MAX_BLOCK_SIZE);
    require_multiple("block_size", block_size, 16);
    require_between("num_kv_heads", num_kv_heads, 1, 1 << 12);
    require_between("head_size", head_size, 16, MAX_HEAD_SIZE);
    require_multiple("head_size", head_size, 16);
    const KVCache shape{kv_type_named(type), nullptr, 0, 0, 0, block_size, num_kv_heads, head_size};
    require(kv_page_bytes(shape) <= self.page_bytes(), "a page has ", self.page_bytes(),
            " bytes; the layer needs ", kv_page_bytes(shape));
    return self.layer(shape, page);
}

using BlockIds = Array<int32_t, 1>;

BlockIds blocks_of(const KVPages& pages, nb::handle block_ids, const char* name) {
    const auto ids = array_of<int32_t, 1>(block_ids, name);
    for (size_t i = 0; i < ids.shape(0); ++i) {
        require(0 <= ids.data()[i] && ids.data()[i] < pages.num_blocks(), name, " holds ", ids.data()[i],
                "; blocks are 0 up to ", pages.num_blocks() - 1);
    }
    return ids;
}

void zero_blocks(KVPages& self, nb::handle block_ids) {
    const BlockIds ids = blocks_of(self, block_ids, "block_ids");
    for (size_t i = 0; i < ids.shape(0); ++i) {
        self.zero(ids.data()[i]);
    }
}

// No block takes two copies, and none is both read and written: then their order does not matter.
void check_copies(const BlockIds& sources, const BlockIds& destinations) {
    require(sources.shape(0) == destinations.shape(0), "destinations has ", destinations.shape(0),
            " entries; it must have ", sources.shape(0));
    std::unordered_set<int32_t> read(sources.data(), sources.data() + sources.shape(0)), written;
    for (size_t i = 0; i < destinations.shape(0); ++i) {
        const int32_t block = destinations.data()[i];
        require(written.insert(block).second, "destinations holds ", block, " twice; a block takes one copy");
        require(read.count(block) == 0, "destinations holds ", block,
                ", which sources holds too; a block is one of them");
    }
}

void copy_blocks(KVPages& self, nb::handle sources, nb::handle destinations) {
    const BlockIds from = blocks_of(self, sources, "sources");
    const BlockIds to = blocks_of(self, destinations, "destinations");
    check_copies(from, to);
    for (size_t i = 0; i < from.shape(0); ++i) {
        self.copy(from.data()[i], to.data()[i]);
    }
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>> bytes_of(KVPages& self) {
    return {self.data(),
            {static_cast<size_t>(self.num_pages()), static_cast<size_t>(self.num_blocks()),
             static_cast<size_t>(self.page_bytes())},
            nb::find(self)};
}

}  // namespace

void bind_kv_cache(nb::module_& module) {
    nb::class_<KVCache>(module, "KVCache",
                        "K and V of one layer, in pages of a KVPages that it keeps alive.");
    nb::class_<KVPages>(module, "KVPages",
                        "Blocks of equal pages that layers of all kinds share, zeroed at first.")
        .def("__init__", &make, nb::kw_only(), nb::arg("num_pages"), nb::arg("num_blocks"),
             nb::arg("page_bytes"))
        .def_prop_ro("bytes", &bytes_of, "All of it, uint8 [num_pages, num_blocks, page_bytes].")
        .def("layer", &layer, nb::kw_only(), nb::arg("page"), nb::arg("type"), nb::arg("block_size"),
             nb::arg("num_kv_heads"), nb::arg("head_size"), nb::keep_alive<0, 1>(),
             "The KVCache of a layer that has page `page` of each block.")
        .def("zero_blocks", &zero_blocks, nb::arg("block_ids"),
             "Set all pages of the blocks int32 [k] to zero.")
        .def("copy_blocks", &copy_blocks, nb::arg("sources"), nb::arg("destinations"),
             "Copy all pages of the blocks `sources` int32 [k] to the blocks `destinations` int32 [k].");
    module.def(
        "kv_head_bytes",
        [](const std::string& type, int head_size) { return kv_head_bytes(kv_type_named(type), head_size); },
        nb::arg("type"), nb::arg("head_size"), "Bytes of one token's K and V in one KV head of a KVCache.");
}

}  // namespace octavo
