#include "ffi/arena/exchange.h"

#include <algorithm>

namespace coop {
namespace {

// The bytes [begin, end) of the arena that load or store `index` covers.
struct Range {
  int64_t begin;
  int64_t end;
  size_t index;
};

std::string Bytes(int64_t bytes) { return std::to_string(bytes) + " bytes"; }

std::string Place(const char* what, size_t index, int64_t offset,
                  int64_t bytes) {
  return std::string(what) + " " + std::to_string(index) + " at offset " +
         std::to_string(offset) + " of " + Bytes(bytes);
}

std::string Place(const char* what, const Range& range) {
  return Place(what, range.index, range.begin, range.end - range.begin);
}

std::string Count(const char* kind, const char* what, size_t got,
                  size_t num_pass_through, size_t num_others) {
  return "expected " + std::to_string(1 + num_pass_through + num_others) + " " +
         kind + "s, an arena, " + std::to_string(num_pass_through) +
         " to pass through and " + std::to_string(num_others) + " " + what +
         ", got " + std::to_string(got);
}

template <typename Value>
std::optional<std::string> FindRangeFault(const char* what,
                                          std::span<const Value> values,
                                          std::span<const int64_t> offsets,
                                          int64_t arena_bytes) {
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t bytes = values[i].bytes;
    if (offsets[i] < 0) {
      return Place(what, i, offsets[i], bytes) + " begins before the arena";
    }
    // Not offset + bytes: the sum may overflow.
    if (bytes > arena_bytes || offsets[i] > arena_bytes - bytes) {
      return Place(what, i, offsets[i], bytes) +
             " ends beyond the arena of " + Bytes(arena_bytes);
    }
  }
  return std::nullopt;
}

// In the order of their addresses, without the empty ones.
template <typename Value>
std::vector<Range> SortedRanges(std::span<const Value> values,
                                std::span<const int64_t> offsets) {
  std::vector<Range> ranges;
  ranges.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].bytes == 0) continue;
    ranges.push_back({offsets[i], offsets[i] + values[i].bytes, i});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.index < b.index;
  });
  return ranges;
}

std::span<const ExchangeInput> Stores(const Exchange& exchange) {
  return std::span(exchange.operands)
      .subspan(static_cast<size_t>(exchange.num_pass_through));
}

std::span<const ExchangeOutput> Loads(const Exchange& exchange) {
  return std::span(exchange.results)
      .subspan(static_cast<size_t>(exchange.num_pass_through));
}

std::optional<std::string> FindOverlap(const Exchange& exchange) {
  const std::vector<Range> stores =
      SortedRanges(Stores(exchange), exchange.store_offsets);
  // If any two overlap, two neighbours do.
  for (size_t i = 1; i < stores.size(); ++i) {
    if (stores[i].begin < stores[i - 1].end) {
      return Place("store", stores[i]) + " overlaps " +
             Place("store", stores[i - 1]);
    }
  }
  return std::nullopt;
}

bool StoresTouchLoads(const Exchange& exchange) {
  const std::vector<Range> stores =
      SortedRanges(Stores(exchange), exchange.store_offsets);
  const std::vector<Range> loads =
      SortedRanges(Loads(exchange), exchange.load_offsets);
  return std::any_of(loads.begin(), loads.end(), [&](const Range& load) {
    // Stores do not overlap, so their ends are sorted too.
    const auto store = std::upper_bound(
        stores.begin(), stores.end(), load.begin,
        [](int64_t begin, const Range& range) { return begin < range.end; });
    return store != stores.end() && store->begin < load.end;
  });
}

std::optional<std::string> FindFaultText(const Exchange& exchange) {
  if (exchange.num_pass_through < 0) {
    return "num_pass_through must not be negative, got " +
           std::to_string(exchange.num_pass_through);
  }
  const auto num_pass_through = static_cast<size_t>(exchange.num_pass_through);
  const size_t num_stores = exchange.store_offsets.size();
  const size_t num_loads = exchange.load_offsets.size();
  // Not num_pass_through + num_stores: the sum may overflow.
  const size_t num_operands = exchange.operands.size();
  if (num_operands < num_stores ||
      num_operands - num_stores != num_pass_through) {
    return Count("operand", "to store", 1 + num_operands, num_pass_through,
                 num_stores);
  }
  const size_t num_results = exchange.results.size();
  if (num_results < num_loads || num_results - num_loads != num_pass_through) {
    return Count("result", "to load", 1 + num_results, num_pass_through,
                 num_loads);
  }
  const int64_t arena_bytes = exchange.arena.bytes;
  if (exchange.arena_result.bytes != arena_bytes) {
    return "the arena has " + Bytes(arena_bytes) + " as operand and " +
           Bytes(exchange.arena_result.bytes) + " as result";
  }
  for (size_t i = 0; i < num_pass_through; ++i) {
    if (exchange.operands[i].bytes != exchange.results[i].bytes) {
      return "pass-through value " + std::to_string(i) + " has " +
             Bytes(exchange.operands[i].bytes) + " as operand and " +
             Bytes(exchange.results[i].bytes) + " as result";
    }
  }
  if (auto fault = FindRangeFault("load", Loads(exchange),
                                  exchange.load_offsets, arena_bytes)) {
    return fault;
  }
  if (auto fault = FindRangeFault("store", Stores(exchange),
                                  exchange.store_offsets, arena_bytes)) {
    return fault;
  }
  return FindOverlap(exchange);
}

void AddCopy(std::vector<Copy>& copies, void* to, const void* from,
             int64_t bytes) {
  if (to != from && bytes > 0) copies.push_back({to, from, bytes});
}

}  // namespace

std::optional<std::string> FindFault(const Exchange& exchange) {
  std::optional<std::string> fault = FindFaultText(exchange);
  if (fault) fault->insert(0, std::string(kExchangeTarget) + ": ");
  return fault;
}

ExchangeCopies ListCopies(const Exchange& exchange) {
  ExchangeCopies copies;
  AddCopy(copies.before, exchange.arena_result.data, exchange.arena.data,
          exchange.arena.bytes);
  const auto num_pass_through = static_cast<size_t>(exchange.num_pass_through);
  for (size_t i = 0; i < num_pass_through; ++i) {
    AddCopy(copies.before, exchange.results[i].data, exchange.operands[i].data,
            exchange.operands[i].bytes);
  }
  const auto* from = static_cast<const char*>(exchange.arena.data);
  const std::span<const ExchangeOutput> loads = Loads(exchange);
  for (size_t i = 0; i < loads.size(); ++i) {
    AddCopy(copies.before, loads[i].data, from + exchange.load_offsets[i],
            loads[i].bytes);
  }
  const bool is_copied = exchange.arena.data != exchange.arena_result.data;
  std::vector<Copy>& last = is_copied || StoresTouchLoads(exchange)
                                ? copies.after
                                : copies.before;
  auto* to = static_cast<char*>(exchange.arena_result.data);
  const std::span<const ExchangeInput> stores = Stores(exchange);
  for (size_t i = 0; i < stores.size(); ++i) {
    AddCopy(last, to + exchange.store_offsets[i], stores[i].data,
            stores[i].bytes);
  }
  return copies;
}

}  // namespace coop
