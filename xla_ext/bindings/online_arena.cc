// OnlineArena: the paper's allocator at run time.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/checks.h"
#include "bindings/module.h"
#include "bindings/numbers.h"
#include "core/allocator/online_arena.h"

namespace coop {
namespace {

using MemoryView = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// `owner` keeps the memory alive; what is in it changes when tensors move.
MemoryView View(Memory memory, nb::handle owner) {
  return MemoryView(reinterpret_cast<uint8_t*>(memory.data()), {memory.size()},
                    owner);
}

// Known to Python's garbage collector: a recomputation that refers to whoever
// owns the arena is a cycle.
class CollectedArena : public OnlineArena {
 public:
  using OnlineArena::OnlineArena;

  // Calls `recompute(value, *inputs)`, all NumPy arrays of bytes.
  Recompute ToRecompute(nb::object recompute) {
    if (recompute.is_none()) return nullptr;
    auto callback = std::make_shared<Callback>(callbacks_, std::move(recompute));
    return [this, callback = std::move(callback)](
               Memory value, std::span<const Memory> inputs) {
      const nb::object self = nb::find(*this);
      nb::list views;
      for (const Memory& input : inputs) views.append(View(input, self));
      callback->function(View(value, self), *views);
    };
  }

  static int Traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    for (const Callback* callback : *Of(self)) {
      Py_VISIT(callback->function.ptr());
    }
    return 0;
  }

  static int Clear(PyObject* self) {
    // A function that goes may take others with it.
    std::vector<nb::object> functions;
    for (Callback* callback : *Of(self)) {
      functions.push_back(std::exchange(callback->function, nb::none()));
    }
    return 0;
  }

 private:
  struct Callback;
  using Callbacks = std::set<Callback*>;

  struct Callback {
    Callback(std::shared_ptr<Callbacks> the_others, nb::object the_function)
        : function(std::move(the_function)), all(std::move(the_others)) {
      all->insert(this);
    }
    ~Callback() { all->erase(this); }
    Callback(const Callback&) = delete;
    Callback& operator=(const Callback&) = delete;

    nb::object function;
    std::shared_ptr<Callbacks> all;
  };

  static std::shared_ptr<Callbacks> Of(PyObject* self) {
    return nb::inst_ptr<CollectedArena>(self)->callbacks_;
  }

  // Shared: the base class, with its tensors' callbacks, is destroyed last.
  std::shared_ptr<Callbacks> callbacks_ = std::make_shared<Callbacks>();
};

PyType_Slot kCollected[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(CollectedArena::Traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(CollectedArena::Clear)},
    {0, nullptr},
};

}  // namespace

