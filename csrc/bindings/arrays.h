// Numpy arrays as bindings take them: of exactly one type and number of dimensions, checked by name.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <sstream>
#include <string>

namespace octavo {

// Throws ValueError with a message of all `parts`.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
    std::ostringstream message;
    (message << ... << parts);
    throw nanobind::value_error(message.str().c_str());
}

// The same unless `holds`. The message is put together only then: this is called once for every slot of a
// step.
template <class... Parts>
void require(bool holds, const Parts&... parts) {
    if (!holds) {
        refuse(parts...);
    }
}

template <class T>
constexpr const char* DTYPE = nullptr;
template <>
constexpr const char* DTYPE<uint8_t> = "uint8";
template <>
constexpr const char* DTYPE<uint32_t> = "uint32";
template <>
constexpr const char* DTYPE<uint64_t> = "uint64";
template <>
constexpr const char* DTYPE<int32_t> = "int32";
template <>
constexpr const char* DTYPE<int64_t> = "int64";
template <>
constexpr const char* DTYPE<float> = "float32";

template <class T, size_t NUM_DIMENSIONS>
using Array =
    nanobind::ndarray<const T, nanobind::ndim<NUM_DIMENSIONS>, nanobind::c_contig, nanobind::device::cpu>;

// What Python's str() makes of `object`.
inline std::string text_of(nanobind::handle object) {
    return nanobind::str(object).c_str();
}

// `object` as an array that is only read. Throws ValueError, naming it `name`, for anything else; nothing is
// converted, since that would hide a copy.
template <class T, size_t NUM_DIMENSIONS>
Array<T, NUM_DIMENSIONS> array_of(nanobind::handle object, const std::string& name) {
    Array<T, NUM_DIMENSIONS> array;
    if (nanobind::try_cast(object, array, false)) {
        return array;
    }
    std::string given = text_of(object.type().attr("__name__"));
    if (nanobind::hasattr(object, "dtype") && nanobind::hasattr(object, "strides")) {
        given = text_of(object.attr("dtype")) + " of shape " + text_of(object.attr("shape")) +
                " and strides " + text_of(object.attr("strides"));
    }
    refuse(name, " is ", given, "; it must be a contiguous numpy array of ", DTYPE<T>, " with ",
           NUM_DIMENSIONS, NUM_DIMENSIONS == 1 ? " dimension" : " dimensions");
}

// The numbers of an array of `length`.
template <class T>
const T* numbers(nanobind::handle object, const std::string& name, int64_t length) {
    const auto array = array_of<T, 1>(object, name);
    require(static_cast<int64_t>(array.shape(0)) == length, name, " has ", array.shape(0),
            " entries; it must have ", length);
    return array.data();
}

// The same of an array [num_rows, num_columns].
template <class T>
const T* table(nanobind::handle object, const std::string& name, int64_t num_rows, int64_t num_columns) {
    const auto array = array_of<T, 2>(object, name);
    require(static_cast<int64_t>(array.shape(0)) == num_rows &&
                static_cast<int64_t>(array.shape(1)) == num_columns,
            name, " has shape (", array.shape(0), ", ", array.shape(1), "); it must be (", num_rows, ", ",
            num_columns, ")");
    return array.data();
}

}  // namespace octavo
