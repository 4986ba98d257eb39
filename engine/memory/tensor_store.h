#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpu_optim/state_format.h"
#include "engine/base/float_bits.h"
#include "engine/memory/block_home.h"
#include "engine/memory/block_layout.h"
#include "engine/memory/host_arena.h"
#include "engine/memory/model_spec.h"
#include "engine/store/state_file.h"
#include "gpu/stream.h"

namespace sluice {

// A block's bytes in the host tier, by meaning. Spans cover the block's logical index (empty without
// trainable parts, of what the state format lacks, and of what is on disk).
struct BlockState {
  std::span<std::byte> low;
  std::span<BFloat16> high;
  std::span<std::byte> frozen;
  std::span<std::byte> first_moment;
  std::span<std::byte> second_moment;

  std::span<std::byte> bytes(Section section) const;
};

// Where a section of a block's state is between its uses.
inline Tier home_of(const BlockHome& home, Section section) {
  const bool moment = section == Section::first_moment || section == Section::second_moment;
  return moment ? home.moments : home.weights;
}

// Where the blocks are that are not in the host tier, and who transfers for the trainer's thread. Both
// outlive the store.
struct DiskTier {
  StateFile* file = nullptr;
  IoQueue* queue = nullptr;
};

// Makes a queue for one thread: each lane that transfers has its own. `buffers`: where most of its transfers
// go from and to (IoQueueOptions::buffers); they outlive the queue.
using IoQueueFactory = std::function<std::unique_ptr<IoQueue>(std::vector<std::span<std::byte>> buffers)>;

// Which tensors exist, where each block's copy is, and which version is current. Host tier: one arena for
// weights and one for moments (none when nothing is trained), of the blocks that `homes` puts there. Owned by
// the engine; the trainer's thread asks, the optimizer's lane writes what it was told to.
class TensorStore {
 public:
  // `homes` by block; empty: all in the host tier.
  TensorStore(ModelSpec model, gpu::Device& device, TierBudget& host_budget, bool with_moments,
              std::vector<BlockHome> homes = {}, DiskTier disk = {});

  const ModelSpec& model() const { return model_; }
  int block_count() const { return static_cast<int>(layouts_.size()); }
  const BlockLayout& layout(BlockId block) const { return layouts_.at(static_cast<size_t>(block.value)); }
  BlockHome home(BlockId block) const { return homes_.at(static_cast<size_t>(block.value)); }
  BlockState state(BlockId block) const;
  // The trained elements of the same, as an update takes them; null where they are not in the host tier.
  cpu_optim::StateSpan states(BlockId block) const;
  // Start of the block's weights, which are in the host tier: low | high | frozen, as BlockLayout says.
  std::byte* weights(BlockId block) const;
  StateFile* file() const { return disk_.file; }
  // A file for generations, where all blocks are in the host tier and none was given.
  void attach(StateFile& file);

  // Sets rows of a tensor from fp32: for trainable ones exactly where the state format has a master, else
  // rounded to the weight or the storage dtype. The moments stay. Rows on disk are written there, before the
  // first update.
  void write_rows(TensorId tensor, int64_t row_begin, int64_t row_count, const float* rows);
  // Rows of a tensor as fp32: the master of a trainable one, where there is one.
  void read_rows(TensorId tensor, int64_t row_begin, int64_t row_count, float* rows) const;

  // The block and part that hold a row.
  struct Place {
    BlockId block;
    int part = 0;
    int64_t row = 0;  // within the part
  };
  Place find(TensorId tensor, int64_t row) const;

  // The event after which the block's newest version is in the host tier: set when an update is submitted.
  void set_version(BlockId block, gpu::Event ready);
  const std::optional<gpu::Event>& version_ready(BlockId block) const;
  uint64_t version(BlockId block) const { return versions_.at(static_cast<size_t>(block.value)).number; }

  // Which copy on disk is the newest, and which one the next update writes: never the one that the last
  // generation needs.
  int newest_slot(BlockId block) const { return newest_slots_.at(static_cast<size_t>(block.value)); }
  int next_slot(BlockId block) const;
  void set_newest_slot(BlockId block, int slot) {
    newest_slots_.at(static_cast<size_t>(block.value)) = static_cast<uint8_t>(slot);
  }
  // By block: what a generation made now consists of.
  const std::vector<uint8_t>& newest_slots() const { return newest_slots_; }
  // That generation has been made, and is kept from here on; until then the one before it is.
  void set_committed(std::vector<uint8_t> slots) { committed_slots_ = std::move(slots); }
  // Takes up the generation of the file whose newest copies these are: loads what the host tier has.
  void restore(std::vector<uint8_t> slots);
  // Stands for the block's bytes on disk where tasks declare what they touch.
  const std::byte* disk_token(BlockId block) const {
    return &disk_tokens_.at(static_cast<size_t>(block.value));
  }

  // xxh3 (64 bits) over all blocks in logical order: high, low, frozen, m, v. Waits for no one: the caller
  // has.
  uint64_t hash() const;

  static size_t weight_arena_bytes(const ModelSpec& model);
  static size_t moment_arena_bytes(const ModelSpec& model);

 private:
  struct Version {
    uint64_t number = 0;
    std::optional<gpu::Event> ready;
  };
  struct TensorRows {  // sorted by row_begin
    int64_t row_begin = 0;
    BlockId block;
    int part = 0;
  };

  void index_tensors();
  const TensorRows& locate(TensorId tensor, int64_t row) const;
  void write_trainable(BlockId block, int64_t first, std::span<const float> masters);
  void read_trainable(BlockId block, int64_t first, std::span<float> masters) const;
  void write_frozen(BlockId block, size_t begin, std::span<const std::byte> bytes);
  void read_frozen(BlockId block, size_t begin, std::span<std::byte> bytes) const;
  template <class Visit>
  void visit_rows(TensorId tensor, int64_t row_begin, int64_t row_count, Visit visit) const;

  ModelSpec model_;
  std::vector<BlockLayout> layouts_;
  std::vector<BlockHome> homes_;
  DiskTier disk_;
  std::vector<uint8_t> newest_slots_;
  std::optional<std::vector<uint8_t>> committed_slots_;
  std::vector<std::byte> disk_tokens_;
  std::vector<size_t> weight_offsets_;
  std::vector<size_t> moment_offsets_;
  std::vector<uint64_t> first_elements_;  // by block, in the logical index of the whole model
  std::vector<std::vector<TensorRows>> rows_of_tensor_;
  std::vector<Version> versions_;
  std::unique_ptr<HostArena> weights_;
  std::unique_ptr<HostArena> moments_;
};

}  // namespace sluice
