// Label lists: for each label, the nodes that have it.
#ifndef COOP_CORE_LOOPS_LABEL_LISTS_H_
#define COOP_CORE_LOOPS_LABEL_LISTS_H_

#include <cstdint>
#include <vector>

#include "core/base/types.h"

namespace coop {

// Linked lists, as nodes leave from the middle of them. Labels and nodes are in
// [0, count).
class LabelLists {
 public:
  // Without any node.
  void Clear(int64_t count) {
    first_.assign(At(count), kNone);
    next_.assign(At(count), kNone);
    previous_.assign(At(count), kNone);
  }

  // A node of a label, or kNone, and the node after one.
  [[nodiscard]] int64_t First(int64_t label) const { return first_[At(label)]; }
  [[nodiscard]] int64_t Next(int64_t node) const { return next_[At(node)]; }

  void Add(int64_t label, int64_t node) {
    const int64_t next = first_[At(label)];
    if (next != kNone) previous_[At(next)] = node;
    next_[At(node)] = next;
    previous_[At(node)] = kNone;
    first_[At(label)] = node;
  }

  void Remove(int64_t label, int64_t node) {
    const int64_t next = next_[At(node)], previous = previous_[At(node)];
    if (next != kNone) previous_[At(next)] = previous;
    (previous == kNone ? first_[At(label)] : next_[At(previous)]) = next;
  }

  void Empty(int64_t label) { first_[At(label)] = kNone; }

 private:
  std::vector<int64_t> first_;  // By label.
  std::vector<int64_t> next_;   // By node.
  std::vector<int64_t> previous_;
};

}  // namespace coop

#endif  // COOP_CORE_LOOPS_LABEL_LISTS_H_