void BindOnlineArena(nb::module_& m) {
  nb::exception<ArenaExhausted>(m, "ArenaExhausted", PyExc_MemoryError);
  nb::class_<CollectedArena>(m, "OnlineArena", nb::type_slots(kCollected), R"(
One contiguous buffer for tensors of a program whose graph is not known ahead.

When there is no room, the cheapest run of neighbouring tensors makes it: their
memory is free, and they are recomputed when they are touched again. Coop
("Memory is not a Commodity", NeurIPS 2023), sections 3.3 to 3.5, over the
planner's own pool. Memory comes as NumPy arrays of bytes, to be looked at as
any type with `.view(dtype)`.

Parameters
----------
capacity : int
    Bytes, rounded down to a multiple of `alignment`.
alignment : int
    Of every tensor; a power of two.
cheap_density : float
    Seconds per byte below which a tensor is cheap to recompute; cheap tensors
    lie at the other end than expensive ones.
)")
      .def(
          "__init__",
          [](CollectedArena* arena, IntArg capacity, IntArg alignment,
             FloatArg cheap_density) {
            const OnlineArena::Options options{
                .alignment = ToAlignment(alignment, "OnlineArena"),
                .cheap_density =
                    ToDouble(cheap_density, "OnlineArena", "cheap_density"),
            };
            if (!(options.cheap_density >= 0)) {  // Nor a NaN.
              RaiseValueError(
                  "OnlineArena: `cheap_density` must not be negative, got ",
                  options.cheap_density);
            }
            new (arena) CollectedArena(
                ToCount(capacity, "OnlineArena", "capacity"), options);
          },
          nb::arg("capacity").none(), nb::kw_only(), nb::arg("alignment").none() = 64,
          nb::arg("cheap_density").none() = 0.0)
      .def(
          "allocate",
          [](CollectedArena& arena, IntArg bytes, FloatArg seconds,
             const std::vector<IntArg>& inputs, nb::object recompute,
             std::optional<IntArg> take_over) {
            if (!recompute.is_none() && !PyCallable_Check(recompute.ptr())) {
              RaiseWrongType("allocate", "recompute", "callable or None",
                             recompute);
            }
            OnlineArena::Request request{
                .bytes = ToInt64(bytes, "allocate", "bytes"),
                .seconds = ToDouble(seconds, "allocate", "seconds"),
                .inputs = {},
                .recompute = arena.ToRecompute(std::move(recompute)),
            };
            for (const IntArg input : inputs) {
              request.inputs.push_back(ToInt64(input, "allocate", "inputs"));
            }
            if (take_over) {
              // Negative is not "none" here.
              request.take_over = ToCount(*take_over, "allocate", "take_over");
            }
            return arena.Allocate(std::move(request));
          },
          nb::arg("bytes").none(), nb::kw_only(), nb::arg("seconds").none() = 0.0,
          nb::arg("inputs") = nb::list(),
          nb::arg("recompute") = nb::none(),
          nb::arg("take_over") = nb::none(), R"(
A new tensor, whose value is whatever is in its memory: touch it and write.

Parameters
----------
bytes : int
    Its size, positive.
seconds : float
    What it takes to make its value; the arena's clock moves on by it.
inputs : list of int
    The tensors it is made from. Evicted ones are recomputed first.
recompute : callable, optional
    `recompute(value, *inputs)` writes the value again. Without one the tensor
    is never evicted. It must not use the arena.
take_over : int, optional
    An input whose memory the tensor takes over, value and all ("recomputable
    in-place"): of the same size, and not pinned.

Returns
-------
int
    The tensor's handle.

Raises
------
ArenaExhausted
    A `MemoryError`: not even eviction makes room.
)")
      .def(
          "touch",
          [](nb::handle_t<CollectedArena> self, IntArg tensor) {
            const Handle handle = ToInt64(tensor, "touch", "tensor");
            return View(nb::cast<CollectedArena&>(self).Touch(handle), self);
          },
          nb::arg("tensor").none(),
          "The tensor's memory, recomputed if it was evicted. Valid until the "
          "next call that may evict: `pin` it to keep it longer.")
      .def(
          "pin",
          [](nb::handle_t<CollectedArena> self, IntArg tensor) {
            const Handle handle = ToInt64(tensor, "pin", "tensor");
            return View(nb::cast<CollectedArena&>(self).Pin(handle), self);
          },
          nb::arg("tensor").none(),
          "As `touch`; the tensor stays where it is until it is unpinned as "
          "often as it was pinned.")
      .def(
          "unpin",
          [](CollectedArena& arena, IntArg tensor) {
            arena.Unpin(ToInt64(tensor, "unpin", "tensor"));
          },
          nb::arg("tensor").none())
      .def(
          "evict",
          [](CollectedArena& arena, IntArg tensor) {
            arena.Evict(ToInt64(tensor, "evict", "tensor"));
          },
          nb::arg("tensor").none(),
          "Free its memory now; it is recomputed when it is touched again.")
      .def(
          "release",
          [](CollectedArena& arena, IntArg tensor) {
            arena.Release(ToInt64(tensor, "release", "tensor"));
          },
          nb::arg("tensor").none(),
           "The program will not touch it again. Its memory is free at once, "
           "unless it has no `recompute` and another tensor may be recomputed "
           "from it.")
      .def(
          "is_resident",
          [](const CollectedArena& arena, IntArg tensor) {
            return arena.IsResident(ToInt64(tensor, "is_resident", "tensor"));
          },
          nb::arg("tensor").none())
      .def(
          "offset",
          [](const CollectedArena& arena, IntArg tensor) -> std::optional<Offset> {
            const Offset offset =
                arena.OffsetOf(ToInt64(tensor, "offset", "tensor"));
            if (offset == kNone) return std::nullopt;
            return offset;
          },
          nb::arg("tensor").none(), "Where it lies; None if it is not resident.")
      .def(
          "check_invariants",
          [](const CollectedArena& arena) {
            const auto wrong = arena.CheckInvariants();
            if (wrong) throw std::runtime_error("OnlineArena: " + *wrong);
          },
          "Raises `RuntimeError` saying what is wrong with the books.")
      .def_prop_ro(
          "memory",
          [](nb::handle_t<CollectedArena> self) {
            return View(nb::cast<CollectedArena&>(self).memory(), self);
          },
          "All of the arena as an array of bytes, with whatever is in it.")
      .def_prop_ro("capacity",
                   [](const CollectedArena& a) { return a.pool().capacity(); })
      .def_prop_ro("free_bytes",
                   [](const CollectedArena& a) { return a.pool().free_bytes(); })
      .def_prop_ro(
          "largest_free_bytes",
          [](const CollectedArena& a) { return a.pool().largest_free_bytes(); })
      .def_prop_ro("peak_bytes",
                   [](const CollectedArena& a) { return a.pool().peak_bytes(); })
      .def_prop_ro("evictions",
                   [](const CollectedArena& a) { return a.counts().evictions; },
                   "How many tensors were evicted to make room.")
      .def_prop_ro(
          "recomputations",
          [](const CollectedArena& a) { return a.counts().recomputations; })
      .def_prop_ro("recomputed_seconds",
                   [](const CollectedArena& a) {
                     return a.counts().recomputed_seconds;
                   })
      .def_prop_ro("clock", &CollectedArena::clock,
                   "Seconds of everything made so far.")
      .def("__repr__", [](const CollectedArena& a) {
        return "OnlineArena(" + std::to_string(a.pool().capacity()) +
               " bytes, " + std::to_string(a.pool().free_bytes()) + " free, " +
               std::to_string(a.counts().evictions) + " evictions, " +
               std::to_string(a.counts().recomputations) + " recomputations)";
      });
}

}  // namespace coop
