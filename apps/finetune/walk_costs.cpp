#include "apps/finetune/walk_costs.h"

#include <algorithm>
#include <map>

#include "apps/finetune/dry_run.h"
#include "engine/api/engine_plan.h"
#include "engine/base/math.h"

namespace sluice::finetune {
namespace {

class CostMeter {
 public:
  CostMeter(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
            const TrainerOptions& options, const BatchLimits& limits, const PlannedWalk& planned,
            const OpSeconds& seconds)
      : device_(device),
        spec_(spec),
        options_(options),
        planned_(planned),
        seconds_(seconds),
        limits_(limits),
        run_(device, spec, decoder, limits, [this](const gpu::Op& op) { count(op); }),
        waiting_dtypes_(waiting_dtypes(spec.model, planned.walk, options.gradient_dtype_or_default())),
        rows_(std::min(vocabulary(), limits.tokens * limits.micro_batch_count)) {
    const std::vector<PlannedAccess>& accesses = planned_.plan.accesses;
    for (size_t at = 0; at < accesses.size(); ++at) last_access_[accesses[at].access.block] = at;
    for (size_t piece = 0; piece < spec.head_pieces.size(); ++piece) pieces_[spec.head_pieces[piece]] = piece;
    micro_batches_ = limits.micro_batch_count;
  }

  WalkCosts measure() {
    WalkCosts costs{.input_tokens = static_cast<double>(limits_.tokens * micro_batches_),
                    .begin_seconds = micro_batches_ * cost([&] { run_.embed(rows_); }),
                    .end_seconds = embedding_seconds(),
                    .input_bytes = StepInputs::size_bytes(limits_, vocabulary()),
                    .row_bytes = row_elements() * size_bytes(options_.compute_dtype),
                    .row_disk_bytes = row_disk_bytes(),
                    .row_gradient_bytes = row_elements() * size_bytes(DType::f32),
                    .row_block_passes = row_block_passes(),
                    .row_blocks = spec_.embedding_pieces,
                    .update_order = update_order(spec_)};
    for (size_t at = 0; at < planned_.plan.accesses.size(); ++at) {
      costs.prepare_seconds.push_back(prepare_seconds(at));
      costs.access_seconds.push_back(access_seconds(at));
    }
    return costs;
  }

 private:
  void count(const gpu::Op& op) { sum_ += seconds_(op); }
  template <class Run>
  double cost(const Run& run) {
    sum_ = 0;
    run();
    return sum_;
  }
  // Of all micro-batches: the first of each shard overwrites gradients, the others add to them.
  template <class Run>
  double cost_of_all(BlockId block, const Run& run) {
    GradientLease gradients = run_.gradients(block);
    const double first = cost([&] { run(gradients); });
    const int shards = std::min(options_.gradient_shards, micro_batches_);
    if (micro_batches_ == shards) return first * shards;
    return first * shards + cost([&] { run(gradients); }) * (micro_batches_ - shards);
  }
  int64_t vocabulary() const { return spec_.model.tensor(spec_.embedding).rows; }

  size_t row_elements() const {
    return static_cast<size_t>(rows_ * spec_.model.tensor(spec_.embedding).cols);
  }

  // Optimizer::offer_rows: cleared where no head leaves its gradient there, and rounded in place.
  int row_block_passes() const {
    return (spec_.tied ? 0 : 1) + (options_.gradient_dtype_or_default() == DType::bf16 ? 2 : 0);
  }

  double embedding_seconds() {
    const double first = cost([&] { run_.embedding_backward(rows_, false); });
    return first + (micro_batches_ - 1) * cost([&] { run_.embedding_backward(rows_, true); });
  }

  // The rows come through windows, which read whole checksum blocks.
  size_t row_disk_bytes() const {
    size_t bytes = 0;
    const size_t row_blocks = static_cast<size_t>(rows_) / std::max<size_t>(spec_.embedding_pieces.size(), 1);
    for (const BlockId piece : spec_.embedding_pieces) {
      if (planned_.plan.home(piece).weights != Tier::disk) continue;
      const BlockNeeds& needs = planned_.blocks[static_cast<size_t>(piece.value)];
      const bool masters = options_.compute_dtype == DType::f32;
      const size_t fetch_bytes =
          masters ? needs.updated_weight_bytes : static_cast<size_t>(needs.element_count) * 2;
      bytes += std::min(fetch_bytes, (row_blocks + 1) * kChecksumBytes);
    }
    return bytes;
  }

