#include "io/aligned_buffer.h"

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "tests/support/expect_error.h"

namespace sluice {
namespace {

constexpr size_t kHuge = size_t{2} << 20;

size_t resident_pages(const AlignedBuffer& buffer) {
  std::vector<unsigned char> resident(buffer.size_bytes() / 4096);
  EXPECT_EQ(mincore(buffer.data(), buffer.size_bytes(), resident.data()), 0);
  return static_cast<size_t>(
      std::count_if(resident.begin(), resident.end(), [](auto r) { return (r & 1) != 0; }));
}

TEST(AlignedBuffer, IsZeroAlignedAndOfWholePages) {
  for (const size_t size : {size_t{1}, size_t{4096}, size_t{4097}, kHuge - 1, kHuge, 2 * kHuge + 1}) {
    for (const auto fill : {AlignedBuffer::Fill::on_touch, AlignedBuffer::Fill::now}) {
      const AlignedBuffer buffer(size, "a test", fill);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kHuge, 0U);
      EXPECT_EQ(buffer.size_bytes(), (size + 4095) / 4096 * 4096);
      EXPECT_EQ(resident_pages(buffer), fill == AlignedBuffer::Fill::now ? buffer.size_bytes() / 4096 : 0);
      EXPECT_TRUE(std::ranges::all_of(buffer.bytes(), [](std::byte value) { return value == std::byte{0}; }));
      std::ranges::fill(buffer.bytes(), std::byte{0xff});
    }
  }
}

TEST(AlignedBuffer, OfNothing) {
  EXPECT_EQ(AlignedBuffer().data(), nullptr);
  EXPECT_EQ(AlignedBuffer(0, "nothing").size_bytes(), 0U);
}

TEST(AlignedBuffer, Moves) {
  AlignedBuffer one(kHuge, "one"), two(4096, "two");
  std::byte* data = one.data();
  two = std::move(one);
  EXPECT_EQ(two.data(), data);
  const AlignedBuffer three(std::move(two));
  EXPECT_EQ(three.data(), data);
  EXPECT_EQ(three.size_bytes(), kHuge);
  three.data()[kHuge - 1] = std::byte{1};
}

TEST(AlignedBuffer, SaysWhatHasNoRoom) {
  test::expect_error(ErrorKind::resource, {"cannot map", "moments", "Free memory"},
                     [] { AlignedBuffer(size_t{1} << 60, "moments"); });
}

// Pinned pages must not become copy-on-write in a child.
TEST(AlignedBuffer, IsNotInherited) {
  const AlignedBuffer buffer(4096, "a test", AlignedBuffer::Fill::now);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    unsigned char resident = 0;
    _exit(mincore(buffer.data(), 4096, &resident) == 0 ? 1 : 0);  // ENOMEM: not mapped
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace sluice
