#pragma once

#include <cstdint>
#include <span>

#include "cpu_optim/float_view.h"
#include "cpu_optim/pieces.h"
#include "engine/base/float_bits.h"

// Changes of format, vectorised, with the bits of the scalar functions of engine/base/float_bits.h on every
// instruction set, NaN and subnormals included (so not the processor's own bf16 instructions, which flush
// subnormals). Both spans of a call have the same size and do not overlap, unless said. Thread-safe; the
// calling thread does the work.
namespace sluice::cpu_optim {

void convert(std::span<const BFloat16> from, std::span<float> to);
void convert(std::span<const Float16> from, std::span<float> to);
void convert(std::span<const float> from, std::span<BFloat16> to);  // nearest, ties to even
void convert(std::span<const float> from, std::span<Float16> to);   // nearest, ties to even, overflow to inf

// fp32 masters from and to their halves.
void split_masters(std::span<const float> masters, std::span<BFloat16> high, std::span<int16_t> low);
void join_masters(std::span<const BFloat16> high, std::span<const int16_t> low, std::span<float> masters);

// Each number becomes the nearest bf16 value (ties to even), kept as fp32. `from` and `to` may be the same
// span.
void round_to_bf16(std::span<const float> from, std::span<float> to);

// sums[i] += values[i].
void add(std::span<const float> values, std::span<float> sums);

// For r in order: row rows[r] of `sums` (?, width) += row r of `values` (rows.size(), width). A row may come
// up again.
void add_rows(std::span<const float> values, std::span<const int32_t> rows, int64_t width,
              std::span<float> sums);

// How many numbers are inf or NaN.
int64_t count_non_finite(FloatView values);

// convert in fixed pieces over the threads of a pool.
template <class From, class To>
void convert(Executor& executor, std::span<const From> from, std::span<To> to) {
  SLUICE_CHECK(from.size() == to.size());
  for_each_piece(executor, static_cast<int64_t>(to.size()), [&](int64_t begin, int64_t count) {
    convert(subrange(from, begin, count), subrange(to, begin, count));
  });
}

}  // namespace sluice::cpu_optim
