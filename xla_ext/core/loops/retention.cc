#include "core/loops/retention.h"

#include <sstream>
#include <stdexcept>
#include <utility>

namespace coop {
namespace {

// So that times in bytes are finite.
constexpr Seconds kLeastSecondsPerByte = 1e-30;

class Checker {
 public:
  Checker(const char* function, const RetentionProblem& problem)
      : function_(function),
        p_(problem),
        num_values_(std::ssize(problem.value_bytes)),
        num_equations_(std::ssize(problem.equation_seconds)) {}

  void Run() const {
    Length("value_maker", p_.value_maker.size(), num_values_, "value");
    Length("equation_may_run_again", p_.equation_may_run_again.size(),
           num_equations_, "equation");
    Values();
    Times();
    Pointers();
    Operands();
    for (const int64_t value : p_.needed) Index("needed", value, num_values_);
  }

 private:
  // Throws "<function>: <parts>".
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    std::ostringstream text;
    text << function_ << ": ";
    (text << ... << parts);
    throw std::invalid_argument(text.str());
  }

  void Length(const char* name, size_t got, int64_t want, const char* of) const {
    if (std::cmp_equal(got, want)) return;
    Fail("`", name, "` must have one entry per ", of, " (", want, "), got ",
         got);
  }

  void Index(const char* name, int64_t index, int64_t count) const {
    if (index >= 0 && index < count) return;
    Fail("`", name, "` must be in [0, ", count, "), got ", index);
  }

  void Values() const {
    Bytes total = 0;
    for (int64_t value = 0; value < num_values_; ++value) {
      const Bytes bytes = p_.value_bytes[At(value)];
      if (bytes < 0) {
        Fail("`value_bytes` must not be negative, got ", bytes, " for value ",
             value);
      }
      if (bytes > kMostBytes - total) {
        Fail("`value_bytes` must add up to at most 2**61, but value ", value,
             " of ", bytes, " exceeds that");
      }
      total += bytes;
      const OpIdx maker = p_.value_maker[At(value)];
      if (maker != kNone) Index("value_maker", maker, num_equations_);
    }
  }

  // Comparisons that a NaN does not pass.
  void Times() const {
    if (!(p_.seconds_per_byte >= kLeastSecondsPerByte &&
          p_.seconds_per_byte <= kMostSeconds)) {
      Fail("`seconds_per_byte` must be in [1e-30, 1e18], got ",
           p_.seconds_per_byte);
    }
    Seconds total = 0;
    for (OpIdx i = 0; i < num_equations_; ++i) {
      const Seconds seconds = p_.equation_seconds[At(i)];
      if (!(seconds >= 0 && seconds <= kMostSeconds - total)) {
        Fail("`equation_seconds` must not be negative and add up to at most "
             "1e18, got ",
             seconds, " for equation ", i);
      }
      total += seconds;
    }
  }

  void Pointers() const {
    const std::vector<int64_t>& ptr = p_.operands_ptr;
    if (std::ssize(ptr) != num_equations_ + 1) {
      Fail("`operands_ptr` must have one entry more than there are equations (",
           num_equations_ + 1, "), got ", ptr.size());
    }
    if (ptr.front() != 0) {
      Fail("`operands_ptr[0]` must be 0, got ", ptr.front());
    }
    for (OpIdx i = 0; i < num_equations_; ++i) {
      if (ptr[At(i)] <= ptr[At(i) + 1]) continue;
      Fail("`operands_ptr` must not decrease, but it does at equation ", i,
           ": ", ptr[At(i)], " then ", ptr[At(i) + 1]);
    }
    if (!std::cmp_equal(ptr.back(), p_.operands.size())) {
      Fail("`operands_ptr` must end with the length of `operands` (",
           p_.operands.size(), "), got ", ptr.back());
    }
  }

  void Operands() const {
    for (OpIdx i = 0; i < num_equations_; ++i) {
      for (int64_t k = p_.operands_ptr[At(i)]; k < p_.operands_ptr[At(i) + 1];
           ++k) {
        const int64_t value = p_.operands[At(k)];
        Index("operands", value, num_values_);
        const OpIdx maker = p_.value_maker[At(value)];
        if (maker < i) continue;
        Fail("equation ", i, " reads value ", value, ", which equation ", maker,
             " makes");
      }
    }
  }

  const char* function_;
  const RetentionProblem& p_;
  int64_t num_values_;
  int64_t num_equations_;
};

}  // namespace

void CheckRetention(const char* function, const RetentionProblem& problem) {
  Checker(function, problem).Run();
}

}  // namespace coop
