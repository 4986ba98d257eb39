#include "engine/memory/master_codec.h"

#include <vector>

#include "cpu_optim/convert.h"

namespace sluice {

using cpu_optim::StateFormat;

void read_masters(StateFormat format, int64_t first, std::span<float> masters, const ReadSection& read) {
  const size_t low_begin = cpu_optim::low_bytes(format, first);
  const bool has_low = cpu_optim::low_bytes(format, 1) > 0;
  if (format == StateFormat::fp32) return read(Section::low, low_begin, std::as_writable_bytes(masters));
  std::vector<BFloat16> high(masters.size());
  read(Section::high, static_cast<size_t>(first) * 2, std::as_writable_bytes(std::span(high)));
  if (!has_low) return cpu_optim::convert(std::span<const BFloat16>(high), masters);
  std::vector<int16_t> low(masters.size());
  read(Section::low, low_begin, std::as_writable_bytes(std::span(low)));
  cpu_optim::join_masters(high, low, masters);
}

void write_masters(StateFormat format, int64_t first, std::span<const float> masters,
                   const WriteSection& write) {
  std::vector<BFloat16> high(masters.size());
  std::vector<int16_t> low(masters.size());
  cpu_optim::split_masters(masters, high, low);
  write(Section::high, static_cast<size_t>(first) * 2, std::as_bytes(std::span(high)));
  if (cpu_optim::low_bytes(format, 1) == 0) return;
  write(Section::low, cpu_optim::low_bytes(format, first),
        format == StateFormat::fp32 ? std::as_bytes(masters) : std::as_bytes(std::span(low)));
}

}  // namespace sluice
