// The records of checked mode, see ffi/arena/books.h.

#include <nanobind/stl/optional.h>

#include <optional>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "bindings/numbers.h"
#include "ffi/arena/books.h"

namespace coop {
namespace {

// Rows that NumPy can look at.
struct EventTable {
  std::vector<ArenaEvent> events;
};

}  // namespace

void BindBooks(nb::module_& m) {
  nb::class_<EventTable>(m, "ArenaEvents",
                         "The stores and loads of one run of a step in an arena.")
      .def_prop_ro(
          "rows",
          [](nb::handle_t<EventTable> self) {
            return ViewRecords(nb::cast<const EventTable&>(self).events, self);
          },
          "int64, (n, 5): boundary, kind (0: stored, 1: brought back), tensor, "
          "offset, bytes; in the order in which it happened.");
  m.def(
      "last_arena_events",
      [](IntArg books) -> std::optional<EventTable> {
        auto events = TheBookShelf().LastEvents(
            ToInt64(books, "last_arena_events", "books"));
        if (!events) return std::nullopt;
        return EventTable{*std::move(events)};
      },
      nb::arg("books"),
      "The events of the last run that finished and was written into these "
      "books; None if there is none.");
  m.def(
      "remove_arena_books",
      [](IntArg books) {
        TheBookShelf().Remove(ToInt64(books, "remove_arena_books", "books"));
      },
      nb::arg("books"),
      "Forget all runs of these books.");
}

}  // namespace coop
