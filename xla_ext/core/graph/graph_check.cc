#include "core/graph/graph_check.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>

namespace coop {
namespace {

// Throws "Graph: <parts>".
template <typename... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  std::ostringstream text;
  text << "Graph: ";
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

class Checker {
 public:
  explicit Checker(const GraphArrays& arrays)
      : a_(arrays),
        num_ops_(std::ssize(arrays.op_seconds)),
        num_tensors_(std::ssize(arrays.tensor_bytes)),
        producer_(arrays.tensor_bytes.size(), kNone),
        last_read_(arrays.tensor_bytes.size(), kNone) {}

  void Run() {
    Lengths();
    Values();
    Operands();
    InPlace();
    Overwrites();
    Releases();
  }

 private:
  void Length(const char* name, size_t got, int64_t want, const char* of) {
    if (std::cmp_equal(got, want)) return;
    Fail("`", name, "` must have one entry per ", of, " (", want, "), got ",
         got);
  }

  void Pointers(const char* name, const std::vector<int64_t>& ptr,
                const char* values_name, size_t num_values) {
    if (std::ssize(ptr) != num_ops_ + 1) {
      Fail("`", name, "` must have one entry more than there are operations (",
           num_ops_ + 1, "), got ", ptr.size());
    }
    if (ptr.front() != 0) Fail("`", name, "[0]` must be 0, got ", ptr.front());
    for (OpIdx op = 0; op < num_ops_; ++op) {
      if (ptr[At(op)] <= ptr[At(op) + 1]) continue;
      Fail("`", name, "` must not decrease, but it does at operation ", op,
           ": ", ptr[At(op)], " then ", ptr[At(op) + 1]);
    }
    if (!std::cmp_equal(ptr.back(), num_values)) {
      Fail("`", name, "` must end with the length of `", values_name, "` (",
           num_values, "), got ", ptr.back());
    }
  }

  void Lengths() {
    Length("op_workspace_bytes", a_.op_workspace_bytes.size(), num_ops_,
           "operation");
    Length("op_recomputable", a_.op_recomputable.size(), num_ops_,
           "operation");
    Length("tensor_external", a_.tensor_external.size(), num_tensors_,
           "tensor");
    Length("tensor_pinned", a_.tensor_pinned.size(), num_tensors_, "tensor");
    Length("tensor_output", a_.tensor_output.size(), num_tensors_, "tensor");
    Pointers("op_inputs_ptr", a_.op_inputs_ptr, "op_inputs",
             a_.op_inputs.size());
    Pointers("op_outputs_ptr", a_.op_outputs_ptr, "op_outputs",
             a_.op_outputs.size());
  }

  void Values() {
    Seconds total_seconds = 0;
    for (OpIdx op = 0; op < num_ops_; ++op) {
      const Seconds seconds = a_.op_seconds[At(op)];
      if (!(seconds >= 0) || !std::isfinite(seconds)) {
        Fail("`op_seconds` must be finite and not negative, got ", seconds,
             " at operation ", op);
      }
      total_seconds += seconds;
      if (total_seconds > kMostSeconds) {
        Fail("`op_seconds` must add up to at most 1e18, but operation ", op,
             " of ", seconds, " exceeds that");
      }
      Size("op_workspace_bytes", a_.op_workspace_bytes[At(op)], "operation",
           op);
    }
    for (TensorIdx t = 0; t < num_tensors_; ++t) {
      Size("tensor_bytes", a_.tensor_bytes[At(t)], "tensor", t);
      if (a_.tensor_external[At(t)] && a_.tensor_pinned[At(t)]) {
        Fail("tensor ", t, " is both external (outside the pool) and pinned "
             "(inside the pool)");
      }
    }
  }

  // Sums of sizes must not overflow, so one size stays below 2^48 (256 TiB).
  void Size(const char* name, Bytes bytes, const char* of, int64_t index) {
    if (bytes < 0 || bytes >= (Bytes{1} << 48)) {
      Fail("`", name, "` must be in [0, 2**48), got ", bytes, " at ", of, " ",
           index);
    }
    total_bytes_ += bytes;
    if (total_bytes_ < kMostBytes) return;
    Fail("`tensor_bytes` and `op_workspace_bytes` must add up to less than "
         "2**61, but ",
         of, " ", index, " of ", bytes, " exceeds that");
  }

  void TensorInRange(const char* name, OpIdx op, TensorIdx t) {
    if (t >= 0 && t < num_tensors_) return;
    Fail("`", name, "` of operation ", op, " names tensor ", t,
         ", but there are ", num_tensors_, " tensors");
  }

  void OpInRange(const char* name, OpIdx op) {
    if (op >= 0 && op < num_ops_) return;
    Fail("`", name, "` names operation ", op, ", but there are ", num_ops_,
         " operations");
  }

