// Refitting: a packing of blocks most of which have a place already.
#ifndef COOP_CORE_PACKING_REFIT_H_
#define COOP_CORE_PACKING_REFIT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/packing/packing.h"

namespace coop {

struct RefitOptions {
  Bytes alignment = 64;
  Bytes capacity = 0;
  int64_t effort = 0;  // In pairs of blocks that are looked at.
  uint64_t seed = 0;
  std::optional<double> seconds = {};  // Ends it earlier.
};

// Offsets below the capacity, near the `wished` ones (kNone: anywhere); nullopt if
// none are found. A block that fits nowhere takes the place of those that cost
// least, which are then placed anew; blocks that often fit nowhere cost more. The
// blocks must be legal and have no fixed offsets. Adds to `work` what it did.
[[nodiscard]] std::optional<std::vector<Offset>> Refit(
    std::span<const PackingBlock> blocks, std::span<const Offset> wished,
    const RefitOptions& options, int64_t& work);

// The packing with these offsets.
[[nodiscard]] Packing PackingAt(std::vector<Offset> offsets,
                                std::span<const PackingBlock> blocks,
                                Bytes alignment);

}  // namespace coop

#endif  // COOP_CORE_PACKING_REFIT_H_