  double prepare_seconds(size_t at) {
    const PlannedAccess& planned = planned_.plan.accesses[at];
    if (!planned.fetch_again) return 0;
    auto* const nowhere = reinterpret_cast<std::byte*>(kPreparedAlignment);
    const BlockId block = planned.access.block;
    const PreparedBlock prepared =
        lay_out_block(device_, spec_.model, block, options_.compute_dtype, planned.layouts, nowhere);
    return cost([&] {
      submit_preparation(BlockLayout(spec_.model, block), spec_.model.block(block), options_.compute_dtype,
                         prepared, nowhere, [this](const gpu::Op& op) { count(op); });
    });
  }

  // Engine::offer: shards are added, the sum is rounded.
  double leaving_seconds(BlockId block) {
    const int64_t elements = BlockLayout(spec_.model, block).logical_elements();
    if (elements == 0) return 0;
    const gpu::View sum(nullptr, DType::f32, 1, elements);
    return cost([&] {
      for (int shard = 1; shard < options_.gradient_shards; ++shard) count(gpu::Add{sum, sum, sum});
      const DType dtype = waiting_dtypes_[static_cast<size_t>(block.value)];
      if (dtype != DType::f32) count(gpu::Cast{sum, gpu::View(nullptr, dtype, 1, elements)});
    });
  }

  double access_seconds(size_t at) {
    const Access& access = planned_.plan.accesses[at].access;
    const double leaving = last_access_.at(access.block) == at ? leaving_seconds(access.block) : 0;
    return leaving + work_seconds(access, last_access_.at(access.block) == at);
  }

  double work_seconds(const Access& access, bool last) {
    if (access.phase == Phase::forward)
      return micro_batches_ * cost([&] { run_.forward_layer(access.block, true); });
    if (access.phase == Phase::backward) {
      const bool again = planned_.plan.recomputed.at(static_cast<size_t>(access.tape_layer));
      const double forward =
          again ? micro_batches_ * cost([&] { run_.forward_layer(access.block, true); }) : 0;
      return forward +
             cost_of_all(access.block, [&](GradientLease& sums) { run_.backward_layer(access.block, sums); });
    }
    if (access.block == spec_.final_norm) {
      if (!last) return micro_batches_ * cost([&] { run_.forward_final_norm(); });
      return cost_of_all(access.block, [&](GradientLease& sums) { run_.backward_final_norm(sums); });
    }
    return head_seconds(access.block, last);
  }

  // All pieces at once, or a piece at a time: its share of the work is the same.
  double head_seconds(BlockId block, bool last) {
    const size_t piece = pieces_.at(block);
    const double loss = micro_batches_ * cost([&] { run_.token_loss(); });
    if (planned_.head == HeadSchedule::once) {
      return cost_of_all(block, [&](GradientLease& sums) { run_.head_once(piece, sums); }) +
             (piece == 0 ? loss : 0);
    }
    if (!last) return micro_batches_ * cost([&] { run_.forward_head(piece); });
    return cost_of_all(block, [&](GradientLease& sums) { run_.backward_head(piece, sums); }) +
           (piece == 0 ? loss : 0);
  }

  gpu::Device& device_;
  const DecoderSpec& spec_;
  const TrainerOptions& options_;
  const PlannedWalk& planned_;
  const OpSeconds& seconds_;
  double sum_ = 0;
  const BatchLimits limits_;
  DryRun run_;
  const std::vector<DType> waiting_dtypes_;
  const int64_t rows_;
  int micro_batches_ = 1;
  std::map<BlockId, size_t> last_access_, pieces_;
};

}  // namespace

WalkCosts training_costs(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
                         const TrainerOptions& options, const BatchLimits& limits, const PlannedWalk& planned,
                         const OpSeconds& seconds) {
  return CostMeter(device, spec, decoder, options, limits, planned, seconds).measure();
}

Prediction predict_step(gpu::Device& device, const ModelConfig& config, const TrainerOptions& options,
                        const BatchLimits& limits, const OpSeconds& seconds, const LaneRates& rates) {
  const Decoder decoder(config, options.compute_dtype);
  const DecoderSpec spec = make_decoder_spec(config, options.freeze, options.state_format);
  const PlannedWalk planned = Trainer::plan_walk(device, spec, decoder, options);
  const WalkCosts costs = training_costs(device, spec, decoder, options, limits, planned, seconds);
  return predict(planned.plan, planned.blocks, costs, rates);
}

}  // namespace sluice::finetune
