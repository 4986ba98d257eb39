#include "cpu_optim/reference/state.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu_optim/random.h"
#include "cpu_optim/reference/adamw.h"
#include "cpu_optim/rounding.h"

namespace sluice::cpu_optim::reference {
namespace {

constexpr int kFirstOctaves = 15, kSecondOctaves = 31;
constexpr double kFirstOffset = 1, kSecondOffset = 0;

template <class T>
std::span<T> stream_of(std::byte* stream, int64_t size) {
  return {reinterpret_cast<T*>(stream), static_cast<size_t>(size)};
}

// `draw` is uniform in [0, 1).
bool goes_up(double remainder, double draw) {
  return remainder + draw >= 1;
}

double master_of(const StateSpan& state, size_t i) {
  const float weight = to_float(state.weight[i]);
  if (state.format == StateFormat::fp32) return stream_of<float>(state.low, state.size)[i];
  if (state.format == StateFormat::bf16 || state.format == StateFormat::int8) return weight;
  return join(state.weight[i], stream_of<int16_t>(state.low, state.size)[i]);
}

void set_master(const StateSpan& state, size_t i, double value, double draw) {
  const SplitFloat halves = split(static_cast<float>(value));
  state.weight[i] = halves.high;
  if (state.format == StateFormat::fp32) {
    stream_of<float>(state.low, state.size)[i] = static_cast<float>(value);
  } else if (state.format == StateFormat::bf16 || state.format == StateFormat::int8) {
    state.weight[i] = to_bfloat16(static_cast<float>(round_to_bf16(value, draw)));
  } else {
    stream_of<int16_t>(state.low, state.size)[i] = halves.low;
  }
}

std::vector<double> moment_of(const StateSpan& state, bool first) {
  std::byte* stream = first ? state.first_moment : state.second_moment;
  std::vector<double> moment(static_cast<size_t>(state.size));
  for (size_t i = 0; i < moment.size(); ++i) {
    if (state.format == StateFormat::int8) {
      const std::byte* record = stream + i / kInt8Block * kInt8RecordBytes;
      const float unit = *reinterpret_cast<const float*>(record + kInt8Block);
      const int code = static_cast<int>(record[code_index(static_cast<int64_t>(i) % kInt8Block)]);
      const double magnitude = decode(first ? code % 128 : code, unit, first ? kFirstOffset : kSecondOffset);
      moment[i] = first && code >= 128 ? -magnitude : magnitude;
    } else if (state.format == StateFormat::bf16 || state.format == StateFormat::split_bf16) {
      moment[i] = to_float(stream_of<BFloat16>(stream, state.size)[i]);
    } else {
      moment[i] = stream_of<float>(stream, state.size)[i];
    }
  }
  return moment;
}

void set_records(const StateSpan& state, bool first, std::span<const double> moment,
                 std::span<const double> units, std::span<const double> draws) {
  std::byte* record = first ? state.first_moment : state.second_moment;
  for (size_t begin = 0; begin < moment.size(); begin += kInt8Block, record += kInt8RecordBytes) {
    const size_t count = std::min<size_t>(kInt8Block, moment.size() - begin);
    const double unit = units[begin / kInt8Block];
    *reinterpret_cast<float*>(record + kInt8Block) = static_cast<float>(unit);
    for (size_t i = 0; i < count; ++i) {
      const double value = moment[begin + i];
      const int code = encode(std::abs(value), unit, first ? kFirstOffset : kSecondOffset, draws[begin + i]);
      record[code_index(static_cast<int64_t>(i))] =
          static_cast<std::byte>(code + (first && std::signbit(value) ? 128 : 0));
    }
  }
}

void set_moment(const StateSpan& state, bool first, std::span<const double> moment,
                std::span<const double> draws) {
  std::byte* stream = first ? state.first_moment : state.second_moment;
  for (size_t i = 0; i < moment.size(); ++i) {
    if (state.format == StateFormat::bf16 || state.format == StateFormat::split_bf16) {
      stream_of<BFloat16>(stream, state.size)[i] =
          to_bfloat16(static_cast<float>(round_to_bf16(moment[i], draws[i])));
    } else {
      stream_of<float>(stream, state.size)[i] = static_cast<float>(moment[i]);
    }
  }
}

}  // namespace

Numbers decode(const StateSpan& state) {
  Numbers numbers;
  for (size_t i = 0; i < static_cast<size_t>(state.size); ++i) numbers.w.push_back(master_of(state, i));
  numbers.m = moment_of(state, true);
  numbers.v = moment_of(state, false);
  return numbers;
}

double round_to_bf16(double value, double draw) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  const double magnitude = std::abs(value) / step;
  const double whole = std::floor(magnitude) + (goes_up(magnitude - std::floor(magnitude), draw) ? 1 : 0);
  return std::copysign(whole * step, value);  // 2^128 is infinity as an fp32
}

