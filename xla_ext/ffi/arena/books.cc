#include "ffi/arena/books.h"

#include <iterator>
#include <utility>

namespace coop {
namespace {

std::string Range(int64_t offset, int64_t bytes) {
  return "[" + std::to_string(offset) + ", " + std::to_string(offset + bytes) +
         ")";
}

std::string At(int64_t boundary, const char* verb, const ArenaEntry& entry) {
  return "at boundary " + std::to_string(boundary) + ", " + verb +
         " of tensor " + std::to_string(entry.tensor) + " (" +
         std::string(entry.name) + ") at " + Range(entry.offset, entry.bytes) +
         ": ";
}

}  // namespace

std::string Books::Text(const Block& block, int64_t offset) {
  return "tensor " + std::to_string(block.tensor) + " (" + block.name +
         ") lives at " + Range(offset, block.bytes) + " since boundary " +
         std::to_string(block.boundary);
}

std::optional<std::string> Books::Load(int64_t boundary,
                                       const ArenaEntry& entry) {
  const std::string where = At(boundary, "load", entry);
  auto block = blocks_.upper_bound(entry.offset);
  if (block == blocks_.begin()) return where + "nothing lives there";
  --block;
  if (block->first + block->second.bytes <= entry.offset) {
    return where + "nothing lives there";
  }
  if (block->first != entry.offset || block->second.bytes != entry.bytes ||
      block->second.tensor != entry.tensor) {
    return where + Text(block->second, block->first);
  }
  if (block->second.digest != entry.digest) {
    return where + "its bytes are not those that were stored at boundary " +
           std::to_string(block->second.boundary) +
           ": something else wrote there";
  }
  blocks_.erase(block);
  events_.push_back({boundary, EventKind::kLoad, entry.tensor, entry.offset,
                     entry.bytes});
  return std::nullopt;
}

std::optional<std::string> Books::Store(int64_t boundary,
                                        const ArenaEntry& entry) {
  const auto next = blocks_.lower_bound(entry.offset);
  if (next != blocks_.end() && next->first < entry.offset + entry.bytes) {
    return At(boundary, "store", entry) + Text(next->second, next->first);
  }
  if (next != blocks_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes > entry.offset) {
      return At(boundary, "store", entry) + Text(before->second, before->first);
    }
  }
  blocks_[entry.offset] = {entry.tensor, std::string(entry.name), entry.bytes,
                           entry.digest, boundary};
  events_.push_back({boundary, EventKind::kStore, entry.tensor, entry.offset,
                     entry.bytes});
  return std::nullopt;
}

std::optional<std::string> Books::Close(int64_t boundary) const {
  if (blocks_.empty()) return std::nullopt;
  const auto& [offset, block] = *blocks_.begin();
  return "after the last boundary " + std::to_string(boundary) + " " +
         Text(block, offset) + " and nothing brings it back";
}

std::shared_ptr<Books> BookShelf::Begin(int64_t number, const void* arena) {
  const std::scoped_lock lock(mutex_);
  return shelves_[number].open[arena] = std::make_shared<Books>();
}

std::shared_ptr<Books> BookShelf::Find(int64_t number,
                                       const void* arena) const {
  const std::scoped_lock lock(mutex_);
  const auto shelf = shelves_.find(number);
  if (shelf == shelves_.end()) return nullptr;
  const auto books = shelf->second.open.find(arena);
  return books == shelf->second.open.end() ? nullptr : books->second;
}

void BookShelf::Finish(int64_t number, const void* arena) {
  const std::scoped_lock lock(mutex_);
  Shelf& shelf = shelves_[number];
  const auto books = shelf.open.find(arena);
  if (books == shelf.open.end()) return;
  shelf.last = std::move(books->second);
  shelf.open.erase(books);
}

std::optional<std::vector<ArenaEvent>> BookShelf::LastEvents(
    int64_t number) const {
  const std::scoped_lock lock(mutex_);
  const auto shelf = shelves_.find(number);
  if (shelf == shelves_.end() || !shelf->second.last) return std::nullopt;
  return shelf->second.last->events();
}

void BookShelf::Remove(int64_t number) {
  const std::scoped_lock lock(mutex_);
  shelves_.erase(number);
}

BookShelf& TheBookShelf() {
  static BookShelf shelf;
  return shelf;
}

}  // namespace coop
