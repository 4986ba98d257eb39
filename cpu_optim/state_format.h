#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/float_bits.h"

// What an optimizer keeps of a parameter, and where: four streams, by element of the flat logical index.
//
//   format      weight  low                 first, second moment          bytes a parameter
//   split       bf16    int16, low half     fp32                          12
//   split_bf16  bf16    int16, low half     bf16, stochastic rounding     8
//   bf16        bf16    -                   bf16, stochastic rounding     6  (the weight, too, is rounded so)
//   int8        bf16    -                   8-bit codes, block scales     4.03 (the weight as in bf16)
//   fp32        bf16    fp32, the master    fp32                          14, the oracle
//
// In split and split_bf16 the fp32 master is join(weight, low) of engine/base/float_bits.h. A moment of int8
// is a row of records, one for each 256 elements: 256 codes, then the fp32 scale. The last record is whole,
// too.
namespace sluice::cpu_optim {

enum class StateFormat : uint8_t { split, split_bf16, bf16, int8, fp32 };

// The default first, the others from large to small, the oracle last.
inline constexpr std::array kStateFormats = {StateFormat::split, StateFormat::split_bf16, StateFormat::bf16,
                                             StateFormat::int8, StateFormat::fp32};

std::string_view name(StateFormat format);
std::optional<StateFormat> state_format(std::string_view name);

// Elements under one scale.
inline constexpr int64_t kInt8Block = 256;
inline constexpr int64_t kInt8RecordBytes = kInt8Block + 4;

// Of `count` elements; in int8, whole records.
constexpr size_t low_bytes(StateFormat format, int64_t count) {
  const auto elements = static_cast<size_t>(count);
  if (format == StateFormat::fp32) return elements * 4;
  return format == StateFormat::split || format == StateFormat::split_bf16 ? elements * 2 : 0;
}

// Of one of the two moments.
constexpr size_t moment_bytes(StateFormat format, int64_t count) {
  if (format == StateFormat::int8)
    return static_cast<size_t>((count + kInt8Block - 1) / kInt8Block * kInt8RecordBytes);
  const bool two = format == StateFormat::split_bf16 || format == StateFormat::bf16;
  return static_cast<size_t>(count) * (two ? 2 : 4);
}

// A range of elements, each stream from its first one on. Streams that the format lacks are null, and with
// fp32 the weight may be: then nobody wants the bf16 copy. Owns nothing.
struct StateSpan {
  StateFormat format = StateFormat::split;
  int64_t size = 0;
  BFloat16* weight = nullptr;
  std::byte* low = nullptr;
  std::byte* first_moment = nullptr;
  std::byte* second_moment = nullptr;
  // Of the whole model: stochastic rounding is a function of seed, step and this, never of chunk or thread.
  uint64_t first_element = 0;

  // In int8 `begin` is a multiple of 256.
  StateSpan subrange(int64_t begin, int64_t count) const {
    SLUICE_CHECK(begin >= 0 && count >= 0 && begin + count <= size);
    SLUICE_CHECK(format != StateFormat::int8 || begin % kInt8Block == 0);
    const auto at = [](std::byte* stream, size_t bytes) {
      return stream == nullptr ? nullptr : stream + bytes;
    };
    return {.format = format,
            .size = count,
            .weight = weight == nullptr ? nullptr : weight + begin,
            .low = at(low, low_bytes(format, begin)),
            .first_moment = at(first_moment, moment_bytes(format, begin)),
            .second_moment = at(second_moment, moment_bytes(format, begin)),
            .first_element = first_element + static_cast<uint64_t>(begin)};
  }
};

}  // namespace sluice::cpu_optim
