#include "cpu_optim/state_format.h"

#include <array>

namespace sluice::cpu_optim {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"split", "split_bf16", "bf16", "int8", "fp32"};

}  // namespace

std::string_view name(StateFormat format) {
  return kNames.at(static_cast<size_t>(format));
}

std::optional<StateFormat> state_format(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<StateFormat>(i);
  }
  return std::nullopt;
}

}  // namespace sluice::cpu_optim
