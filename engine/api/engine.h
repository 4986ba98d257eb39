#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/executor.h"
#include "engine/memory/lease.h"
#include "engine/memory/slot_ring.h"
#include "engine/memory/tensor_store.h"
#include "engine/schedule/disk_reader.h"
#include "engine/schedule/mover.h"
#include "engine/schedule/plan.h"
#include "engine/schedule/prefetcher.h"
#include "engine/store/state_file.h"
#include "engine/store/state_window.h"
#include "engine/train/input_offload.h"
#include "engine/train/optimizer.h"
#include "engine/train/shards.h"
#include "engine/train/tape.h"
#include "gpu/device.h"

// The engine, for those who write a trainer: give it a model as blocks and a walk as a list of accesses, then
// lease the blocks in that order, use them with the device's ops, and hand gradients back. One thread drives
// it.
namespace sluice {

struct EngineOptions {
  DType compute_dtype = DType::f32;     // fp32 or bf16: of weights under a lease
  std::optional<DType> gradient_dtype;  // of gradients that cross and wait; empty: the compute dtype
  int prefetch_distance = 1;
  int gradient_shards = 1;
  Recompute recompute = Recompute::automatic;
  std::optional<size_t> device_limit_bytes;
  std::optional<size_t> host_limit_bytes;
  bool disk = false;  // what the host limit leaves no room for lives on disk
  Spill spill = Spill::automatic;
  LayerInputs layer_inputs = LayerInputs::automatic;
  bool training = false;       // states and gradients are kept; begin_update follows each walk
  OptimizerOptions optimizer;  // training only
  // Of the model's Engine::state_layout; null: nothing is on disk, and nothing can be saved. Both outlive the
  // engine.
  StateFile* state_file = nullptr;
  IoQueueFactory make_queue;
  bool can_save = false;  // without a disk: a state file is given or may come later (attach), and is planned

  DType gradient_dtype_or_default() const { return gradient_dtype.value_or(compute_dtype); }
};

// What one walk over the model needs; walks repeat.
struct WalkSpec {
  std::vector<Access> accesses;
  std::vector<TapeLayerNeeds> tape;
  int micro_batch_count = 1;
  std::vector<PlanPart> fixed_parts;  // memory of the trainer's own, by name; any tier
  size_t workspace_bytes = 0;         // the largest of any op
  int concurrent_leases = 1;          // held at a time
  int concurrent_gradients = 1;       // GradientLeases held at a time
  // Tensors whose gradient comes (also) as rows: offer_rows.
  std::vector<TensorId> row_gradient_tensors;
  int64_t max_fetched_rows = 0;  // of one fetch_rows, or offer_rows
  int64_t max_row_cols = 0;      // of the tensors that those rows are of
  bool device_gradients = true;  // training: gradients() is used (not only offer_from_host)
};

// fp32 gradients of one block in device memory, summed over the micro-batches of a walk; several shards
// apart. Move-only.
class GradientLease {
 public:
  struct Target {
    gpu::View sum;            // (rows, cols) fp32; empty: the part is frozen, nothing is wanted
    bool accumulate = false;  // false for the first contribution to a part: it overwrites
  };
  GradientLease(BlockId block, int slot, std::vector<std::vector<gpu::View>> views)
      : block_(block), slot_(slot), views_(std::move(views)), written_(views_.size()) {
    for (size_t shard = 0; shard < views_.size(); ++shard) written_[shard].resize(views_[shard].size());
  }
  GradientLease(GradientLease&&) = default;
  GradientLease& operator=(GradientLease&&) = delete;

  // The next contribution of `shard` to a part. Whoever asks must write.
  Target contribute(int part, int shard);
  // The same for consecutive parts as one matrix, the rows of the first part on top: where their sums lie
  // without gaps, all are trained and all have been contributed to alike. Else nullopt, and each part is to
  // be asked for.
  std::optional<Target> contribute_stacked(std::span<const int> parts, int shard);
  BlockId block() const { return block_; }

 private:
  friend class Engine;
  BlockId block_;
  int slot_;
  std::vector<std::vector<gpu::View>> views_;  // by shard, part
  std::vector<std::vector<bool>> written_;
};

class Engine final : private LeaseOwner {
 public:
  // Throws Error(resource) where the walk does not fit. The device and the executor must outlive the engine.
  Engine(gpu::Device& device, Executor& executor, ModelSpec model, WalkSpec walk, EngineOptions options);
  ~Engine() override;

  // The plan that an engine would follow, without allocating anything.
  static Plan plan_for(gpu::Device& device, const ModelSpec& model, const WalkSpec& walk,
                       const EngineOptions& options);

  // Where everything lies in a state file; waiting gradients too where there is a disk tier.
  static StateLayout state_layout(const ModelSpec& model, const WalkSpec& walk, const EngineOptions& options);

  // What a lease of the block offers, with addresses that must not be used: for trainers that measure what
  // their ops need before there is a plan.
  static PreparedBlock shape_of(gpu::Device& device, const ModelSpec& model, BlockId block,
                                DType compute_dtype);

  const Plan& plan() const { return plan_; }
  TensorStore& store() { return *store_; }
  const EngineOptions& options() const { return options_; }
  gpu::Device& device() { return device_; }
  gpu::Stream& compute() { return *compute_; }
  // Submits to compute() with the engine's workspace.
  void submit(gpu::Op op);
  // Device memory of a part of the plan.
  std::byte* device_part(std::string_view name) const;
  const Tape& tape() const { return *tape_; }

  // A new walk: leases follow in the order of the walk's accesses.
  void begin_walk();
  // The walk's next access, which must be `block`. Prepares the weights on compute(); blocks at most until
  // their copy is enqueued.
  [[nodiscard]] Lease acquire(BlockId block);

