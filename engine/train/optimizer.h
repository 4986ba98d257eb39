#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpu_optim/adamw.h"
#include "engine/memory/host_arena.h"
#include "engine/memory/slot_ring.h"
#include "engine/memory/tensor_store.h"
#include "engine/schedule/plan.h"
#include "engine/train/pending_save.h"
#include "engine/train/state_stream.h"
#include "gpu/device.h"

namespace sluice {

struct OptimizerOptions {
  // By TensorSpec::group. The learning rates here are factors of the step's learning rate.
  std::vector<cpu_optim::AdamOptions> groups;
  uint64_t seed = 0;             // of stochastic rounding, in formats that round so
  double max_gradient_norm = 0;  // 0: no clipping; a norm that is not finite skips the step all the same
};

struct UpdateReport {
  double gradient_norm = 0;  // over all gradients of the step, before clipping
  bool skipped = false;      // the norm was not finite: every byte of state is as it was
};

// Gradients that have left the device, their norm, and AdamW over the states in the host tier. Works on a
// lane of its own in the order of the calls: sums of squares as gradients arrive, then, once all are there,
// the clip coefficient and the updates block by block, under whatever the device does next. Called by the
// trainer's thread.
//
// A gradient waits in the host tier in the waiting dtype of its block. The norm is taken over those values,
// per chunk of 1 MiB of the block's logical index, chunks in a fixed tree: so it does not depend on when or
// where they arrived.
//
// Of blocks that live on disk (TensorStore::home) the lane streams states and gradients through a few slots
// of the host tier, and it writes generations: the states in the host tier join those that each update wrote.
class Optimizer {
 public:
  // `waiting_dtypes` by block: fp32 or bf16, of the gradient. `make_queue` may be empty where the store has
  // no file.
  Optimizer(TensorStore& store, gpu::Device& device, Executor& executor, TierBudget& host_budget,
            std::vector<DType> waiting_dtypes, OptimizerOptions options, const Plan& plan = {},
            const IoQueueFactory& make_queue = {});
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Where a block's gradient is to be put, laid out as its logical index, and after which event.
  struct GradientTarget {
    std::byte* data = nullptr;
    std::optional<gpu::Event> free;
  };
  GradientTarget gradient_target(BlockId block);
  // Where a gradient in the host tier waits, and its dtype. May be written once the block's last update is
  // done (TensorStore::version_ready).
  std::byte* waiting_gradient(BlockId block) const;
  DType waiting_dtype(BlockId block) const { return waiting_dtypes_.at(static_cast<size_t>(block.value)); }
  size_t waiting_bytes(BlockId block) const;

  // The whole gradient of the block is in place after `arrived`.
  void offer(BlockId block, const gpu::Event& arrived);
  // The gradient is in host memory already, of the trainer's own: fp32 or bf16, as long as the block's
  // logical index. Copied (rounded to nearest even where the waiting dtype is bf16; padding becomes 0) before
  // the call returns. The block's last update must be done.
  void offer_copy(BlockId block, cpu_optim::FloatView gradient);
  // A part of it is: rows of `tensor` that live in this block follow by offer_rows. Needs a waiting dtype of
  // fp32.
  void offer_before_rows(BlockId block, const gpu::Event& arrived);
  // rows[i] of `tensor` += gradients[i] (cols() each, fp32), for ascending rows; then every block of the
  // tensor is complete, rounded to `gradient_dtype` (but kept as fp32), and counted in the norm. Blocks
  // without offer_before_rows start at zero. `gradients` must stay valid until the next report.
  void offer_rows(TensorId tensor, std::vector<int32_t> rows, const float* gradients,
                  const gpu::Event& arrived, DType gradient_dtype);

  // Updates from here on write weights that are in use until `event`.
  void update_after(const gpu::Event& event) { lane_->wait(event); }
  // Every gradient of the step has been offered; blocks without one keep their state. Updates run in the
  // order given, which must name each offered block once; TensorStore::version_ready is set for each.
  void begin_update(double learning_rate, std::span<const BlockId> order);
  // What the last begin_update leaves becomes a generation, in the background. facts.applied_step is filled
  // in. A save that fails stops nothing, except where nobody knows which generation would be found: then the
  // lane ends there, so that both stay whole. The next save or begin_update waits for its end, for which
  // copies on disk may be written depends on how it went.
  PendingSave save(GenerationFacts facts);
  // The store has been given a file.
  void attach(const IoQueueFactory& make_queue);
  // Continues from the store's committed generation, which has been loaded.
  void restore(int64_t applied_steps);

  // Waits for the norm of the last begin_update (not for its updates). Throws what an earlier update met,
  // with its step and block.
  UpdateReport report();
  // Waits until all updates are done; throws what they met.
  void wait();

  int64_t applied_steps() const;

  static size_t waiting_arena_bytes(const TensorStore& store, const std::vector<DType>& dtypes);

 private:
  struct StepState;  // written on the lane
  void count_in_norm(BlockId block);
  void clear_gradient(BlockId block);
  void clear_padding(BlockId block);
  void decide(double learning_rate);
  std::vector<StreamedBlock> begin_streaming(std::span<const BlockId> order);
  void read_ahead(std::vector<StreamedBlock> updated);
  void update_block(BlockId block);
  bool streams(BlockId block) const;
  StreamedBlock streamed(BlockId block);
  struct Save;
  void save_block(BlockId block, Save& save);
  void settle_save();
  // A part of the update; its errors say of which step, and of which block where only one can be meant.
  void run_update(std::optional<BlockId> block, const std::function<void()>& task);
  // Of the elements from `begin` on of the block's logical index.
  void update_range(BlockId block, int64_t begin, const cpu_optim::StateSpan& state,
                    const cpu_optim::FloatView& gradient);
  std::byte* gradient_memory(BlockId block) const;
  std::span<double> chunk_sums(BlockId block);
  cpu_optim::FloatView gradient(BlockId block) const;

  TensorStore& store_;
  Executor& executor_;
  const std::vector<DType> waiting_dtypes_;
  const OptimizerOptions options_;
  std::vector<size_t> offsets_;
  std::vector<size_t> chunk_begin_;
  HostArena arena_;
  HostArena update_arena_;
  HostArena gradient_arena_;
  SlotRing gradient_ring_;
  int next_gradient_slot_ = 0;
  std::vector<int> gradient_slots_;       // this step, by block on disk
  std::vector<uint64_t> saved_versions_;  // by block; what is in the host tier and on disk alike
  std::vector<bool> saved_;
  std::unique_ptr<Save> save_;  // the last, whose outcome has not been looked at
  std::unique_ptr<StateStream> stream_;
  std::vector<bool> offered_;      // this step, by block; the trainer's thread
  std::vector<bool> before_rows_;  // rows are still to come
  std::unique_ptr<StepState> step_;
  std::optional<gpu::Event> decided_;
  std::unique_ptr<gpu::Stream> lane_;  // last: its thread uses the rest
};

}  // namespace sluice
