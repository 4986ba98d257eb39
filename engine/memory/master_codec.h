#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "cpu_optim/state_format.h"
#include "engine/store/state_layout.h"

// Trained weights as numbers, wherever their sections are.
namespace sluice {

// Bytes of a block's section from `begin` on.
using ReadSection = std::function<void(Section section, size_t begin, std::span<std::byte> out)>;
using WriteSection = std::function<void(Section section, size_t begin, std::span<const std::byte> in)>;

// Of the elements from `first` on in the block's logical index: the fp32 master, or in bf16 and int8 the
// weight, exactly.
void read_masters(cpu_optim::StateFormat format, int64_t first, std::span<float> masters,
                  const ReadSection& read);
// Exact where the format has a master. The weight is the nearest bf16, ties up in magnitude, in every format,
// so that all of them start from the same weights.
void write_masters(cpu_optim::StateFormat format, int64_t first, std::span<const float> masters,
                   const WriteSection& write);

}  // namespace sluice
