// Pool and find_window, exposed for the tests.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/checks.h"
#include "bindings/module.h"
#include "bindings/numbers.h"
#include "core/online/pool.h"
#include "core/online/window.h"

namespace coop {
namespace {

// The core names blocks by piece; here they go by offset.
class PoolByOffset {
 public:
  PoolByOffset(Bytes capacity, Bytes alignment) : pool_(capacity, alignment) {}

  std::optional<Offset> Allocate(IntArg size, const std::string& side) {
    const Bytes bytes = ToInt64(size, "Pool.allocate", "bytes");
    if (bytes <= 0) {
      RaiseValueError("Pool.allocate: `bytes` must be positive, got ", bytes);
    }
    if (bytes > pool_.capacity()) return std::nullopt;
    if (side != "left" && side != "right") {
      throw nb::value_error(
          ("Pool.allocate: `side` must be 'left' or 'right', got '" + side +
           "'")
              .c_str());
    }
    const auto piece = pool_.Allocate(
        bytes, side == "left" ? Side::kLeft : Side::kRight, kNone);
    if (!piece) return std::nullopt;
    const Offset offset = pool_.piece(*piece).offset;
    used_[offset] = *piece;
    return offset;
  }

  void Release(IntArg start) {
    const Offset offset = ToInt64(start, "Pool.release", "offset");
    const auto used = used_.find(offset);
    if (used == used_.end()) {
      throw nb::value_error(
          ("Pool.release: `offset` must be the start of a block in use, got " +
           std::to_string(offset))
              .c_str());
    }
    pool_.Release(used->second);
    used_.erase(used);
  }

  std::vector<std::tuple<Offset, Bytes, bool>> Pieces() const {
    std::vector<std::tuple<Offset, Bytes, bool>> pieces;
    for (PieceIdx i = pool_.first(); i != kNone; i = pool_.piece(i).next) {
      const Piece& piece = pool_.piece(i);
      pieces.emplace_back(piece.offset, piece.bytes, piece.is_free);
    }
    return pieces;
  }

  const Pool& pool() const { return pool_; }

 private:
  Pool pool_;
  std::map<Offset, PieceIdx> used_;
};

std::optional<std::tuple<size_t, size_t, double>> FindWindowInArrays(
    AnyArray piece_bytes, AnyArray piece_costs, AnyArray piece_kind,
    IntArg wanted) {
  const auto bytes =
      ToVector<int64_t>(piece_bytes, "find_window: `piece_bytes`");
  const auto costs =
      ToVector<double>(piece_costs, "find_window: `piece_costs`");
  const auto kinds =
      ToVector<int64_t>(piece_kind, "find_window: `piece_kind`");
  if (bytes.size() != costs.size() || bytes.size() != kinds.size()) {
    throw nb::value_error(
        "find_window: `piece_bytes`, `piece_costs` and `piece_kind` must have "
        "the same length");
  }
  const Bytes required = ToInt64(wanted, "find_window", "required");
  if (required <= 0) {
    RaiseValueError("find_window: `required` must be positive, got ", required);
  }
  Bytes total = 0;  // Of what a window may hold: it must not overflow.
  std::vector<WindowPiece> pieces;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (kinds[i] < 0 || kinds[i] > 2) {
      throw nb::value_error(
          ("find_window: `piece_kind` must be 0 (free), 1 (evictable) or 2 "
           "(barrier), got " +
           std::to_string(kinds[i]))
              .c_str());
    }
    if (bytes[i] <= 0 || !(costs[i] >= 0)) {
      throw nb::value_error(
          ("find_window: bytes must be positive and costs not negative, got " +
           std::to_string(bytes[i]) + " and " + std::to_string(costs[i]))
              .c_str());
    }
    if (bytes[i] > kMostBytes - total) {
      RaiseValueError(
          "find_window: `piece_bytes` must add up to at most 2**61, but piece ",
          i, " of ", bytes[i], " exceeds that");
    }
    total += bytes[i];
    pieces.push_back({bytes[i], kinds[i] == 1 ? costs[i] : 0, kinds[i] == 2});
  }
  const auto window = WindowSearch().Find(pieces, required);
  if (!window) return std::nullopt;
  return std::tuple(window->begin, window->end, window->cost);
}

}  // namespace

void BindPool(nb::module_& m) {
  nb::class_<PoolByOffset>(m, "Pool", R"(
One contiguous address range cut into pieces: best fit first, immediate merge.
The planner's own allocator, exposed for tests.
)")
      .def(
          "__init__",
          [](PoolByOffset* pool, IntArg capacity, IntArg alignment) {
            const Bytes rounded_to = ToAlignment(alignment, "Pool");
            new (pool) PoolByOffset(ToCount(capacity, "Pool", "capacity"),
                                    rounded_to);
          },
          nb::arg("capacity"), nb::arg("alignment") = 64)
      .def("allocate", &PoolByOffset::Allocate, nb::arg("bytes"),
           nb::arg("side") = "left",
           "The offset of a new block at the \"left\" or \"right\" end of the "
           "smallest free piece that holds it; None if none does.")
      .def("release", &PoolByOffset::Release, nb::arg("offset"))
      .def("pieces", &PoolByOffset::Pieces,
           "(offset, bytes, is_free) in address order.")
      .def(
          "check_invariants",
          [](const PoolByOffset& pool) {
            const auto wrong = pool.pool().CheckInvariants();
            if (wrong) throw std::runtime_error("Pool: " + *wrong);
          },
          "Raises `RuntimeError` saying what is wrong with the books.")
      .def_prop_ro("free_bytes",
                   [](const PoolByOffset& pool) {
                     return pool.pool().free_bytes();
                   })
      .def_prop_ro("largest_free_bytes",
                   [](const PoolByOffset& pool) {
                     return pool.pool().largest_free_bytes();
                   })
      .def_prop_ro("peak_bytes", [](const PoolByOffset& pool) {
        return pool.pool().peak_bytes();
      });

  m.def("find_window", &FindWindowInArrays, nb::arg("piece_bytes"),
        nb::arg("piece_costs"), nb::arg("piece_kind"), nb::arg("required"), R"(
The cheapest run of neighbouring pieces with at least `required` bytes.

`piece_kind` is 0 for a free piece, 1 for an evictable tensor, 2 for a barrier,
which no window contains. Returns (begin, end, cost), half-open, or None. Equal
costs: the fewest bytes, then the lowest address.
)");
}

}  // namespace coop
