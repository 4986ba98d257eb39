#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/store/folder_lock.h"
#include "engine/store/manifest.h"
#include "engine/store/state_layout.h"
#include "io/io_queue.h"
#include "io/striped_file.h"

namespace sluice {

struct StateFileOptions {
  std::vector<SpillFolder> drives;  // one slab in each; made where missing
  std::filesystem::path manifest_folder;
  StateIdentity identity;  // format and fingerprint are filled in: the layout's
  // Write the state's bytes once before they are used: later writes are then twice as fast. Not worth it
  // where only generations are written, seldom.
  bool prewrite = true;
};

// For what takes long: the caller's queue, with nothing in flight.
struct LongTransfer {
  IoQueue& queue;
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress = {};
  const std::atomic<bool>* stop = nullptr;  // looked at every 32 MiB; true ends the transfer

  bool stopped() const { return stop != nullptr && stop->load(); }
  void report(uint64_t done_bytes, uint64_t total_bytes) const {
    if (progress) progress(done_bytes, total_bytes);
  }
};

// A generation as its manifest describes it.
struct Generation {
  uint64_t number = 0;  // 0: nothing was committed yet
  GenerationFacts facts;
  std::vector<uint8_t> slots;  // by block: where its version is
};

// Bytes [begin, begin + size_bytes) of a section, to be transferred as a whole. `begin` is a multiple of
// StateLayout::checksum_bytes, the end is one, too, or the section's end; `data` is page-aligned with room
// for the size rounded up to kIoAlignment (whose last bytes are overwritten, reading and writing). Gradients
// have slot 0.
struct StatePiece {
  BlockId block;
  Section section = Section::low;
  int slot = 0;
  size_t begin = 0;
  size_t size_bytes = 0;
  std::byte* data = nullptr;
};

// A model's state on disk: spill and checkpoint at once. Two slots for each section; a generation is the slot
// of each block that a manifest names, with a checksum for each MiB (or less, StateLayout::checksum_bytes).
// The caller decides which slot it writes: never one that the last committed generation uses, nor one of a
// generation that is being committed. Gradients lie in a second file without a name, which goes with the
// process.
//
// Threads: any number may request and verify different pieces at once, commit() included. Nobody reads or
// writes a piece while another writes it; the caller's events order that, as they order the memory of the
// piece, and cover the checksums kept here. A write's request must have completed before another piece of the
// same bytes is requested. Only one commit() at a time, and generation() not beside it.
//
// Faults of the world throw Error: `runtime` or `resource` from drives, `data` for what is damaged, `usage`
// for folders that are not private. A section that was never written reads as zero. After open() the slots
// that are not committed hold nothing that can be read: write before.
class StateFile {
 public:
  // A new store: locks and makes folders, preallocates, writes every byte once (StateFileOptions::prewrite;
  // gradients always). Null where `stop` ended it. Until its first commit it disappears with this object;
  // that commit supersedes whatever generations and slabs were in the manifest folder.
  static std::unique_ptr<StateFile> create(StateFileOptions options, StateLayout layout, FolderLocks& locks,
                                           const LongTransfer& transfer);
  // The newest whole generation in the folder: all is checked that can be without reading slabs. Error(data)
  // where there is none, or it is of another model; Error(usage) where format or gradient shards are others.
  // The kernel table is the caller's to compare (manifest_identity()). Further commits carry `identity`. Open
  // an old store before a new one is created in its folder. Null where `stop` ended writing the gradients'
  // file.
  static std::unique_ptr<StateFile> open(const std::filesystem::path& manifest_folder, StateIdentity identity,
                                         StateLayout layout, FolderLocks& locks,
                                         const LongTransfer& transfer);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  const StateLayout& layout() const { return layout_; }
  // What is committed.
  const Generation& generation() const { return generation_; }
  // As found by open().
  const StateIdentity& manifest_identity() const { return manifest_identity_; }
  const std::vector<SpillFolder>& drives() const { return drives_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Of all files, for IoQueueOptions.
  std::vector<int> descriptors() const;
  // Why a drive is not used directly; empty where all are.
  const std::string& buffered_reason() const { return state_->buffered_reason(); }

  // Appends what reads the pieces; a request's tag is its piece's index.
  void read_requests(std::span<const StatePiece> pieces, std::vector<IoRequest>& requests) const;
  // After those completed: every checksum. A block that differs is read once more through `queue` (nothing in
  // flight), then Error(data) names tensor, file, offset and drive.
  void verify(std::span<const StatePiece> pieces, IoQueue& queue) const;
  // Appends what writes the pieces, whose memory must not change from here until the requests completed.
  // Zeroes what lies between a section's end and the page's.
  void write_requests(std::span<const StatePiece> pieces, std::vector<IoRequest>& requests);
  // What a drive refused (EIO), a request of the piece, tried again alone with nothing else in flight in
  // `queue`: the fault may pass, and if it does not, the Error says whose bytes they are.
  void retry(IoQueue& queue, const StatePiece& piece, const IoRequest& request) const;
  // The same, blocking. What fails with EIO is tried again, then Error(runtime) names tensor, file, offset
  // and drive.
  void read_pieces(IoQueue& queue, std::span<const StatePiece> pieces) const;
  void write_pieces(IoQueue& queue, std::span<const StatePiece> pieces);

  // Any range of bytes, blocking, through 5 MiB of its own: for long spans. A StateWindow serves short ones.
  void read_bytes(IoQueue& queue, BlockId block, Section section, int slot, size_t begin,
                  std::span<std::byte> out);
  void write_bytes(IoQueue& queue, BlockId block, Section section, int slot, size_t begin,
                   std::span<const std::byte> in);

  // Makes the blocks' versions in `slots` the state, durably: all their writes have completed, without error.
  // Until it returns the old generation may be the one that is found. Where it throws, the old one is, and
  // may be followed by another commit; except in_doubt(). After a drive failed to sync, every later commit
  // throws, too: what it holds is unknown.
  void commit(const GenerationFacts& facts, std::span<const uint8_t> slots);
  // A commit threw of which nobody knows whether it was made: keep both generations whole. For its thread.
  bool in_doubt() const { return in_doubt_; }

  // Into slot 0 of this new store, what `old` (of the same model) has committed; false where `stop` ended it.
  // Then commit() with all slots 0.
  [[nodiscard]] bool copy_from(const StateFile& old, const LongTransfer& transfer);

  // Blocks that a second read found whole.
  int64_t reread_count() const { return reread_count_.load(); }

 private:
  StateFile(StateLayout layout, const std::filesystem::path& manifest_folder, StateIdentity identity);
  void add_drive(const SpillFolder& drive);
  std::vector<StripedFile::Part> parts(const std::string& file_name) const;
  bool make_scratch(const LongTransfer& transfer, uint64_t done_bytes);
  static bool write_zeros(const StripedFile& file, const LongTransfer& transfer, uint64_t done_bytes,
                          uint64_t total_bytes);
  void know_zeros(std::span<const Section> sections, int slot_count);
  void adopt(const Manifest& manifest);
  Manifest new_manifest() const;
  void make_durable(const Manifest& manifest);
  void check(const StatePiece& piece) const;
  const StripedFile& file(Section section) const { return is_scratch(section) ? *scratch_ : *state_; }
  void add_requests(IoRequest::Kind kind, const StatePiece& piece, uint64_t tag,
                    std::vector<IoRequest>& requests) const;
  // With the padding behind it, which is zero on disk. Never 0, which stands for "nobody knows".
  static uint64_t checksum_of(const std::byte* data, size_t size_bytes);
  std::span<uint64_t> checksums(BlockId block, Section section, int slot);
  // Of the block that begins with the piece.
  uint64_t checksum(const StatePiece& piece) const;
  std::span<const uint64_t> checksums(BlockId block, Section section, int slot) const;
  void verify_block(const StatePiece& block, IoQueue& queue) const;
  // Calls visit(block) for each checksum block of a piece.
  template <class Visit>
  void for_each_block(const StatePiece& piece, Visit visit) const;
  void transfer(IoQueue& queue, std::span<const StatePiece> pieces,
                std::span<const IoRequest> requests) const;
  std::string words(const StatePiece& piece) const;

  StateLayout layout_;
  std::filesystem::path manifest_folder_;
  StateIdentity identity_;
  StateIdentity manifest_identity_;
  std::string store_id_;
  std::vector<SpillFolder> drives_;
  std::vector<std::string> warnings_;
  std::optional<StripedFile> state_;
  std::optional<StripedFile> scratch_;
  // By StateLayout::checksum_begin; 0 where nobody knows what is there. Elements, not the vectors, are shared
  // by threads.
  std::array<std::vector<uint64_t>, kSlotCount> state_checksums_;
  std::vector<uint64_t> scratch_checksums_;
  Generation generation_;
  uint64_t newest_number_ = 0;  // that any file in the folder has
  std::string sync_failure_;
  bool in_doubt_ = false;
  mutable std::atomic<int64_t> reread_count_ = 0;
};

}  // namespace sluice
