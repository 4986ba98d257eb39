#include "tests/support/serial_trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "apps/finetune/model/rope_table.h"
#include "cpu_optim/convert.h"
#include "cpu_optim/norm.h"
#include "engine/api/engine_plan.h"
#include "gpu/host/host_ops.h"

namespace sluice::test {

using finetune::BatchViews;
using finetune::Decoder;
using finetune::HeadViews;
using finetune::MicroBatch;
using finetune::SavedLayer;
using finetune::Scratch;
using finetune::StepInputs;
using finetune::StepReport;

namespace {

constexpr size_t kScratchBytes = size_t{64} << 20;  // pages that nobody touches cost nothing

}  // namespace

struct SerialTrainer::State {
  State(const ModelConfig& config, const finetune::TrainerOptions& trainer_options)
      : options(trainer_options),
        decoder(config, trainer_options.compute_dtype),
        spec(finetune::make_decoder_spec(config, trainer_options.freeze, trainer_options.state_format)),
        device(gpu::make_host_device({.executor = executor, .make_ops = gpu::make_host_ops})),
        store(spec.model, *device, budget, true),
        stream(device->make_stream(gpu::StreamKind::compute, "serial")),
        scratch_memory(device->allocate(kScratchBytes)),
        scratch(scratch_memory->data(), kScratchBytes) {}

  void submit(const gpu::Op& op) {
    const size_t bytes = device->ops().workspace_bytes(op);
    if (workspace == nullptr || workspace->size_bytes() < bytes) workspace = device->allocate(bytes);
    device->ops().submit(*stream, op, {workspace->data(), bytes});
    stream->record().wait();
  }

  const finetune::TrainerOptions options;
  const Decoder decoder;
  const finetune::DecoderSpec spec;
  SerialExecutor executor;
  std::unique_ptr<gpu::HostDevice> device;
  TierBudget budget{Tier::host};
  TensorStore store;
  std::unique_ptr<gpu::Stream> stream;
  std::unique_ptr<gpu::DeviceMemory> scratch_memory;
  Scratch scratch;
  std::unique_ptr<gpu::DeviceMemory> workspace;
  int64_t applied_steps = 0;
};

// One step, and the device memory that it takes.
class SerialTrainer::Step {
 public:
  Step(State& state, std::span<const MicroBatch> batches)
      : state_(state),
        decoder_(state.decoder),
        spec_(state.spec),
        dtype_(state.decoder.dtype()),
        shard_count_(state.options.gradient_shards),
        inputs_(batches, state.decoder.config().vocab_size),
        bench_{.submit = [&state](const gpu::Op& op) { state.submit(op); }, .scratch = &state.scratch} {}

  StepReport run(double learning_rate) {
    uploaded_ = copy(inputs_.upload().data(), inputs_.upload().size() * 4);
    make_rope();
    make_table();
    for (int block = 0; block < state_.store.block_count(); ++block) {
      blocks_.push_back(prepare(BlockId{block}));
      gradients_.push_back(make_gradients(BlockId{block}));
    }
    for (int shard = 0; shard < shard_count_; ++shard)
      row_gradients_.push_back(zeros(row_count(), decoder_.config().hidden_size));
    StepReport report{.token_count = inputs_.token_count(), .label_count = inputs_.label_count()};
    report.loss = run_micro_batches() / inputs_.label_weight();
    update(learning_rate, report);
    return report;
  }

 private:
  std::byte* take(size_t size_bytes) {
    memory_.push_back(state_.device->allocate(std::max(size_bytes, size_t{1})));
    return memory_.back()->data();
  }
  gpu::View take(DType dtype, int64_t rows, int64_t cols) {
    return {take(static_cast<size_t>(rows * cols) * size_bytes(dtype)), dtype, rows, cols};
  }
  gpu::View zeros(int64_t rows, int64_t cols) {
    const gpu::View view = take(DType::f32, rows, cols);
    if (!view.empty()) state_.submit(gpu::Fill{view, 0});
    return view;
  }
  std::byte* copy(const void* host, size_t bytes) {
    std::byte* const device = take(bytes);
    state_.device->copy_to_device(*state_.stream, device, host, bytes);
    state_.stream->record().wait();
    return device;
  }
  int64_t row_count() const { return static_cast<int64_t>(inputs_.rows().size()); }

  void make_rope() {
    const int64_t head_dim = decoder_.config().head_dim;
    const finetune::RopeTable table =
        finetune::make_rope_table(decoder_.config().rope, head_dim, state_.options.limits.tokens_per_row);
    const auto view = [&](const std::vector<float>& values) {
      return gpu::View(copy(values.data(), values.size() * 4), DType::f32, table.positions, table.half_dim);
    };
    rope_ = {view(table.cos), view(table.sin)};
  }

