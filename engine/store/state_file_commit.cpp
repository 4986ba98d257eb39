#include <algorithm>
#include <random>
#include <system_error>
#include <utility>

#include "engine/base/error.h"
#include "engine/store/manifest_folder.h"
#include "engine/store/private_folder.h"
#include "engine/store/state_file.h"
#include "io/aligned_buffer.h"

// How a state begins, is committed, found again and ends; state_file.cpp has its transfers.
namespace sluice {
namespace {

namespace fs = std::filesystem;

// What is written between two looks at `stop`.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;

std::string random_id() {
  std::random_device device;
  std::string id;
  while (id.size() < 16) id += "0123456789abcdef"[device() % 16];
  return id;
}

}  // namespace

StateFile::StateFile(StateLayout layout, const fs::path& manifest_folder, StateIdentity identity)
    : layout_(std::move(layout)),
      manifest_folder_(fs::absolute(manifest_folder)),
      identity_(std::move(identity)),
      scratch_checksums_(layout_.scratch_checksums()) {
  identity_.format = cpu_optim::name(layout_.model().state_format);
  identity_.model_fingerprint = layout_.fingerprint();
  for (std::vector<uint64_t>& slot : state_checksums_) slot.resize(layout_.state_checksums());
}

std::unique_ptr<StateFile> StateFile::create(StateFileOptions options, StateLayout layout, FolderLocks& locks,
                                             const LongTransfer& transfer) {
  SLUICE_CHECK(!options.drives.empty());
  std::unique_ptr<StateFile> state(
      new StateFile(std::move(layout), options.manifest_folder, std::move(options.identity)));
  locks.lock(state->manifest_folder_);
  for (const SpillFolder& drive : options.drives) {
    locks.lock(drive.folder);
    state->add_drive(drive);
  }
  remove_leftovers(state->manifest_folder_, Leftovers::all);
  state->store_id_ = random_id();
  state->manifest_identity_ = state->identity_;
  state->newest_number_ = newest_number(state->manifest_folder_);
  write_manifest(state->manifest_folder_, state->new_manifest());
  const uint64_t state_bytes = state->layout_.state_bytes();
  const uint64_t written_bytes = options.prewrite ? state_bytes : 0;
  const uint64_t total_bytes = written_bytes + state->layout_.scratch_bytes();
  state->state_ = StripedFile::create(state->parts(slab_name(state->store_id_)), state_bytes);
  if (options.prewrite && !write_zeros(*state->state_, transfer, 0, total_bytes)) return nullptr;
  state->know_zeros(kPersistedSections, kSlotCount);
  if (!state->make_scratch(transfer, written_bytes)) return nullptr;
  return state;
}

std::unique_ptr<StateFile> StateFile::open(const fs::path& manifest_folder, StateIdentity identity,
                                           StateLayout layout, FolderLocks& locks,
                                           const LongTransfer& transfer) {
  check_private_folder(manifest_folder);  // lock() would make one that is missing, here and below
  locks.lock(manifest_folder);
  const std::optional<Recovered> recovered = recover(manifest_folder);
  if (!recovered)
    throw Error(ErrorKind::data, "there is no saved state in " + manifest_folder.string() + ".");
  std::unique_ptr<StateFile> state(new StateFile(std::move(layout), manifest_folder, std::move(identity)));
  state->warnings_ = recovered->warnings;
  state->adopt(recovered->manifest);
  for (const SpillFolder& drive : state->drives_) {
    check_private_folder(drive.folder);
    locks.lock(drive.folder);
    open_private_file(drive.folder / slab_name(state->store_id_));
  }
  remove_leftovers(manifest_folder, Leftovers::all);
  state->newest_number_ = newest_number(manifest_folder);
  state->state_ = StripedFile::open(state->parts(slab_name(state->store_id_)), state->layout_.state_bytes());
  if (!state->make_scratch(transfer, 0)) return nullptr;
  return state;
}

StateFile::~StateFile() {
  if (generation_.number != 0 || store_id_.empty()) return;
  try {
    remove_leftovers(manifest_folder_, Leftovers::all);
  } catch (const Error&) {
    // What stays is named by new-ID.manifest: the next create() in this folder removes it.
  }
}

void StateFile::add_drive(const SpillFolder& drive) {
  for (const SpillFolder& other : drives_) {
    if (fs::equivalent(drive.folder, other.folder))
      throw Error(ErrorKind::usage,
                  "the folder " + drive.folder.string() + " is named twice. Name one folder a drive.");
  }
  drives_.push_back({fs::absolute(drive.folder), drive.weight});
}

// Takes over what a manifest says, after comparing it with what this run is.
void StateFile::adopt(const Manifest& manifest) {
  const std::string at = "the saved state in " + manifest_folder_.string();
  manifest_identity_ = manifest.identity;
  if (manifest_identity_.format != identity_.format) {
    throw Error(ErrorKind::usage, at + " has the format " + manifest_identity_.format + ", this run " +
                                      identity_.format + ". Ask for the same.");
  }
  if (manifest_identity_.gradient_shards != identity_.gradient_shards) {
    throw Error(ErrorKind::usage, at + " was made with " +
                                      std::to_string(manifest_identity_.gradient_shards) +
                                      " gradient shards, this run has " +
                                      std::to_string(identity_.gradient_shards) + ". Ask for the same.");
  }
  if (manifest_identity_.model_fingerprint != identity_.model_fingerprint ||
      manifest.size_bytes != layout_.state_bytes() ||
      manifest.slots.size() != static_cast<size_t>(layout_.block_count()) ||
      manifest.checksums.size() != layout_.state_checksums()) {
    throw Error(ErrorKind::data,
                at + " is of another model, or of other trained tensors. Use the same model.");
  }
  store_id_ = manifest.store_id;
  for (const SpillFolder& drive : manifest.drives)
    drives_.push_back({resolved_folder(manifest_folder_, drive.folder), drive.weight});
  generation_ = {manifest.number, manifest.facts, manifest.slots};
  size_t next = 0;
  for (int32_t i = 0; i < layout_.block_count(); ++i) {
    for (const Section section : kPersistedSections) {
      for (uint64_t& value : checksums(BlockId{i}, section, manifest.slots[static_cast<size_t>(i)]))
        value = manifest.checksums[next++];
    }
  }
}

std::vector<StripedFile::Part> StateFile::parts(const std::string& file_name) const {
  std::vector<StripedFile::Part> parts;
  for (const SpillFolder& drive : drives_) parts.push_back({drive.folder / file_name, drive.weight});
  return parts;
}

// It needs no name: nobody else reads it, and a process that dies leaves nothing behind.
bool StateFile::make_scratch(const LongTransfer& transfer, uint64_t done_bytes) {
  if (layout_.scratch_bytes() == 0) return true;
  const std::vector<StripedFile::Part> scratch = parts("scratch-" + store_id_ + ".slab");
  for (const StripedFile::Part& part : scratch) {
    // Of a process that died before it came to unlink(); what stays is refused by create().
    std::error_code ignored;
    fs::remove(part.path, ignored);
  }
  scratch_ = StripedFile::create(scratch, layout_.scratch_bytes());
  scratch_->unlink();
  if (!write_zeros(*scratch_, transfer, done_bytes, done_bytes + layout_.scratch_bytes())) return false;
  know_zeros(kScratchSections, 1);
  return true;
}

bool StateFile::write_zeros(const StripedFile& file, const LongTransfer& transfer, uint64_t done_bytes,
                            uint64_t total_bytes) {
  const AlignedBuffer zeros(StripedFile::kStripeBytes, "zeros");
  std::vector<IoRequest> requests;
  for (uint64_t offset = 0; offset < file.size_bytes(); offset += kBatchBytes) {
    if (transfer.stopped()) return false;
    requests.clear();
    const uint64_t end = std::min(offset + kBatchBytes, file.size_bytes());
    for (uint64_t at = offset; at < end; at += StripedFile::kStripeBytes)
      file.add_requests(IoRequest::Kind::write, at, StripedFile::kStripeBytes, zeros.data(), 0, requests);
    run_all(transfer.queue, requests);
    transfer.report(done_bytes + end, total_bytes);
  }
  return true;
}

// All persisted sections, or the gradients.
void StateFile::know_zeros(std::span<const Section> sections, int slot_count) {
  const AlignedBuffer zeros(kChecksumBytes, "zeros");
  const uint64_t mib = checksum_of(zeros.data(), kChecksumBytes);
  for (int32_t i = 0; i < layout_.block_count(); ++i) {
    for (const Section section : sections) {
      const size_t block_bytes = layout_.checksum_bytes(section);
      const uint64_t whole = block_bytes == kChecksumBytes ? mib : checksum_of(zeros.data(), block_bytes);
      const size_t tail = layout_.section_bytes(BlockId{i}, section) % block_bytes;
      for (int slot = 0; slot < slot_count; ++slot) {
        const std::span<uint64_t> values = checksums(BlockId{i}, section, slot);
        std::fill(values.begin(), values.end(), whole);
        if (tail != 0) values.back() = checksum_of(zeros.data(), tail);
      }
    }
  }
}

// All but what a commit adds.
Manifest StateFile::new_manifest() const {
  Manifest manifest{.store_id = store_id_, .identity = identity_, .size_bytes = layout_.state_bytes()};
  for (const SpillFolder& drive : drives_)
    manifest.drives.push_back({stored_folder(manifest_folder_, drive.folder), drive.weight});
  return manifest;
}

void StateFile::commit(const GenerationFacts& facts, std::span<const uint8_t> slots) {
  SLUICE_CHECK(slots.size() == static_cast<size_t>(layout_.block_count()));
  if (!sync_failure_.empty())
    throw Error(ErrorKind::runtime, "the state cannot be saved any more: " + sync_failure_);
  Manifest next = new_manifest();
  next.number = newest_number_ + 1;
  next.facts = facts;
  next.slots.assign(slots.begin(), slots.end());
  for (size_t i = 0; i < slots.size(); ++i) {
    SLUICE_CHECK(slots[i] < kSlotCount);
    for (const Section section : kPersistedSections) {
      for (const uint64_t value : checksums(BlockId{static_cast<int32_t>(i)}, section, slots[i])) {
        SLUICE_CHECK(value != 0, "a slot is committed that this process has not written");
        next.checksums.push_back(value);
      }
    }
  }
  make_durable(next);
  newest_number_ = next.number;
  generation_ = {next.number, facts, std::move(next.slots)};
  try {
    retire_others(manifest_folder_, store_id_, next.number);
    remove_leftovers(manifest_folder_, Leftovers::superseded);
  } catch (const Error&) {
    // The generation is saved all the same; the next commit tries again.
  }
}

void StateFile::make_durable(const Manifest& manifest) {
  try {
    state_->sync();
  } catch (const Error& error) {
    sync_failure_ = error.what();
    throw;
  }
  try {
    write_manifest(manifest_folder_, manifest);
  } catch (const Error& error) {
    // Before the name appears, nothing has happened, and there may be room later. After it did, a power cut
    // may take it back.
    in_doubt_ = may_have_generation(manifest_folder_, manifest.number);
    if (in_doubt_) sync_failure_ = error.what();
    throw;
  }
}

}  // namespace sluice
