#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "cpu_optim/state_codec.h"
#include "cpu_optim/state_format.h"

namespace sluice::cpu_optim {

// Bits of every stream, for comparing runs.
inline std::string bytes(const StateSpan& state) {
  std::string all(reinterpret_cast<const char*>(state.weight),
                  static_cast<size_t>(state.size) * sizeof(BFloat16));
  const auto append = [&](const std::byte* stream, size_t size) {
    all.append(reinterpret_cast<const char*>(stream), size);
  };
  append(state.low, low_bytes(state.format, state.size));
  append(state.first_moment, moment_bytes(state.format, state.size));
  append(state.second_moment, moment_bytes(state.format, state.size));
  return all;
}

// Memory of a state, with `offset` unused elements in front of each stream, so that pointers are aligned to
// their element only. Weights are given, moments are zero.
class OwnedState {
 public:
  OwnedState(StateFormat format, std::span<const float> weights, size_t offset = 0,
             uint64_t first_element = 0)
      : format_(format), size_(static_cast<int64_t>(weights.size())), offset_(offset), first_(first_element) {
    weight_.resize(weights.size() + offset);
    low_.resize(low_bytes(format, size_) + offset * 4);
    for (auto* moment : {&m_, &v_}) moment->resize(moment_bytes(format, size_) + offset * 4);
    std::vector<float> w(weights.begin(), weights.end()), zeros(weights.size()), more_zeros(weights.size());
    encode({w, zeros, more_zeros}, span());
  }

  StateSpan span() {
    return {.format = format_,
            .size = size_,
            .weight = weight_.data() + offset_,
            .low = low_bytes(format_, 1) == 0 ? nullptr : low_.data() + offset_ * 4,
            .first_moment = m_.data() + offset_ * 4,
            .second_moment = v_.data() + offset_ * 4,
            .first_element = first_};
  }

 private:
  StateFormat format_;
  int64_t size_;
  size_t offset_;
  uint64_t first_;
  std::vector<BFloat16> weight_;
  std::vector<std::byte> low_, m_, v_;
};

// Numbers of a state, read anew.
struct ReadState {
  explicit ReadState(const StateSpan& state) {
    for (auto* values : {&w, &m, &v}) values->resize(static_cast<size_t>(state.size));
    decode(state, {w, m, v});
  }
  std::vector<float> w, m, v;
};

}  // namespace sluice::cpu_optim
