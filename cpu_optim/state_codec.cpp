#include "cpu_optim/state_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu_optim/rounding.h"

namespace sluice::cpu_optim {
namespace {

template <class T>
T load(const std::byte* stream, int64_t i) {
  T value;
  std::memcpy(&value, stream + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void store(const T& value, std::byte* stream, int64_t i) {
  std::memcpy(stream + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

float decode_weight(const StateSpan& state, int64_t i) {
  switch (state.format) {
    case StateFormat::split:
    case StateFormat::split_bf16:
      return join(state.weight[i], load<int16_t>(state.low, i));
    case StateFormat::fp32:
      return load<float>(state.low, i);
    case StateFormat::bf16:
    case StateFormat::int8:
      break;
  }
  return to_float(state.weight[i]);
}

void encode_weight(float value, const StateSpan& state, int64_t i) {
  const SplitFloat halves = split(value);
  switch (state.format) {
    case StateFormat::split:
    case StateFormat::split_bf16:
      state.weight[i] = halves.high;
      store(halves.low, state.low, i);
      return;
    case StateFormat::fp32:
      state.weight[i] = halves.high;
      store(value, state.low, i);
      return;
    case StateFormat::bf16:
    case StateFormat::int8:
      state.weight[i] = round_stochastically(value, kNearestBf16);
  }
}

using DecodeCode = float (*)(uint8_t code, float unit);
using UnitOf = float (*)(float largest);
using EncodeCode = uint8_t (*)(float value, float two_over_unit, uint32_t draw);

void decode_records(const std::byte* stream, DecodeCode decode_code, std::span<float> moment) {
  for (size_t i = 0; i < moment.size(); ++i) {
    const std::byte* record = stream + i / kInt8Block * kInt8RecordBytes;
    const float unit = load<float>(record + kInt8Block, 0);
    moment[i] =
        decode_code(static_cast<uint8_t>(record[code_index(static_cast<int64_t>(i) % kInt8Block)]), unit);
  }
}

// NaN if one of them is.
float largest_magnitude(std::span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(std::abs(value)));
  return std::bit_cast<float>(largest);
}

void encode_record(std::span<const float> moment, UnitOf unit_of, EncodeCode encode_code, std::byte* record) {
  const float unit = unit_of(largest_magnitude(moment));
  std::memset(record, 0, kInt8Block);
  store(unit, record + kInt8Block, 0);
  if (std::isnan(unit)) return;
  for (size_t i = 0; i < moment.size(); ++i) {
    const uint8_t code = encode_code(moment[i], twice_inverse(unit), kNearestCode);
    record[code_index(static_cast<int64_t>(i))] = static_cast<std::byte>(code);
  }
}

void encode_records(std::span<const float> moment, UnitOf unit_of, EncodeCode encode_code,
                    std::byte* stream) {
  for (size_t begin = 0; begin < moment.size(); begin += kInt8Block, stream += kInt8RecordBytes) {
    const size_t count = std::min<size_t>(kInt8Block, moment.size() - begin);
    encode_record(moment.subspan(begin, count), unit_of, encode_code, stream);
  }
}

bool has_wide_moments(StateFormat format) {
  return format == StateFormat::split || format == StateFormat::fp32;
}

void decode_moment(StateFormat format, const std::byte* stream, std::span<float> moment) {
  for (size_t k = 0; k < moment.size(); ++k) {
    const auto i = static_cast<int64_t>(k);
    moment[k] = has_wide_moments(format) ? load<float>(stream, i) : to_float(load<BFloat16>(stream, i));
  }
}

void encode_moment(StateFormat format, std::span<const float> moment, std::byte* stream) {
  for (size_t k = 0; k < moment.size(); ++k) {
    const auto i = static_cast<int64_t>(k);
    if (has_wide_moments(format)) {
      store(moment[k], stream, i);
    } else {
      store(round_stochastically(moment[k], kNearestBf16), stream, i);
    }
  }
}

void check_sizes(const StateSpan& state, const StateNumbers& numbers) {
  const auto size = static_cast<size_t>(state.size);
  SLUICE_CHECK(numbers.weight.size() == size && numbers.first_moment.size() == size &&
               numbers.second_moment.size() == size);
}

}  // namespace

void decode(const StateSpan& state, const StateNumbers& numbers) {
  check_sizes(state, numbers);
  for (int64_t i = 0; i < state.size; ++i) numbers.weight[static_cast<size_t>(i)] = decode_weight(state, i);
  if (state.format == StateFormat::int8) {
    decode_records(state.first_moment, decode_first_moment, numbers.first_moment);
    decode_records(state.second_moment, decode_second_moment, numbers.second_moment);
  } else {
    decode_moment(state.format, state.first_moment, numbers.first_moment);
    decode_moment(state.format, state.second_moment, numbers.second_moment);
  }
}

void encode(const StateNumbers& numbers, const StateSpan& state) {
  check_sizes(state, numbers);
  for (int64_t i = 0; i < state.size; ++i) encode_weight(numbers.weight[static_cast<size_t>(i)], state, i);
  if (state.format == StateFormat::int8) {
    encode_records(numbers.first_moment, first_moment_unit, encode_first_moment, state.first_moment);
    encode_records(numbers.second_moment, second_moment_unit, encode_second_moment, state.second_moment);
  } else {
    encode_moment(state.format, numbers.first_moment, state.first_moment);
    encode_moment(state.format, numbers.second_moment, state.second_moment);
  }
}

}  // namespace sluice::cpu_optim
