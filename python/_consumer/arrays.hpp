// Arrays of numpy, PyTorch and JAX in C++.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

using Input = nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>; // any dtype
using Shape = std::vector<size_t>;

static constexpr nb::dlpack::dtype dtypes[] = {{}, nb::dtype<uint8_t>(), nb::dtype<int32_t>(), nb::dtype<float>()};

// As they stand in the stubs.
struct Array : nb::object {
    NB_OBJECT_DEFAULT(Array, object, "numpy.typing.NDArray[typing.Any]", bool)
};
struct Like : nb::object {
    NB_OBJECT_DEFAULT(Like, object, "numpy.typing.ArrayLike", bool)
};
using Pair = nb::typed<nb::tuple, Array, Array>;

// Raises; the format is PyErr_Format's.
template <class... Values> [[noreturn]] void refuse(PyObject *type, const char *format, Values... values) {
    PyErr_Format(type, format, values...);
    throw nb::python_error();
}

// A new array, uninitialised; its memory in *values.
inline Array new_array(nb::dlpack::dtype dtype, const Shape &shape, void **values) {
    size_t bytes = dtype.bits / 8;
    for (size_t side : shape) bytes *= side;
    *values = aligned_alloc(64, (bytes + 64) & ~(size_t)63);
    if (!*values) throw std::bad_alloc();
    nb::capsule owner(*values, [](void *memory) noexcept { free(memory); });
    return nb::borrow<Array>(
        nb::cast(nb::ndarray<nb::numpy>(*values, shape.size(), shape.data(), owner, nullptr, dtype)));
}
template <class T> Array new_array(size_t count, T **values) {
    return new_array(nb::dtype<T>(), {count}, (void **)values);
}

// An array, or what numpy makes of numbers and sequences. TypeError names `what`.
inline Input as_input(nb::handle object, const char *what) {
    Input input;
    if (nb::try_cast(object, input)) return input;
    if (!PyUnicode_Check(object.ptr()) && !nb::hasattr(object, "__dlpack_device__") &&
        nb::try_cast(nb::module_::import_("numpy").attr("ascontiguousarray")(object), input))
        return input;
    refuse(PyExc_TypeError, "%s: must be numbers in an array of the CPU, not %R", what, Py_TYPE(object.ptr()));
}

// Numbers of the array as To; an integer that To cannot hold becomes its greatest. False: another dtype than these.
template <class To, class... From> bool convert(const Input &input, std::vector<To> &to) {
    auto from = [&](auto example) {
        using Number = decltype(example);
        if (input.dtype() != nb::dtype<Number>()) return false;
        auto numbers = (const Number *)input.data();
        to.assign(numbers, numbers + input.size());
        for (size_t i = 0; i < to.size() && std::is_integral_v<To>; i++)
            if ((Number)to[i] != numbers[i] || std::signbit((double)to[i]) != std::signbit((double)numbers[i]))
                to[i] = std::numeric_limits<To>::max();
        return true;
    };
    return (from(From()) || ...);
}
template <class To> void convert_integers(const Input &input, std::vector<To> &to, const char *what) {
    if (!convert<To, int32_t, int64_t, uint32_t, uint64_t, uint8_t, int8_t, int16_t, uint16_t>(input, to) &&
        input.size())
        refuse(PyExc_TypeError, "%s: must be integers", what);
}
inline std::vector<uint32_t> as_numbers(nb::handle object, const char *what) {
    std::vector<uint32_t> numbers;
    convert_integers(as_input(object, what), numbers, what);
    return numbers;
}