  // Rows of a tensor, straight from the host tier (after their last update), in the compute dtype, contiguous
  // at `rows_out`. Ops submitted to compute() after this see them.
  void fetch_rows(TensorId tensor, std::vector<int32_t> rows, std::byte* rows_out);
  // Small data of the trainer's own. `host` must stay unchanged until the ops that use it are done.
  void upload(std::byte* device, const void* host, size_t size_bytes);
  // What compute() has made so far, losses, to the host; valid after the event.
  gpu::Event download(void* host, const std::byte* device, size_t size_bytes);

  // At most WalkSpec::concurrent_gradients may be held at a time.
  [[nodiscard]] GradientLease gradients(BlockId block);
  // The gradient is complete: shards are summed, it leaves for the host and counts in the norm.
  // `rows_follow`: the rest comes by offer_rows.
  void offer(GradientLease gradients, bool rows_follow = false);
  // Gradient rows (rows.size(), cols) fp32 in device memory, rows ascending; completes the tensor. One tensor
  // a walk.
  void offer_rows(TensorId tensor, std::vector<int32_t> rows, const std::byte* gradients);
  // A gradient from outside, in host memory, laid out as the block's logical index (BlockLayout; what its
  // padding holds does not matter), copied at once.
  void offer_from_host(BlockId block, cpu_optim::FloatView gradient);

  // The walk is at its end and all gradients have been offered: AdamW runs under what follows, blocks in the
  // given order.
  void begin_update(double learning_rate, std::span<const BlockId> order);
  // Rows of the tensor's gradient of the last walk as they wait for (or went into) the update, before
  // clipping, as fp32. The walk's gradients must have arrived (update_report).
  void read_gradient(TensorId tensor, int64_t row_begin, int64_t row_count, float* rows) const;
  // The state that the last begin_update leaves becomes a generation, in the background. Of the facts,
  // applied_step is filled in. One that fails does not end the training.
  PendingSave save(GenerationFacts facts);
  // Takes up the generation that the state file has, in place of weights: before the first walk.
  void restore();
  // The state file of an engine that was made without: generations can be saved from here on.
  void attach(StateFile& file, const IoQueueFactory& make_queue);
  // Waits for the gradient norm of the last begin_update.
  UpdateReport update_report();
  // Waits until device, copies and updates are done; throws what they met.
  void wait();
  // xxh3 of all states. Waits first.
  uint64_t state_hash();

  // Seconds that the trainer's thread waited in calls of this engine, by the lane that it waited for. The
  // last wait of a step is for the whole chain of its gradients, and is owed to each lane in turn.
  struct Waited {
    double compute = 0;
    double copy_in = 0;
    double copy_out = 0;
    double disk = 0;       // reads of what is to be copied in
    double optimizer = 0;  // the norm, and updates (their transfers included) of what is to be copied in
  };
  struct Counters {
    double acquire_blocked_seconds = 0;
    Waited waited;
    size_t copied_in_bytes = 0;
    size_t copied_out_bytes = 0;
  };
  Counters counters() const;
  // Calls of begin_update.
  int64_t begun_updates() const { return begun_updates_; }
  int64_t applied_steps() const { return optimizer_ ? optimizer_->applied_steps() : 0; }

 private:
  static void set_label(std::string_view verb, std::string_view subject = {});
  void release(int access, gpu::Event last_use) override;
  std::byte* slot_memory(const PlannedAccess& access) const;
  std::optional<gpu::Event>& slot_free(int slot);
  int slot_id(const PlannedAccess& access) const;
  void prepare(BlockId block, const PreparedBlock& prepared, std::byte* landed);
  void wait_for_copy(const Ticket& ticket);
  gpu::Task gather_task(TensorId tensor, std::vector<int32_t> rows, DiskBegin& disk_begin);
  void gather_from_disk(const TensorStore::Place& place, int slot, StateWindow& window, std::span<float> row,
                        std::byte* out) const;
  void wait_until_writable(BlockId block);

  gpu::Device& device_;
  Executor& executor_;
  const EngineOptions options_;
  const ModelSpec model_;
  const WalkSpec walk_;
  const Plan plan_;
  const std::vector<std::string> layer_names_;  // numbers; lanes name their work by them to their end
  TierBudget device_budget_;
  TierBudget host_budget_;
  std::unique_ptr<IoQueue> queue_;      // of the trainer's thread
  std::unique_ptr<IoQueue> row_queue_;  // of the mover's lane
  std::unique_ptr<TensorStore> store_;
  Reservation device_reservation_;
  std::unique_ptr<gpu::DeviceMemory> device_memory_;
  std::unique_ptr<HostArena> row_staging_;
  std::unique_ptr<HostArena> staging_;
  std::unique_ptr<HostArena> row_gradients_;
  std::unique_ptr<Tape> tape_;
  std::unique_ptr<gpu::Stream> compute_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<DiskReader> reader_;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<Prefetcher> prefetcher_;
  std::unique_ptr<HostArena> input_store_;
  std::unique_ptr<InputOffload> input_offload_;  // where layer inputs leave the device

  std::vector<std::optional<gpu::Event>> slot_free_;  // ring slots, then kept slots
  std::vector<int> lease_counts_;                     // of the same slots, now
  SlotRing gradient_ring_;
  SlotRing gradient_copy_ring_;
  int next_gradient_slot_ = 0;
  std::optional<gpu::Event> row_staging_free_;
  int64_t walk_number_ = 0;
  int64_t begun_updates_ = 0;
  int next_access_ = 0;
  size_t copied_out_bytes_ = 0;
  Waited report_waited_;
};

}  // namespace sluice
