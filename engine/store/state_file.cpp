#include "engine/store/state_file.h"

#include <algorithm>
#include <cstring>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <xxhash.h>

#include "engine/base/error.h"
#include "engine/base/math.h"
#include "engine/store/state_window.h"
#include "io/aligned_buffer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// Of a transfer that ends with `size_bytes` of a section.
size_t padded(size_t size_bytes) {
  return round_up(size_bytes, kIoAlignment);
}

constexpr int kTries = 3;  // of a transfer that a drive refuses
constexpr size_t kCopyBytes = size_t{16} << 20;

// "nvme0n1p1", or "device 259:3" where the system does not say.
std::string drive_name(int descriptor) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return "unknown";
  const std::string number = std::to_string(major(info.st_dev)) + ":" + std::to_string(minor(info.st_dev));
  std::error_code error;
  const fs::path link = fs::read_symlink("/sys/dev/block/" + number, error);
  return error ? "device " + number : link.filename().string();
}

}  // namespace

template <class Visit>
void StateFile::for_each_block(const StatePiece& piece, Visit visit) const {
  const size_t block_bytes = layout_.checksum_bytes(piece.section);
  for (size_t done = 0; done < piece.size_bytes; done += block_bytes) {
    StatePiece block = piece;
    block.begin += done;
    block.data += done;
    block.size_bytes = std::min(block_bytes, piece.size_bytes - done);
    visit(block);
  }
}

std::vector<int> StateFile::descriptors() const {
  std::vector<int> all = state_->descriptors();
  if (scratch_) {
    for (const int descriptor : scratch_->descriptors()) all.push_back(descriptor);
  }
  return all;
}

uint64_t StateFile::checksum_of(const std::byte* data, size_t size_bytes) {
  return std::max<uint64_t>(1, XXH3_64bits(data, padded(size_bytes)));
}

std::span<uint64_t> StateFile::checksums(BlockId block, Section section, int slot) {
  if (section == Section::frozen) slot = 0;  // the one place of both
  auto& values = is_scratch(section) ? scratch_checksums_ : state_checksums_.at(static_cast<size_t>(slot));
  return std::span(values).subspan(layout_.checksum_begin(block, section),
                                   layout_.checksum_count(block, section));
}

std::span<const uint64_t> StateFile::checksums(BlockId block, Section section, int slot) const {
  return const_cast<StateFile*>(this)->checksums(block, section, slot);
}

uint64_t StateFile::checksum(const StatePiece& piece) const {
  return checksums(piece.block, piece.section,
                   piece.slot)[piece.begin / layout_.checksum_bytes(piece.section)];
}

void StateFile::check(const StatePiece& piece) const {
  const size_t bytes = layout_.section_bytes(piece.block, piece.section);
  SLUICE_CHECK(piece.begin <= bytes && piece.size_bytes <= bytes - piece.begin && piece.size_bytes > 0);
  const size_t block_bytes = layout_.checksum_bytes(piece.section);
  SLUICE_CHECK(piece.begin % block_bytes == 0);
  SLUICE_CHECK(piece.size_bytes % block_bytes == 0 || piece.begin + piece.size_bytes == bytes);
  SLUICE_CHECK(reinterpret_cast<uintptr_t>(piece.data) % kIoAlignment == 0);
}

void StateFile::add_requests(IoRequest::Kind kind, const StatePiece& piece, uint64_t tag,
                             std::vector<IoRequest>& requests) const {
  check(piece);
  const uint64_t offset = layout_.offset(piece.block, piece.section, piece.slot) + piece.begin;
  file(piece.section).add_requests(kind, offset, padded(piece.size_bytes), piece.data, tag, requests);
}

void StateFile::read_requests(std::span<const StatePiece> pieces, std::vector<IoRequest>& requests) const {
  for (size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i].size_bytes > 0) add_requests(IoRequest::Kind::read, pieces[i], i, requests);
}

void StateFile::verify(std::span<const StatePiece> pieces, IoQueue& queue) const {
  for (const StatePiece& piece : pieces) {
    for_each_block(piece, [&](const StatePiece& block) {
      const uint64_t expected = checksum(block);
      SLUICE_CHECK(expected != 0, "a piece is read that this process has not written and no manifest names");
      if (checksum_of(block.data, block.size_bytes) != expected) verify_block(block, queue);
    });
  }
}

