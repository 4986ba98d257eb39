#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/store/state_file.h"
#include "io/aligned_buffer.h"

namespace sluice {

// Bytes of a state in small pieces, for loading, exporting and hashing: a view of up to 4 MiB of one section
// at a time, which follows the reads and writes. Neighbouring ones cost no transfer, and a checksum block
// that is written as a whole is not read before, so going through a section in order moves each byte once.
// Whoever alternates between sections takes a window each (5 MiB of RAM). Blocking, single-threaded; the
// pieces are this thread's, as StateFile says.
class StateWindow {
 public:
  // Both must outlive the window; nothing else is in flight in `queue` during a call.
  StateWindow(StateFile& file, IoQueue& queue);
  StateWindow(const StateWindow&) = delete;
  StateWindow& operator=(const StateWindow&) = delete;
  // What was written and not flushed is lost.
  ~StateWindow() = default;

  void read(BlockId block, Section section, int slot, size_t begin, std::span<std::byte> out);
  void write(BlockId block, Section section, int slot, size_t begin, std::span<const std::byte> in);
  // All that was written is on its way to the drive's cache (a commit syncs it).
  void flush();

  static constexpr size_t kWindowBytes = size_t{4} << 20;

 private:
  struct Place {
    BlockId block;
    Section section;
    int slot;
    bool operator==(const Place&) const = default;
  };
  // A checksum block of the window. Where it is not loaded, only what is dirty is known.
  struct Unit {
    bool loaded = false;
    size_t dirty_begin = 0, dirty_end = 0;
    bool dirty() const { return dirty_begin < dirty_end; }
  };

  void move_to(const Place& place, size_t position);
  size_t unit_bytes(size_t unit) const;
  StatePiece piece(size_t first_unit, size_t unit_count) const;
  void load(size_t first_unit, size_t last_unit);
  void complete(size_t unit);
  void write_unit(size_t unit, size_t begin, std::span<const std::byte> in);

  StateFile& file_;
  IoQueue& queue_;
  AlignedBuffer buffer_;  // the window, and a MiB to merge in
  // Of the section: of a checksum block, and of as many whole ones as fit.
  size_t block_bytes_ = kChecksumBytes;
  size_t window_bytes_ = kWindowBytes;
  std::optional<Place> place_;
  size_t section_bytes_ = 0;
  size_t begin_ = 0;    // of the window in the section
  bool ahead_ = false;  // reads go on where the last window ended
  std::vector<Unit> units_;
};

}  // namespace sluice