  // The embedding rows of the step's tokens in the compute dtype: in bf16 a trained weight is its high half.
  void make_table() {
    const int64_t cols = decoder_.config().hidden_size;
    table_ = take(dtype_, row_count(), cols);
    for (int64_t row = 0; row < row_count(); ++row) {
      const int32_t token = inputs_.rows()[static_cast<size_t>(row)];
      std::vector<float> values(static_cast<size_t>(cols));
      state_.store.read_rows(spec_.embedding, token, 1, values.data());
      if (dtype_ == DType::f32) {
        std::ranges::copy(values, table_.row<float>(row));
        continue;
      }
      for (int64_t i = 0; i < cols; ++i) {
        const float value = values[static_cast<size_t>(i)];
        table_.row<BFloat16>(row)[i] =
            spec_.model.tensor(spec_.embedding).trainable ? split(value).high : to_bfloat16(value);
      }
    }
  }

  PreparedBlock prepare(BlockId id) {
    const BlockLayout& layout = state_.store.layout(id);
    const BlockState host = state_.store.state(id);
    std::byte* const low = copy(host.low.data(), host.low.size_bytes());
    std::byte* const high = copy(host.high.data(), host.high.size_bytes());
    std::byte* const frozen = copy(host.frozen.data(), host.frozen.size_bytes());
    const auto source = [&](int index) -> gpu::LinearPack::Source {
      const BlockLayout::Part& part = layout.part(index);
      if (!part.trainable)
        return {gpu::View(frozen + part.frozen_offset, part.storage_dtype, part.rows, part.cols), {}};
      const cpu_optim::StateFormat format = spec_.model.state_format;
      if (dtype_ == DType::f32 && format == cpu_optim::StateFormat::fp32)
        return {gpu::View(low + part.span_begin * 4, DType::f32, part.rows, part.cols), {}};
      gpu::LinearPack::Source halves{gpu::View(high + part.span_begin * 2, DType::bf16, part.rows, part.cols),
                                     {}};
      if (dtype_ == DType::f32 && !host.low.empty())
        halves.low = gpu::View(low + part.span_begin * 2, DType::i16, part.rows, part.cols);
      return halves;
    };
    const PreparedBlock shape = Engine::shape_of(*state_.device, spec_.model, id, dtype_);
    PreparedBlock block;
    for (int part = 0; part < static_cast<int>(layout.parts().size()); ++part) {
      gpu::View& plain = block.plain_parts.emplace_back();
      if (in_linear(spec_.model.block(id), part)) continue;
      plain = take(dtype_, layout.part(part).rows, layout.part(part).cols);
      const gpu::LinearPack::Source halves = source(part);
      if (halves.low.data != nullptr) {
        state_.submit(gpu::JoinSplit{halves.high, halves.low, plain});
      } else {
        state_.submit(gpu::Cast{halves.high, plain});
      }
    }
    for (size_t linear = 0; linear < shape.linears.size(); ++linear) {
      block.linears.push_back(shape.linears[linear]);
      for (gpu::PackedWeight* packed : {&block.linears.back().forward, &block.linears.back().backward}) {
        packed->data = take(packed->size_bytes);
        gpu::LinearPack pack{.sources = {}, .packed = *packed};
        for (const int part : spec_.model.block(id).linears[linear].parts)
          pack.sources.push_back(source(part));
        state_.submit(pack);
      }
    }
    return block;
  }

  // By shard, laid out as the block's logical index.
  GradientLease make_gradients(BlockId id) {
    const BlockLayout& layout = state_.store.layout(id);
    std::vector<std::vector<gpu::View>> views;
    std::vector<gpu::View>& sums = sums_.emplace_back();
    for (int shard = 0; shard < shard_count_; ++shard) {
      sums.push_back(zeros(1, layout.logical_elements()));
      std::vector<gpu::View>& parts = views.emplace_back();
      for (const BlockLayout::Part& part : layout.parts()) {
        gpu::View& view = parts.emplace_back();
        if (part.trainable)
          view = gpu::View(sums.back().data + part.span_begin * 4, DType::f32, part.rows, part.cols);
      }
    }
    return GradientLease(id, 0, std::move(views));
  }

  PreparedBlock& block(BlockId id) { return blocks_[static_cast<size_t>(id.value)]; }
  GradientLease& gradients(BlockId id) { return gradients_[static_cast<size_t>(id.value)]; }

