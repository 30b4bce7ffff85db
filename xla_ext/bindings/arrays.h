// NumPy arrays in and out, with errors that name the argument.
#ifndef COOP_BINDINGS_ARRAYS_H_
#define COOP_BINDINGS_ARRAYS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/base/types.h"

namespace coop {

namespace nb = nanobind;

using AnyArray = nb::ndarray<nb::ro, nb::device::cpu>;

template <typename T>
using Vector = nb::ndarray<nb::numpy, const T, nb::ndim<1>>;
template <typename T>
using Table = nb::ndarray<nb::numpy, const T, nb::ndim<2>>;

template <typename T>
constexpr const char* DtypeName() {
  if constexpr (std::is_same_v<T, double>) return "float64";
  if constexpr (std::is_same_v<T, int64_t>) return "int64";
  if constexpr (std::is_same_v<T, bool>) return "bool";
}

// "(3, 4)"
inline std::string ShapeText(const AnyArray& array) {
  std::string text = "(";
  for (size_t i = 0; i < array.ndim(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(array.shape(i));
  }
  return text + (array.ndim() == 1 ? ",)" : ")");
}

// "float32"
inline std::string DtypeText(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const std::string bits = std::to_string(dtype.bits);
  switch (static_cast<Code>(dtype.code)) {
    case Code::Int: return "int" + bits;
    case Code::UInt: return "uint" + bits;
    case Code::Float: return "float" + bits;
    case Code::Complex: return "complex" + bits;
    case Code::Bool: return "bool";
    default: return "another type";
  }
}

template <typename T>
void CheckDtype(const AnyArray& array, const std::string& name) {
  if (array.dtype() == nb::dtype<T>()) return;
  throw nb::type_error((name + " must be an array of " + DtypeName<T>() +
                        ", got " + DtypeText(array.dtype()))
                           .c_str());
}

// A copy of a 1-D array; bool becomes uint8_t.
template <typename T,
          typename Stored = std::conditional_t<std::is_same_v<T, bool>,
                                               uint8_t, T>>
std::vector<Stored> ToVector(const AnyArray& array, const std::string& name) {
  CheckDtype<T>(array, name);
  if (array.ndim() != 1) {
    throw nb::value_error(
        (name + " must be one-dimensional, got shape " + ShapeText(array))
            .c_str());
  }
  // A view of other bytes as bool may hold more than 0 and 1.
  const Stored* data = static_cast<const Stored*>(array.data());
  std::vector<Stored> values(array.shape(0));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = data[static_cast<int64_t>(i) * array.stride(0)];
    if constexpr (std::is_same_v<T, bool>) values[i] = values[i] != 0;
  }
  return values;
}

// Rows of int64 as records: structs of nothing but int64_t members.
template <typename Record>
std::vector<Record> ToRecords(const AnyArray& array, const std::string& name) {
  static_assert(std::is_trivially_copyable_v<Record>);
  constexpr size_t kColumns = sizeof(Record) / sizeof(int64_t);
  CheckDtype<int64_t>(array, name);
  if (array.ndim() != 2 || array.shape(1) != kColumns) {
    throw nb::value_error((name + " must have shape (n, " +
                           std::to_string(kColumns) + "), got shape " +
                           ShapeText(array))
                              .c_str());
  }
  const auto* data = static_cast<const int64_t*>(array.data());
  std::vector<Record> records(array.shape(0));
  for (size_t row = 0; row < records.size(); ++row) {
    int64_t values[kColumns];
    for (size_t column = 0; column < kColumns; ++column) {
      values[column] = data[static_cast<int64_t>(row) * array.stride(0) +
                            static_cast<int64_t>(column) * array.stride(1)];
    }
    std::memcpy(&records[row], values, sizeof(Record));
  }
  return records;
}

// value(0), value(1), ... as a new array.
template <typename Value>
auto NewArray(int64_t length, Value value) {
  using T = decltype(value(int64_t{0}));
  auto* values = new T[At(length)];
  for (int64_t i = 0; i < length; ++i) values[i] = value(i);
  nb::capsule owner(values, [](void* p) noexcept {
    delete[] static_cast<T*>(p);
  });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(values, {At(length)}, owner);
}

// Read-only views; `owner` keeps the memory alive.
template <typename T>
Vector<T> ViewVector(const std::vector<T>& values, nb::handle owner) {
  return Vector<T>(values.data(), {values.size()}, owner);
}

template <typename Record>
Table<int64_t> ViewRecords(const std::vector<Record>& records,
                           nb::handle owner) {
  static_assert(std::is_standard_layout_v<Record>);
  constexpr size_t kColumns = sizeof(Record) / sizeof(int64_t);
  return Table<int64_t>(records.data(), {records.size(), kColumns}, owner);
}

}  // namespace coop

#endif  // COOP_BINDINGS_ARRAYS_H_