  void Operands() {
    for (OpIdx op = 0; op < num_ops_; ++op) {
      for (int64_t i = a_.op_outputs_ptr[At(op)];
           i < a_.op_outputs_ptr[At(op) + 1]; ++i) {
        const TensorIdx t = a_.op_outputs[At(i)];
        TensorInRange("op_outputs", op, t);
        if (producer_[At(t)] != kNone) {
          Fail("tensor ", t, " has two producers: operations ",
               producer_[At(t)], " and ", op);
        }
        producer_[At(t)] = op;
      }
    }
    for (OpIdx op = 0; op < num_ops_; ++op) {
      for (int64_t i = a_.op_inputs_ptr[At(op)];
           i < a_.op_inputs_ptr[At(op) + 1]; ++i) {
        const TensorIdx t = a_.op_inputs[At(i)];
        TensorInRange("op_inputs", op, t);
        if (producer_[At(t)] >= op) {
          Fail("operation ", op, " reads tensor ", t,
               ", which is made only by operation ", producer_[At(t)],
               ": operations must be in execution order");
        }
        last_read_[At(t)] = op;
      }
    }
  }

  bool Reads(OpIdx op, TensorIdx t) const {
    const auto begin = a_.op_inputs.begin();
    const auto end = begin + a_.op_inputs_ptr[At(op) + 1];
    return std::find(begin + a_.op_inputs_ptr[At(op)], end, t) != end;
  }

  void SameBytes(const char* name, OpIdx op, TensorIdx from, TensorIdx to) {
    if (a_.tensor_bytes[At(from)] == a_.tensor_bytes[At(to)]) return;
    Fail("`", name, "` of operation ", op, ": tensors ", from, " and ", to,
         " must have the same bytes, got ", a_.tensor_bytes[At(from)], " and ",
         a_.tensor_bytes[At(to)]);
  }

  void MadeBy(const char* name, OpIdx op, TensorIdx t) {
    if (producer_[At(t)] == op) return;
    Fail("`", name, "` of operation ", op, ": tensor ", t,
         " is not an output of the operation");
  }

  void InPlace() {
    for (const auto& [op, input, output] : a_.in_place) {
      OpInRange("in_place", op);
      TensorInRange("in_place", op, input);
      TensorInRange("in_place", op, output);
      if (!Reads(op, input)) {
        Fail("`in_place` of operation ", op, ": tensor ", input,
             " is not an input of the operation");
      }
      MadeBy("in_place", op, output);
      SameBytes("in_place", op, input, output);
      for (const TensorIdx t : {input, output}) {
        if (!a_.tensor_external[At(t)]) continue;
        Fail("`in_place` of operation ", op, ": tensor ", t,
             " is external, both must be in the pool");
      }
    }
  }

  void Overwrites() {
    std::vector<uint8_t> is_old(a_.tensor_bytes.size(), 0);
    std::vector<uint8_t> is_new(a_.tensor_bytes.size(), 0);
    for (const auto& [op, from, to] : a_.overwrites) {
      OpInRange("overwrites", op);
      TensorInRange("overwrites", op, from);
      TensorInRange("overwrites", op, to);
      MadeBy("overwrites", op, to);
      SameBytes("overwrites", op, from, to);
      const bool external =
          a_.tensor_external[At(from)] && a_.tensor_external[At(to)];
      const bool pinned =
          a_.tensor_pinned[At(from)] && a_.tensor_pinned[At(to)];
      if (!external && !pinned) {
        Fail("`overwrites` of operation ", op, ": tensors ", from, " and ", to,
             " must be both external or both pinned");
      }
      if (producer_[At(from)] >= op) {
        Fail("`overwrites` of operation ", op, ": tensor ", from,
             " is made only by operation ", producer_[At(from)]);
      }
      if (last_read_[At(from)] > op) {
        Fail("tensor ", from, " is overwritten by operation ", op,
             " but read afterwards by operation ", last_read_[At(from)]);
      }
      if (a_.tensor_output[At(from)]) {
        Fail("tensor ", from, " is an output but overwritten by operation ",
             op);
      }
      if (is_old[At(from)]++) Fail("tensor ", from, " is overwritten twice");
      if (is_new[At(to)]++) {
        Fail("tensor ", to, " overwrites two tensors, it has room for one");
      }
    }
  }

  void Releases() {
    if (!a_.releases) return;
    std::vector<uint8_t> released(a_.tensor_bytes.size(), 0);
    for (const auto& [op, t] : *a_.releases) {
      OpInRange("releases", op);
      TensorInRange("releases", op, t);
      if (released[At(t)]++) Fail("tensor ", t, " is released twice");
      if (a_.tensor_output[At(t)]) {
        Fail("tensor ", t, " is an output but released after operation ", op);
      }
      if (producer_[At(t)] > op) {
        Fail("tensor ", t, " is released after operation ", op,
             " but made only by operation ", producer_[At(t)]);
      }
      if (last_read_[At(t)] > op) {
        Fail("tensor ", t, " is released after operation ", op,
             " but read afterwards by operation ", last_read_[At(t)]);
      }
    }
  }

  const GraphArrays& a_;
  OpIdx num_ops_;
  TensorIdx num_tensors_;
  Bytes total_bytes_ = 0;
  std::vector<OpIdx> producer_;
  std::vector<OpIdx> last_read_;
};

}  // namespace

void CheckGraphArrays(const GraphArrays& arrays) { Checker(arrays).Run(); }

}  // namespace coop