  // The sum of the losses: a left fold within a shard, a tree across shards.
  double run_micro_batches() {
    const int count = inputs_.micro_batch_count();
    std::vector<double> shard_losses(static_cast<size_t>(shard_count_));
    for (int shard = 0; shard < shard_count_; ++shard) {
      for (int batch = 0; batch < count; ++batch) {
        if (shard_of(batch, count, shard_count_) == shard)
          shard_losses[static_cast<size_t>(shard)] += run_micro_batch(batch, shard);
      }
    }
    for_each_tree_step(shard_count_, [&](int into, int from) {
      shard_losses[static_cast<size_t>(into)] += shard_losses[static_cast<size_t>(from)];
      for (std::vector<gpu::View>& sums : sums_) add(sums, into, from);
      add(row_gradients_, into, from);
    });
    return shard_losses[0];
  }

  void add(std::vector<gpu::View>& shards, int into, int from) {
    const gpu::View& sum = shards[static_cast<size_t>(into)];
    if (!sum.empty()) state_.submit(gpu::Add{sum, shards[static_cast<size_t>(from)], sum});
  }

  double run_micro_batch(int index, int shard) {
    const BatchViews batch = inputs_.views(index, uploaded_);
    const int64_t tokens = batch.tokens();
    const int64_t hidden = decoder_.config().hidden_size;
    std::vector<gpu::View> boundaries{take(dtype_, tokens, hidden)};
    std::vector<SavedLayer> saved;
    state_.submit(gpu::GatherRows{table_, batch.index, boundaries[0]});
    for (const BlockId layer : spec_.layers) {
      const gpu::View x = boundaries.back();
      boundaries.push_back(take(dtype_, tokens, hidden));
      saved.push_back(carve<SavedLayer>([&](Scratch& m) { return decoder_.carve_saved(m, tokens); }));
      decoder_.forward_layer(block(layer), rope_, batch, x, boundaries.back(), saved.back(), nullptr, bench_);
    }
    const gpu::View d_x = take(dtype_, tokens, hidden);
    const double loss = run_head(batch, shard, boundaries.back(), d_x);
    for (size_t layer = spec_.layers.size(); layer-- > 0;) {
      decoder_.backward_layer(block(spec_.layers[layer]), gradients(spec_.layers[layer]), shard, rope_, batch,
                              boundaries[layer], d_x, saved[layer], bench_);
    }
    state_.submit(gpu::EmbeddingBackward{.dy = d_x,
                                         .order = batch.order,
                                         .begin = batch.begin,
                                         .d_rows = row_gradients_[static_cast<size_t>(shard)],
                                         .accumulate = rows_written_[static_cast<size_t>(shard)]});
    rows_written_[static_cast<size_t>(shard)] = true;
    return loss;
  }

  template <class Views, class Carve>
  Views carve(const Carve& carve_from) {
    const size_t bytes = finetune::measure_scratch([&](Scratch& memory) { (void)carve_from(memory); });
    Scratch memory(take(bytes), bytes);
    return carve_from(memory);
  }

  Decoder::HeadPiece piece(size_t index) const {
    const BlockPart& part = spec_.model.block(spec_.head_pieces[index]).parts[0];
    return {.begin = part.row_begin, .rows = part.row_end - part.row_begin, .first = index == 0};
  }

  // The loss of the micro-batch, and the gradient at the last layer's output.
  double run_head(const BatchViews& batch, int shard, const gpu::View& x, const gpu::View& d_x) {
    const float scale = static_cast<float>(1.0 / inputs_.label_weight());
    const HeadViews head =
        carve<HeadViews>([&](Scratch& m) { return finetune::carve_head(m, decoder_, batch.tokens(), true); });
    decoder_.forward_final_norm(block(spec_.final_norm), x, head.hidden, head.rstd, bench_);
    for (size_t i = 0; i < spec_.head_pieces.size(); ++i)
      decoder_.forward_head(block(spec_.head_pieces[i]), piece(i), batch, head.hidden, head.sums, bench_);
    state_.submit(gpu::TokenLoss{.max = head.sums.max,
                                 .sum = head.sums.sum,
                                 .target_logit = head.sums.target_logit,
                                 .targets = batch.targets,
                                 .weights = batch.weights,
                                 .loss = head.loss});
    for (size_t i = 0; i < spec_.head_pieces.size(); ++i) {
      decoder_.backward_head(block(spec_.head_pieces[i]), gradients(spec_.head_pieces[i]), shard, piece(i),
                             batch, head.hidden, head.sums, scale, head.d_hidden, bench_);
    }
    decoder_.backward_final_norm(block(spec_.final_norm), gradients(spec_.final_norm), shard, x, head.rstd,
                                 head.d_hidden, d_x, bench_);
    double loss = 0;
    for (int64_t token = 0; token < batch.tokens(); ++token)
      loss += static_cast<double>(*head.loss.row<float>(token));
    return loss;
  }

