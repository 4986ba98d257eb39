#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace sluice {

// An index that cannot be mixed up with another kind of index.
template <class Tag>
struct Id {
  int32_t value = -1;
  constexpr auto operator<=>(const Id&) const = default;
  constexpr bool valid() const { return value >= 0; }
};

using TensorId = Id<struct TensorTag>;
using BlockId = Id<struct BlockTag>;

}  // namespace sluice

template <class Tag>
struct std::hash<sluice::Id<Tag>> {
  size_t operator()(sluice::Id<Tag> id) const { return std::hash<int32_t>{}(id.value); }
};
