#pragma once

#include <cstdint>
#include <span>

#include "engine/base/error.h"
#include "engine/base/executor.h"

namespace sluice::cpu_optim {

// Elements of one task when a range is spread over threads. About 1 MB of states, so that a task (some 25 us)
// is long beside its dispatch and short beside a step. A multiple of 256, the padding of the flat logical
// index. No result depends on it.
inline constexpr int64_t kPieceElements = 65536;

// values[begin, begin + count), in 64-bit indices; anything outside is a bug.
template <class T>
std::span<T> subrange(std::span<T> values, int64_t begin, int64_t count) {
  const auto size = static_cast<int64_t>(values.size());
  SLUICE_CHECK(0 <= begin && begin <= size && 0 <= count && count <= size - begin);
  return values.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

// Calls body(begin, count) for every piece of [0, size).
template <class Body>
void for_each_piece(Executor& executor, int64_t size, const Body& body) {
  run_ranges(executor, size, kPieceElements,
             [&](int64_t begin, int64_t end, int) { body(begin, end - begin); });
}

}  // namespace sluice::cpu_optim
