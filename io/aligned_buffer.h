#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace sluice {

// Anonymous memory that begins on a page of 2 MiB and lies on such pages where the system has them (transfers
// from and to 4 KiB pages are up to 1.8 times slower), not copied to forked children. Zero where never
// written. Rounded up to whole pages of 4096 bytes. Move-only.
class AlignedBuffer {
 public:
  // When the kernel finds the memory: page by page as it is touched, or all of it in the constructor.
  enum class Fill { on_touch, now };

  AlignedBuffer() = default;
  // Throws Error(resource), naming `what`, where the system has no room. With 0 bytes nothing is mapped.
  AlignedBuffer(size_t size_bytes, std::string_view what, Fill fill = Fill::on_touch);
  AlignedBuffer(AlignedBuffer&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = {}; }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  std::byte* data() const { return bytes_.data(); }
  size_t size_bytes() const { return bytes_.size(); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace sluice
