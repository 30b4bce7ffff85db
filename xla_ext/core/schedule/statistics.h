// The cost of a plan, and of finding it.
#ifndef COOP_CORE_SCHEDULE_STATISTICS_H_
#define COOP_CORE_SCHEDULE_STATISTICS_H_

#include <span>

#include "core/base/types.h"

namespace coop {

// One allocation that had to evict. Plain int64_t throughout: a row of the
// event table.
struct Event {
  Bytes requested_bytes = 0;  // Rounded up to the alignment.
  int64_t evictions = 0;
  Bytes free_bytes = 0;       // The block just found still counted as free.
  int64_t nanoseconds = 0;    // Search and eviction.

  bool operator==(const Event&) const = default;
};

struct Statistics {
  Seconds compute_seconds = 0;    // Each operation once.
  Seconds recompute_seconds = 0;
  // No schedule in this capacity recomputes less; of the search's plans only.
  Seconds recompute_bound_seconds = 0;
  int64_t forced_evictions = 0;   // To make room.
  int64_t eager_evictions = 0;    // Evictable, released by the program.
  int64_t recomputations = 0;     // Operations run again.
  int64_t pieces_examined = 0;    // Tensors whose cost all searches computed.
  Seconds search_seconds = 0;     // The only figure that varies between runs.
  Bytes peak_bytes = 0;           // Highest end address of any block.
  Bytes max_live_bytes = 0;       // Most in use while an operation runs.
  double density_threshold = 0;   // Below: cheap. 0 without partition.
  // Mean over the events of free bytes / capacity, right after the block has
  // been found: the block counted as free (the authors' 2023 code), as used
  // (their 2022 code). 0 without events.
  double fragmentation_rate = 0;
  double fragmentation_rate_block_used = 0;

  // Seconds of everything run / seconds of every operation once.
  [[nodiscard]] double compute_overhead() const {
    if (compute_seconds == 0) return 1;
    return (compute_seconds + recompute_seconds) / compute_seconds;
  }
};

// Fills in the figures that are sums or means over the events.
inline void SummariseEvents(std::span<const Event> events, Bytes capacity,
                            Statistics& statistics) {
  if (events.empty() || capacity == 0) return;
  int64_t nanoseconds = 0;
  double free_bytes = 0;
  double free_bytes_block_used = 0;
  for (const Event& event : events) {
    nanoseconds += event.nanoseconds;
    free_bytes += static_cast<double>(event.free_bytes);
    free_bytes_block_used +=
        static_cast<double>(event.free_bytes - event.requested_bytes);
  }
  const double scale = 1 / (static_cast<double>(std::ssize(events)) *
                            static_cast<double>(capacity));
  statistics.search_seconds = static_cast<double>(nanoseconds) * 1e-9;
  statistics.fragmentation_rate = free_bytes * scale;
  statistics.fragmentation_rate_block_used = free_bytes_block_used * scale;
}

}  // namespace coop

#endif  // COOP_CORE_SCHEDULE_STATISTICS_H_