double decode(int code, double unit, double offset) {
  return (std::ldexp(1 + (code % 8) / 8.0, code / 8) - offset) * unit;
}

int encode(double value, double unit, double offset, double draw) {
  if (!(unit > 0)) return 0;
  const double shifted = std::max(value / unit + offset, 1.0);
  const int octave = std::ilogb(shifted);
  const double steps = (octave + (std::ldexp(shifted, -octave) - 1)) * 8;
  return static_cast<int>(steps) + (goes_up(steps - std::floor(steps), draw) ? 1 : 0);
}

double unit_of(double bound, int octaves) {
  if (!(bound <= 0x1.dffdp127)) return std::numeric_limits<double>::quiet_NaN();
  double unit = 0x1p-99;
  const auto top = [&] { return (std::ldexp(1.875 - 0x1p-15, octaves)) * unit; };
  while (top() < bound) unit *= octaves == kSecondOctaves ? 4 : 2;
  return unit;
}

namespace {

// Of each record: the least unit under which a bound of its new moments has a code.
struct Units {
  std::vector<double> first, second;
};

double largest(std::span<const double> values, size_t begin) {
  double result = 0;
  for (size_t i = begin; i < std::min(values.size(), begin + kInt8Block); ++i) {
    if (std::isnan(values[i])) return values[i];
    result = std::max(result, std::abs(values[i]));
  }
  return result;
}

Units units_of(const Numbers& old, std::span<const double> gradient, const AdamOptions& options,
               double gradient_scale) {
  Units units;
  for (size_t begin = 0; begin < old.w.size(); begin += kInt8Block) {
    double g = largest(gradient, begin) * gradient_scale;
    if (options.variant == AdamVariant::adam) g += options.weight_decay * largest(old.w, begin);
    const double m = options.beta1 * largest(old.m, begin) + (1 - options.beta1) * g;
    const double v = options.beta2 * largest(old.v, begin) + (1 - options.beta2) * g * g;
    units.first.push_back(unit_of(m, kFirstOctaves));
    units.second.push_back(unit_of(v, kSecondOctaves));
  }
  return units;
}

}  // namespace

void update(const StateSpan& state, std::span<const double> gradient, const AdamOptions& options,
            int64_t step, double gradient_scale, uint64_t seed) {
  Numbers numbers = decode(state);
  const Units units = units_of(numbers, gradient, options, gradient_scale);
  const bool records = state.format == StateFormat::int8;
  update(numbers.w, numbers.m, numbers.v, gradient, options, step, gradient_scale,
         records ? double{kNoiseOfRoot} : 1.0);
  const uint64_t key = random_key_of(seed, step);
  std::vector<double> first_draws, second_draws;
  for (size_t i = 0; i < numbers.w.size(); ++i) {
    const uint64_t element = state.first_element + i;
    const Draws drawn = records ? record_draws(key, element) : draws(key, element);
    set_master(state, i, numbers.w[i], drawn.weight16() * 0x1p-16);
    first_draws.push_back(records ? drawn.first20() * 0x1p-20 : drawn.first16() * 0x1p-16);
    second_draws.push_back(records ? drawn.second20() * 0x1p-20 : drawn.second16() * 0x1p-16);
  }
  if (records) {
    set_records(state, true, numbers.m, units.first, first_draws);
    set_records(state, false, numbers.v, units.second, second_draws);
  } else {
    set_moment(state, true, numbers.m, first_draws);
    set_moment(state, false, numbers.v, second_draws);
  }
}

}  // namespace sluice::cpu_optim::reference
