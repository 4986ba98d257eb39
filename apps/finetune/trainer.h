#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/finetune/data/micro_batch.h"
#include "apps/finetune/model/decoder.h"
#include "apps/finetune/model/decoder_spec.h"
#include "apps/finetune/step_inputs.h"
#include "apps/finetune/walk_memory.h"
#include "engine/api/engine.h"

namespace sluice::finetune {

struct TrainerOptions {
  DType compute_dtype = DType::f32;
  BatchLimits limits;
  int prefetch_distance = 1;
  int gradient_shards = 1;
  Recompute recompute = Recompute::automatic;
  std::optional<size_t> device_limit_bytes;
  std::optional<size_t> host_limit_bytes;
  bool disk = false;  // what the host limit leaves no room for lives on disk
  Spill spill = Spill::automatic;
  LayerInputs layer_inputs = LayerInputs::automatic;
  StateFile* state_file = nullptr;  // of Trainer::state_layout; outlives the trainer. Null: nothing on disk
  IoQueueFactory make_queue;
  bool can_save = false;             // see EngineOptions
  std::vector<PlanPart> host_parts;  // what the process holds besides, shown in the plan
  FreezeRule freeze;
  cpu_optim::StateFormat state_format = cpu_optim::StateFormat::split;
  std::optional<DType> gradient_dtype = {};  // see engine's EngineOptions
  uint64_t seed = 0;                         // of stochastic rounding
  cpu_optim::AdamOptions adam;               // learning_rate is ignored: each step brings its own
  double max_gradient_norm = 1;

  DType gradient_dtype_or_default() const { return gradient_dtype.value_or(compute_dtype); }
};

// The walk of a training step, and the plan that it follows.
struct PlannedWalk {
  HeadSchedule head = HeadSchedule::twice;
  WalkSpec walk;
  Plan plan;
  std::vector<BlockNeeds> blocks;
};

struct StepReport {
  double loss = 0;           // sum of weighted -log p over the window / its label weight
  double gradient_norm = 0;  // before clipping
  bool skipped = false;      // the norm was not finite: nothing was changed
  int64_t token_count = 0;   // without padding
  int64_t label_count = 0;
  Engine::Waited waited;  // of this thread, by lane; with the wait for the losses
  double acquire_blocked_seconds = 0;
  std::string bad_row;  // the first row whose loss is not finite; then no update was begun
};

// Full fine-tuning of a decoder: one layer-major optimizer step after another, each update running under the
// next forward. Owned and called by one thread.
class Trainer {
 public:
  // Allocates everything. Weights are zero until engine().store() is written.
  Trainer(gpu::Device& device, Executor& executor, const ModelConfig& config, TrainerOptions options);
  ~Trainer();

  static Plan plan(gpu::Device& device, const ModelConfig& config, const TrainerOptions& options);
  static PlannedWalk plan_walk(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
                               const TrainerOptions& options);
  // Where everything would lie in a state file.
  static StateLayout state_layout(const ModelConfig& config, const TrainerOptions& options);
  HeadSchedule head_schedule() const { return head_schedule_; }

  // One optimizer step over a window of at most limits.micro_batch_count micro-batches. `learning_rate` is
  // absolute.
  StepReport step(std::span<const MicroBatch> batches, double learning_rate);

  Engine& engine() { return *engine_; }
  const DecoderSpec& spec() const { return spec_; }
  // Final-norm output of a micro-batch of the last step, (T, C), in device memory: for tests.
  gpu::View hidden(int micro_batch, int64_t tokens) const { return head(micro_batch, tokens).hidden; }
  // Called with the logits of each piece and chunk of a step's forward pass: for tests.
  using LogitObserver =
      std::function<void(int micro_batch, int64_t row_begin, const Decoder::HeadPiece&, const gpu::View&)>;
  void observe_logits(LogitObserver observer) { observer_ = std::move(observer); }
  // Called when all of a step's forward pass through the layers, and when all of it, has been submitted to
  // the device, with the event of its end: for benches.
  using PhaseObserver = std::function<void(Phase ended, const gpu::Event& end)>;
  void observe_phases(PhaseObserver observer) { phase_observer_ = std::move(observer); }

 private:
  void begin_step(const StepInputs& inputs);
  void embed(const StepInputs& inputs);
  void forward(const StepInputs& inputs);
  void turnaround(const StepInputs& inputs);
  void head_forward(const StepInputs& inputs);
  void head_backward(const StepInputs& inputs);
  void head_once(const StepInputs& inputs);
  void take_losses(const StepInputs& inputs);
  void observe(int micro_batch, int64_t row_begin, const Decoder::HeadPiece& piece,
               const gpu::View& logits) const;
  void backward(const StepInputs& inputs);
  void embedding_backward(const StepInputs& inputs);
  double read_losses(std::span<const MicroBatch> batches, StepReport& report);

  gpu::View activation(std::byte* data, int64_t tokens) const;
  gpu::View boundary(int layer, int micro_batch, int64_t tokens) const;
  SavedLayer saved(int layer, int micro_batch, int64_t tokens) const;
  gpu::View output_gradient(int micro_batch, int64_t tokens) const;
  gpu::View embedding_gradient(int shard, int64_t rows) const;
  HeadViews head(int micro_batch, int64_t tokens) const;
  Decoder::HeadPiece head_piece(size_t piece) const;
  const std::string& head_name(size_t piece) const;
  BatchViews views(const StepInputs& inputs, int micro_batch) const;
  int shard(const StepInputs& inputs, int micro_batch) const;
  void upload_rope_table();

  const TrainerOptions options_;
  Decoder decoder_;
  DecoderSpec spec_;
  HeadSchedule head_schedule_ = HeadSchedule::twice;
  // By micro-batch, one a token. Outlives the engine: after an error its copies may still be on the way here.
  std::vector<std::vector<float>> losses_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scratch> scratch_;
  Workbench bench_;
  RopeViews rope_;
  LogitObserver observer_;
  PhaseObserver phase_observer_;
  std::optional<gpu::Event> losses_ready_;
};

}  // namespace sluice::finetune