// A second chance for what differed: memory or cable may have been at fault.
void StateFile::verify_block(const StatePiece& block, IoQueue& queue) const {
  std::vector<IoRequest> requests;
  add_requests(IoRequest::Kind::read, block, 0, requests);
  transfer(queue, {&block, 1}, requests);
  if (checksum_of(block.data, block.size_bytes) == checksum(block)) {
    ++reread_count_;
    return;
  }
  std::string places;  // a block may lie across drives, and its checksum does not tell which one is at fault
  for (const IoRequest& request : requests) {
    if (!places.empty()) places += " or ";
    places += file(block.section).place(request) + " (drive " + drive_name(request.descriptor) + ")";
  }
  throw Error(ErrorKind::data,
              words(block) + " (" + std::to_string(block.size_bytes) +
                  " bytes) are damaged on disk: " + places +
                  " does not hold what was written, in two reads. Is each drive mounted where it was? Then "
                  "check it (smartctl -a); go on from a copy of the state, or start anew on another drive.");
}

void StateFile::write_requests(std::span<const StatePiece> pieces, std::vector<IoRequest>& requests) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const StatePiece& piece = pieces[i];
    if (piece.size_bytes == 0) continue;
    add_requests(IoRequest::Kind::write, piece, i, requests);
    // Only where something is there: others may be reading memory whose padding is zero for good.
    const std::span<std::byte> padding{piece.data + piece.size_bytes,
                                       padded(piece.size_bytes) - piece.size_bytes};
    if (std::ranges::any_of(padding, [](std::byte byte) { return byte != std::byte{0}; }))
      std::ranges::fill(padding, std::byte{0});
    for_each_block(piece, [&](const StatePiece& block) {
      checksums(block.block, block.section, block.slot)[block.begin / layout_.checksum_bytes(block.section)] =
          checksum_of(block.data, block.size_bytes);
    });
  }
}

void StateFile::retry(IoQueue& queue, const StatePiece& piece, const IoRequest& request) const {
  for (int tries = 1;; ++tries) {
    try {
      return run_all(queue, {&request, 1});
    } catch (const Error& error) {
      if (tries < kTries) continue;
      throw Error(error.kind(), words(piece) + ": " + error.what() + " Drive " +
                                    drive_name(request.descriptor) + " failed " + std::to_string(kTries) +
                                    " times; check it (smartctl -a).");
    }
  }
}

void StateFile::transfer(IoQueue& queue, std::span<const StatePiece> pieces,
                         std::span<const IoRequest> requests) const {
  try {
    return run_all(queue, requests);
  } catch (const Error&) {
    // Of which piece it was, retry() will say, should it come again.
  }
  for (const IoRequest& request : requests) retry(queue, pieces[request.tag], request);
}

std::string StateFile::words(const StatePiece& piece) const {
  return layout_.describe(piece.block, piece.section, piece.begin, piece.begin + piece.size_bytes);
}

void StateFile::read_pieces(IoQueue& queue, std::span<const StatePiece> pieces) const {
  std::vector<IoRequest> requests;
  read_requests(pieces, requests);
  transfer(queue, pieces, requests);
  verify(pieces, queue);
}

void StateFile::write_pieces(IoQueue& queue, std::span<const StatePiece> pieces) {
  std::vector<IoRequest> requests;
  write_requests(pieces, requests);
  transfer(queue, pieces, requests);
}

void StateFile::read_bytes(IoQueue& queue, BlockId block, Section section, int slot, size_t begin,
                           std::span<std::byte> out) {
  StateWindow(*this, queue).read(block, section, slot, begin, out);
}

void StateFile::write_bytes(IoQueue& queue, BlockId block, Section section, int slot, size_t begin,
                            std::span<const std::byte> in) {
  StateWindow window(*this, queue);
  window.write(block, section, slot, begin, in);
  window.flush();
}

bool StateFile::copy_from(const StateFile& old, const LongTransfer& transfer) {
  SLUICE_CHECK(old.layout_.fingerprint() == layout_.fingerprint() && old.generation_.number != 0);
  const AlignedBuffer buffer(kCopyBytes, "copying the state");
  uint64_t total = 0, done = 0;
  for (int32_t i = 0; i < layout_.block_count(); ++i) {
    for (const Section section : kPersistedSections) total += layout_.section_bytes(BlockId{i}, section);
  }
  for (int32_t i = 0; i < layout_.block_count(); ++i) {
    for (const Section section : kPersistedSections) {
      const size_t bytes = layout_.section_bytes(BlockId{i}, section);
      const size_t step = kCopyBytes / layout_.checksum_bytes(section) * layout_.checksum_bytes(section);
      for (size_t begin = 0; begin < bytes; begin += step) {
        if (transfer.stopped()) return false;
        StatePiece piece{BlockId{i},
                         section,
                         old.generation_.slots[static_cast<size_t>(i)],
                         begin,
                         std::min(step, bytes - begin),
                         buffer.data()};
        old.read_pieces(transfer.queue, {&piece, 1});
        piece.slot = 0;
        write_pieces(transfer.queue, {&piece, 1});
        transfer.report(done += piece.size_bytes, total);
      }
    }
  }
  return true;
}

}  // namespace sluice
