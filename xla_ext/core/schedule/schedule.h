// The result of planning: what runs when, and where everything lives.
#ifndef COOP_CORE_SCHEDULE_SCHEDULE_H_
#define COOP_CORE_SCHEDULE_SCHEDULE_H_

#include <variant>
#include <vector>

#include "core/base/types.h"
#include "core/schedule/statistics.h"

namespace coop {

enum class StepKind : int64_t {
  kCompute = 0,    // Run an operation for the first time.
  kRecompute = 1,  // Run it again, for those outputs that are not resident.
  kEvict = 2,      // Drop a tensor to make room.
  kFree = 3,       // Drop a tensor that is no longer needed.
};

// The records are plain int64_t throughout: rows of the tables seen in Python.
struct Step {
  StepKind kind;
  int64_t index;  // An operation or a tensor, by kind.

  bool operator==(const Step&) const = default;
};

// The operation of `step` makes `tensor` at `offset`.
struct Placement {
  int64_t step;
  TensorIdx tensor;
  Offset offset;
  // The tensor whose block this is, or kNone. That tensor's evict or free step
  // is one of those right before `step`; the operation still reads it.
  TensorIdx taken_over;

  bool operator==(const Placement&) const = default;
};

struct InitialPlacement {
  TensorIdx tensor;
  Offset offset;

  bool operator==(const InitialPlacement&) const = default;
};

struct WorkspacePlacement {
  int64_t step;
  Offset offset;

  bool operator==(const WorkspacePlacement&) const = default;
};

struct Schedule {
  std::vector<Step> steps;
  // By step. Every tensor that a step makes in the pool has one; a tensor of
  // no bytes is at offset 0.
  std::vector<Placement> placements;
  // Graph inputs that live in the pool, by tensor.
  std::vector<InitialPlacement> initial_placements;
  std::vector<WorkspacePlacement> workspaces;
  std::vector<Event> events;
  Bytes capacity = 0;
  Bytes alignment = 64;
  bool copy_on_write = false;  // An overwritten pinned tensor may move.
  Statistics statistics;
  // Without: it came from elsewhere and claims peak_bytes and, if that is not
  // kNone, max_live_bytes.
  bool has_statistics = true;
};

// Why there is no schedule. An outcome, not an error.
struct PlanFailure {
  enum class Reason {
    kOutOfMemory,
    kOverheadLimit,  // CommonOptions::overhead_limit; the sizes are 0.
    kEffort,         // Neither found nor ruled out; the sizes are 0.
  };

  Reason reason = Reason::kOutOfMemory;
  // The operation that could not run, and the one on whose behalf it was to be
  // run again (the same if it was its own turn). -1: placing the graph inputs;
  // num_ops: bringing back the outputs at the end.
  OpIdx op = kNone;
  OpIdx requested_by = kNone;
  Bytes requested_bytes = 0;
  Bytes free_bytes = 0;
  Bytes largest_free_bytes = 0;
  Bytes pinned_bytes = 0;  // In use and not evictable at that moment.
  Bytes capacity = 0;
};

using PlanResult = std::variant<Schedule, PlanFailure>;

}  // namespace coop

#endif  // COOP_CORE_SCHEDULE_SCHEDULE_H_