  // The block's gradient as the optimizer is to see it.
  std::vector<float> gradient(BlockId id) {
    const BlockLayout& layout = state_.store.layout(id);
    std::vector<float> values(static_cast<size_t>(layout.logical_elements()));
    if (values.empty()) return values;  // all of the block is frozen
    std::memcpy(values.data(), sums_[static_cast<size_t>(id.value)][0].data, values.size() * 4);
    for (const BlockLayout::Part& part : layout.parts()) {
      if (part.tensor != spec_.embedding || !part.trainable) continue;
      for (int64_t row = 0; row < row_count(); ++row) {
        const int64_t place = inputs_.rows()[static_cast<size_t>(row)] - part.row_begin;
        if (place < 0 || place >= part.rows) continue;
        for (int64_t i = 0; i < part.cols; ++i) {
          values[static_cast<size_t>(part.span_begin + place * part.cols + i)] +=
              row_gradients_[0].row<float>(row)[i];
        }
      }
    }
    if (state_.options.gradient_dtype_or_default() == DType::bf16) {
      for (float& value : values) value = to_float(to_bfloat16(value));
    }
    return values;
  }

  void update(double learning_rate, StepReport& report) {
    std::vector<std::vector<float>> gradients;
    std::vector<double> chunk_sums;
    for (int id = 0; id < state_.store.block_count(); ++id) {
      gradients.push_back(gradient(BlockId{id}));
      const std::span<const float> all(gradients.back());
      for (size_t begin = 0; begin < all.size(); begin += cpu_optim::kNormChunk) {
        chunk_sums.push_back(cpu_optim::sum_of_squares(
            all.subspan(begin, std::min<size_t>(cpu_optim::kNormChunk, all.size() - begin))));
      }
    }
    report.gradient_norm = std::sqrt(cpu_optim::tree_sum(chunk_sums));
    report.skipped = !std::isfinite(report.gradient_norm);
    if (report.skipped) return;
    ++state_.applied_steps;
    float scale = 1;
    if (state_.options.max_gradient_norm > 0)
      scale = *cpu_optim::clip_coefficient(report.gradient_norm, state_.options.max_gradient_norm);
    for (int id = 0; id < state_.store.block_count(); ++id)
      update_block(BlockId{id}, gradients[static_cast<size_t>(id)], learning_rate, scale);
  }

  void update_block(BlockId id, const std::vector<float>& gradient, double learning_rate, float scale) {
    const cpu_optim::StateSpan whole = state_.store.states(id);
    for (const BlockLayout::Part& part : state_.store.layout(id).parts()) {
      if (!part.trainable) continue;
      cpu_optim::AdamOptions adam = state_.options.adam;
      adam.learning_rate = learning_rate;
      if (part.rows == 1) adam.weight_decay = 0;  // norms
      cpu_optim::update(whole.subrange(part.span_begin, part.element_count()),
                        std::span(gradient).subspan(static_cast<size_t>(part.span_begin),
                                                    static_cast<size_t>(part.element_count())),
                        cpu_optim::make_adam_step(adam, state_.applied_steps, scale, state_.options.seed));
    }
  }

  State& state_;
  const Decoder& decoder_;
  const finetune::DecoderSpec& spec_;
  const DType dtype_;
  const int shard_count_;
  const StepInputs inputs_;
  const finetune::Workbench bench_;
  std::vector<std::unique_ptr<gpu::DeviceMemory>> memory_;
  std::byte* uploaded_ = nullptr;
  finetune::RopeViews rope_;
  gpu::View table_;
  std::vector<PreparedBlock> blocks_;
  std::vector<GradientLease> gradients_;
  std::vector<std::vector<gpu::View>> sums_;  // by block, shard
  std::vector<gpu::View> row_gradients_;      // by shard
  std::vector<bool> rows_written_ = std::vector<bool>(static_cast<size_t>(shard_count_));
};

SerialTrainer::SerialTrainer(const ModelConfig& config, const finetune::TrainerOptions& options)
    : state_(std::make_unique<State>(config, options)) {}

SerialTrainer::~SerialTrainer() = default;

TensorStore& SerialTrainer::store() {
  return state_->store;
}

StepReport SerialTrainer::step(std::span<const MicroBatch> batches, double learning_rate) {
  return Step(*state_, batches).run(learning_rate);
}

}  // namespace sluice::test
