// Numbers as Python passes them: of exactly the type that is asked for, and with
// errors that name the argument. nanobind would take True for 1.
#ifndef COOP_BINDINGS_NUMBERS_H_
#define COOP_BINDINGS_NUMBERS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bindings/checks.h"
#include "core/base/types.h"

namespace coop {

namespace nb = nanobind;

// Arguments that are looked at only by the functions below.
struct IntArg {
  nb::handle value;
};
struct FloatArg {
  nb::handle value;
};
struct BoolArg {
  nb::handle value;
};

// "'64'", at most so long that an error stays readable.
inline std::string ShownValue(nb::handle value) {
  constexpr size_t kLongest = 80;
  std::string text = "a value that cannot be shown";
  try {
    text = nb::repr(value).c_str();
  } catch (nb::python_error&) {
    // An integer of more digits than Python prints.
  }
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

[[noreturn]] inline void RaiseWrongType(const std::string& where,
                                        const char* name, const char* wanted,
                                        nb::handle got) {
  throw nb::type_error((where + ": `" + name + "` must be " + wanted +
                        ", got " + ShownValue(got))
                           .c_str());
}

// Of a NumPy or JAX scalar the kind of its type ('b', 'i', 'u', 'f', ...), of
// anything else '\0'.
inline char DtypeKind(nb::handle value) {
  if (!nb::hasattr(value, "dtype")) return '\0';
  const nb::object kind = nb::getattr(value.attr("dtype"), "kind", nb::none());
  if (!nb::isinstance<nb::str>(kind)) return '?';
  return *nb::cast<nb::str>(kind).c_str();
}

inline bool IsBool(nb::handle value) {
  return PyBool_Check(value.ptr()) || DtypeKind(value) == 'b';
}

// The Python int, an invalid object if `value` is none.
inline nb::object AsPythonInt(nb::handle value) {
  if (IsBool(value) || !PyIndex_Check(value.ptr())) return {};
  nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) PyErr_Clear();
  return number;
}

inline int64_t ToInt64(IntArg arg, const std::string& where, const char* name) {
  const nb::object number = AsPythonInt(arg.value);
  if (!number.is_valid()) RaiseWrongType(where, name, "an int", arg.value);
  int overflow = 0;
  const long long value =
      PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) {
    RaiseValueError(where, ": `", name, "` must be in [-2**63, 2**63), got ",
                    ShownValue(arg.value));
  }
  return value;
}

inline int64_t ToCount(IntArg arg, const std::string& where, const char* name) {
  const int64_t value = ToInt64(arg, where, name);
  if (value < 0) {
    RaiseValueError(where, ": `", name, "` must not be negative, got ", value);
  }
  return value;
}

inline std::optional<int64_t> ToOptionalCount(std::optional<IntArg> arg,
                                              const std::string& where,
                                              const char* name) {
  if (!arg) return std::nullopt;
  return ToCount(*arg, where, name);
}

inline uint64_t ToSeed(IntArg arg, const std::string& where, const char* name) {
  const nb::object number = AsPythonInt(arg.value);
  if (!number.is_valid()) RaiseWrongType(where, name, "an int", arg.value);
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    RaiseValueError(where, ": `", name, "` must be in [0, 2**64), got ",
                    ShownValue(arg.value));
  }
  return value;
}

// May be a NaN or infinite.
inline double ToDouble(FloatArg arg, const std::string& where,
                       const char* name) {
  const char kind = DtypeKind(arg.value);
  const bool is_number =
      kind == '\0' ? PyFloat_Check(arg.value.ptr()) ||
                         (PyLong_Check(arg.value.ptr()) && !IsBool(arg.value))
                   : kind == 'i' || kind == 'u' || kind == 'f';
  if (is_number) {
    const double value = PyFloat_AsDouble(arg.value.ptr());
    if (PyErr_Occurred() == nullptr) return value;
    PyErr_Clear();  // Too large, or an array.
  }
  RaiseWrongType(where, name, "a float", arg.value);
}

inline bool ToBool(BoolArg arg, const std::string& where, const char* name) {
  if (IsBool(arg.value)) {
    const int value = PyObject_IsTrue(arg.value.ptr());
    if (value >= 0) return value != 0;
    PyErr_Clear();  // An array.
  }
  RaiseWrongType(where, name, "a bool", arg.value);
}

inline Bytes ToAlignment(IntArg arg, const char* where) {
  const Bytes alignment = ToInt64(arg, where, "alignment");
  CheckAlignment(where, alignment);
  return alignment;
}

}  // namespace coop

NAMESPACE_BEGIN(NB_NAMESPACE)
NAMESPACE_BEGIN(detail)

// Takes whatever it is given.
#define COOP_ANY_CASTER(Arg, name)                                            \
  template <>                                                                 \
  struct type_caster<Arg> {                                                   \
    NB_TYPE_CASTER(Arg, const_name(name))                                     \
    bool from_python(handle source, uint32_t, cleanup_list*) noexcept {       \
      value.value = source;                                                   \
      return true;                                                            \
    }                                                                         \
  };

COOP_ANY_CASTER(coop::IntArg, "int")
COOP_ANY_CASTER(coop::FloatArg, "float")
COOP_ANY_CASTER(coop::BoolArg, "bool")

#undef COOP_ANY_CASTER

NAMESPACE_END(detail)
NAMESPACE_END(NB_NAMESPACE)

#endif  // COOP_BINDINGS_NUMBERS_H_
