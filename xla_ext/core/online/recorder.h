// Writes down what a simulated run does, as a schedule.
#ifndef COOP_CORE_ONLINE_RECORDER_H_
#define COOP_CORE_ONLINE_RECORDER_H_

#include <span>

#include "core/base/types.h"
#include "core/online/state.h"
#include "core/schedule/schedule.h"
#include "core/schedule/statistics.h"

namespace coop {

// An output that an operation makes.
struct Made {
  TensorIdx tensor;
  TensorIdx taken_over = kNone;          // Whose block it is made in.
  StepKind drop_kind = StepKind::kFree;  // Of taken_over.
};

class Recorder {
 public:
  // `state` must outlive the recorder.
  Recorder(const State& state, Bytes capacity, bool copy_on_write);

  // After all graph inputs have their blocks.
  void RecordInputs();
  // While the blocks of `made`, and of the workspace if there is one, are in
  // use.
  void RecordRun(StepKind kind, OpIdx op, std::span<const Made> made,
                 PieceIdx workspace);
  void RecordDrop(TensorIdx t, StepKind kind);
  void RecordEvent(const Event& event) { schedule_.events.push_back(event); }

  // The schedule, with those statistics that follow from the steps.
  [[nodiscard]] Schedule Finish() &&;

 private:
  [[nodiscard]] Offset OffsetOf(PieceIdx piece) const {
    return piece == kNone ? 0 : state_.pool.piece(piece).offset;
  }
  void RecordLiveBytes();

  const State& state_;
  Schedule schedule_;
};

}  // namespace coop

#endif  // COOP_CORE_ONLINE_RECORDER_H_
