#include "apps/finetune/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>

#include "apps/finetune/model/rope_table.h"
#include "engine/api/engine_plan.h"
#include "engine/base/math.h"
#include "engine/base/trace.h"

namespace sluice::finetune {
namespace {

size_t activation_bytes(const Decoder& decoder, const BatchLimits& limits) {
  return static_cast<size_t>(limits.tokens * decoder.config().hidden_size) * size_bytes(decoder.dtype());
}

int64_t most_embedding_rows(const Decoder& decoder, const BatchLimits& limits) {
  return std::min(decoder.config().vocab_size, limits.tokens * limits.micro_batch_count);
}

size_t head_bytes(const Decoder& decoder, const BatchLimits& limits) {
  return measure_scratch([&](Scratch& memory) { carve_head(memory, decoder, limits.tokens, true); });
}

size_t rope_bytes(const Decoder& decoder, const BatchLimits& limits) {
  return static_cast<size_t>(limits.tokens_per_row * decoder.config().head_dim) *
         4;  // cos and sin of half the channels
}

// Rows of the kept logits are this many elements apart: a power of two would put them all into the same cache
// sets.
int64_t logit_stride(const Decoder& decoder) {
  return round_up(decoder.config().vocab_size, int64_t{16}) + 16;
}

WalkSpec training_walk(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
                       const TrainerOptions& options, HeadSchedule head) {
  const BatchLimits& limits = options.limits;
  const size_t count = static_cast<size_t>(limits.micro_batch_count);
  const size_t boundary_bytes = activation_bytes(decoder, limits);
  const size_t saved_bytes =
      measure_scratch([&](Scratch& memory) { decoder.carve_saved(memory, limits.tokens); });
  const OpNeeds needs = measure_ops(device, spec, decoder, limits, true);
  const size_t rows =
      static_cast<size_t>(most_embedding_rows(decoder, limits) * decoder.config().hidden_size);
  WalkSpec walk{.accesses = training_accesses(spec, limits.micro_batch_count, head),
                .tape = {},
                .micro_batch_count = limits.micro_batch_count,
                .fixed_parts = options.host_parts,
                .workspace_bytes = needs.workspace_bytes,
                .row_gradient_tensors = {spec.embedding},
                .max_fetched_rows = most_embedding_rows(decoder, limits),
                .max_row_cols = decoder.config().hidden_size};
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    walk.tape.push_back({"layer " + std::to_string(layer), boundary_bytes, saved_bytes});
  }
  walk.tape.push_back({"final norm", boundary_bytes, 0});
  walk.fixed_parts.insert(
      walk.fixed_parts.end(),
      {device_part(walk_part::kInputs, StepInputs::size_bytes(limits, decoder.config().vocab_size)),
       device_part(walk_part::kRope, rope_bytes(decoder, limits)),
       device_part(walk_part::kEmbeddingRows, rows * size_bytes(decoder.dtype())),
       device_part(walk_part::kEmbeddingGradients, rows * 4 * static_cast<size_t>(options.gradient_shards)),
       device_part(walk_part::kOutputGradients, round_up(boundary_bytes, Scratch::kAlignment) * count),
       device_part(walk_part::kHead, head_bytes(decoder, limits) * count),
       device_part(walk_part::kScratch, needs.scratch_bytes)});
  if (head == HeadSchedule::once) {
    walk.concurrent_leases = static_cast<int>(spec.head_pieces.size());
    walk.concurrent_gradients = walk.concurrent_leases;
    const int64_t logits = std::min(kHeadRows, limits.tokens) * logit_stride(decoder);
    walk.fixed_parts.push_back(device_part(walk_part::kLogits, static_cast<size_t>(logits) * 4));
  }
  return walk;
}

EngineOptions engine_options(const TrainerOptions& options) {
  cpu_optim::AdamOptions decayed = options.adam;
  decayed.learning_rate = 1;
  cpu_optim::AdamOptions plain = decayed;
  plain.weight_decay = 0;
  return {.compute_dtype = options.compute_dtype,
          .gradient_dtype = options.gradient_dtype,
          .prefetch_distance = options.prefetch_distance,
          .gradient_shards = options.gradient_shards,
          .recompute = options.recompute,
          .device_limit_bytes = options.device_limit_bytes,
          .host_limit_bytes = options.host_limit_bytes,
          .disk = options.disk,
          .spill = options.spill,
          .layer_inputs = options.layer_inputs,
          .training = true,
          .optimizer = {.groups = {decayed, plain},
                        .seed = options.seed,
                        .max_gradient_norm = options.max_gradient_norm},
          .state_file = options.state_file,
          .make_queue = options.make_queue,
          .can_save = options.can_save};
}

// Going through the head once is the first thing to be given up for memory: it saves less work a byte than
// keeping a layer's activations. So it is taken only where all of them can be kept beside it.
PlannedWalk choose_walk(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
                        const TrainerOptions& options) {
  EngineOptions engine = engine_options(options);
  if (options.recompute != Recompute::all) {
    WalkSpec once = training_walk(device, spec, decoder, options, HeadSchedule::once);
    engine.device_limit_bytes.reset();
    Plan plan = Engine::plan_for(device, spec.model, once, engine);
    if (!options.device_limit_bytes || plan.peak_bytes(Tier::device) <= *options.device_limit_bytes) {
      return {HeadSchedule::once, std::move(once), std::move(plan), {}};
    }
    engine.device_limit_bytes = options.device_limit_bytes;
  }
  WalkSpec twice = training_walk(device, spec, decoder, options, HeadSchedule::twice);
  Plan plan = Engine::plan_for(device, spec.model, twice, engine);
  return {HeadSchedule::twice, std::move(twice), std::move(plan), {}};
}

void add_waits(const Engine::Counters& before, const Engine::Counters& after, StepReport& report) {
  report.waited.compute += after.waited.compute - before.waited.compute;
  report.waited.copy_in += after.waited.copy_in - before.waited.copy_in;
  report.waited.copy_out += after.waited.copy_out - before.waited.copy_out;
  report.waited.disk += after.waited.disk - before.waited.disk;
  report.waited.optimizer += after.waited.optimizer - before.waited.optimizer;
  report.acquire_blocked_seconds = after.acquire_blocked_seconds - before.acquire_blocked_seconds;
}

// "file:line" of the row that holds a token.
std::string row_of(const MicroBatch& batch, size_t token) {
  const auto after = std::ranges::upper_bound(batch.document_offsets, static_cast<int32_t>(token));
  const size_t row = static_cast<size_t>(after - batch.document_offsets.begin()) - 1;
  return row < batch.row_sources.size() ? batch.row_sources[row] : "row " + std::to_string(row);
}

// Where an error ends a step, device lanes run on all the same: what is being copied to them must not go
// before.
class UploadsOutliveErrors {
 public:
  explicit UploadsOutliveErrors(Engine& engine) : engine_(engine) {}
  UploadsOutliveErrors(const UploadsOutliveErrors&) = delete;
  UploadsOutliveErrors& operator=(const UploadsOutliveErrors&) = delete;
  ~UploadsOutliveErrors() {
    if (std::uncaught_exceptions() == exceptions_before_) return;
    try {
      engine_.compute().record().wait();
    } catch (const std::exception&) {
      // The error that is under way came first.
    }
  }

 private:
  Engine& engine_;
  const int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace

StateLayout Trainer::state_layout(const ModelConfig& config, const TrainerOptions& options) {
  const DecoderSpec spec = make_decoder_spec(config, options.freeze, options.state_format);
  const Decoder decoder(config, options.compute_dtype);
  WalkSpec walk;
  walk.row_gradient_tensors = {spec.embedding};
  walk.micro_batch_count = options.limits.micro_batch_count;
  const TapeLayerNeeds layer{.boundary_bytes = activation_bytes(decoder, options.limits)};
  walk.tape.assign(spec.layers.size() + 1, layer);
  return Engine::state_layout(spec.model, walk, engine_options(options));
}

Plan Trainer::plan(gpu::Device& device, const ModelConfig& config, const TrainerOptions& options) {
  const Decoder decoder(config, options.compute_dtype);
  const DecoderSpec spec = make_decoder_spec(config, options.freeze, options.state_format);
  return choose_walk(device, spec, decoder, options).plan;
}

PlannedWalk Trainer::plan_walk(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
                               const TrainerOptions& options) {
  PlannedWalk planned = choose_walk(device, spec, decoder, options);
  planned.blocks = plan_request(device, spec.model, planned.walk, engine_options(options)).blocks;
  return planned;
}

Trainer::Trainer(gpu::Device& device, Executor& executor, const ModelConfig& config, TrainerOptions options)
    : options_(std::move(options)),
      decoder_(config, options_.compute_dtype),
      spec_(make_decoder_spec(config, options_.freeze, options_.state_format)),
      losses_(static_cast<size_t>(options_.limits.micro_batch_count),
              std::vector<float>(static_cast<size_t>(options_.limits.tokens))) {
  PlannedWalk chosen = choose_walk(device, spec_, decoder_, options_);
  head_schedule_ = chosen.head;
  engine_ = std::make_unique<Engine>(device, executor, spec_.model, std::move(chosen.walk),
                                     engine_options(options_));
  scratch_ = std::make_unique<Scratch>(engine_->device_part(walk_part::kScratch),
                                       engine_->plan().part(walk_part::kScratch).size_bytes);
  bench_ = {.submit = [this](gpu::Op op) { engine_->submit(std::move(op)); }, .scratch = scratch_.get()};
  upload_rope_table();
}

Trainer::~Trainer() = default;

void Trainer::upload_rope_table() {
  const int64_t positions = options_.limits.tokens_per_row;
  const RopeTable table = make_rope_table(decoder_.config().rope, decoder_.config().head_dim, positions);
  std::byte* const begin = engine_->device_part(walk_part::kRope);
  const size_t half = table.cos.size() * 4;
  rope_ = {gpu::View(begin, DType::f32, positions, table.half_dim),
           gpu::View(begin + half, DType::f32, positions, table.half_dim)};
  engine_->upload(begin, table.cos.data(), half);
  engine_->upload(begin + half, table.sin.data(), half);
  engine_->compute().record().wait();  // the table's memory ends here
}

StepReport Trainer::step(std::span<const MicroBatch> batches, double learning_rate) {
  SLUICE_CHECK(!batches.empty() && static_cast<int>(batches.size()) <= options_.limits.micro_batch_count);
  const StepInputs inputs(batches, decoder_.config().vocab_size);
  SLUICE_CHECK(inputs.label_weight() > 0, "a window without labels");
  const UploadsOutliveErrors guard(*engine_);  // of the inputs
  const Engine::Counters before = engine_->counters();
  begin_step(inputs);
  forward(inputs);
  if (phase_observer_) phase_observer_(Phase::forward, engine_->compute().record());
  turnaround(inputs);
  StepReport report{.token_count = inputs.token_count(), .label_count = inputs.label_count()};
  backward(inputs);
  embedding_backward(inputs);
  if (phase_observer_) phase_observer_(Phase::backward, engine_->compute().record());
  report.loss = read_losses(batches, report) / inputs.label_weight();
  if (!report.bad_row.empty()) return report;
  engine_->begin_update(learning_rate, update_order(spec_));
  const UpdateReport update = engine_->update_report();
  report.gradient_norm = update.gradient_norm;
  report.skipped = update.skipped;
  add_waits(before, engine_->counters(), report);
  return report;
}

void Trainer::begin_step(const StepInputs& inputs) {
  engine_->begin_walk();
  engine_->upload(engine_->device_part(walk_part::kInputs), inputs.upload().data(),
                  inputs.upload().size() * 4);
  engine_->fetch_rows(spec_.embedding, inputs.rows(), engine_->device_part(walk_part::kEmbeddingRows));
}

void Trainer::embed(const StepInputs& inputs) {
  const WorkScope work("embed");
  const gpu::View table(engine_->device_part(walk_part::kEmbeddingRows), decoder_.dtype(),
                        static_cast<int64_t>(inputs.rows().size()), decoder_.config().hidden_size);
  for (int batch = 0; batch < inputs.micro_batch_count(); ++batch) {
    const BatchViews view = views(inputs, batch);
    engine_->submit(gpu::GatherRows{table, view.index, boundary(0, batch, view.tokens())});
  }
}

void Trainer::forward(const StepInputs& inputs) {
  embed(inputs);
  for (int layer = 0; layer < static_cast<int>(spec_.layers.size()); ++layer) {
    const Lease weights = engine_->acquire(spec_.layers[static_cast<size_t>(layer)]);
    for (int batch = 0; batch < inputs.micro_batch_count(); ++batch) {
      const BatchViews view = views(inputs, batch);
      decoder_.forward_layer(*weights, rope_, view, boundary(layer, batch, view.tokens()),
                             boundary(layer + 1, batch, view.tokens()), saved(layer, batch, view.tokens()),
                             nullptr, bench_);
    }
  }
}

// Final norm, loss, and the gradient at the last layer's output.
void Trainer::turnaround(const StepInputs& inputs) {
  const int last = static_cast<int>(spec_.layers.size());
  {
    const Lease norm = engine_->acquire(spec_.final_norm);
    for (int batch = 0; batch < inputs.micro_batch_count(); ++batch) {
      const int64_t tokens = views(inputs, batch).tokens();
      const HeadViews view = head(batch, tokens);
      decoder_.forward_final_norm(*norm, boundary(last, batch, tokens), view.hidden, view.rstd, bench_);
    }
  }
  if (head_schedule_ == HeadSchedule::once) {
    head_once(inputs);
  } else {
    head_forward(inputs);
    head_backward(inputs);
  }
  const Lease norm = engine_->acquire(spec_.final_norm);
  GradientLease gradients = engine_->gradients(spec_.final_norm);
  for (int batch = 0; batch < inputs.micro_batch_count(); ++batch) {
    const int64_t tokens = views(inputs, batch).tokens();
    const HeadViews view = head(batch, tokens);
    decoder_.backward_final_norm(*norm, gradients, shard(inputs, batch), boundary(last, batch, tokens),
                                 view.rstd, view.d_hidden, output_gradient(batch, tokens), bench_);
  }
  engine_->offer(std::move(gradients));
}

void Trainer::observe(int micro_batch, int64_t row_begin, const Decoder::HeadPiece& piece,
                      const gpu::View& logits) const {
  if (observer_) observer_(micro_batch, row_begin, piece, logits);
}

void Trainer::head_forward(const StepInputs& inputs) {
  for (size_t piece = 0; piece < spec_.head_pieces.size(); ++piece) {
    const Lease weights = engine_->acquire(spec_.head_pieces[piece]);
    for (int batch = 0; batch < inputs.micro_batch_count(); ++batch) {
      const BatchViews view = views(inputs, batch);
      const HeadViews at = head(batch, view.tokens());
      decoder_.forward_head(*weights, head_piece(piece), view, at.hidden, at.sums, bench_,
                            [&](int64_t row, const Decoder::HeadPiece& which, const gpu::View& logits) {
                              observe(batch, row, which, logits);
                            });
    }
  }
  take_losses(inputs);
}

void Trainer::take_losses(const StepInputs& inputs) {
  for (int batch = 0; batch < inputs.micro_batch_count(); ++batch) {
    const BatchViews view = views(inputs, batch);
    const HeadViews at = head(batch, view.tokens());
    engine_->submit(gpu::TokenLoss{.max = at.sums.max,
                                   .sum = at.sums.sum,
                                   .target_logit = at.sums.target_logit,
                                   .targets = view.targets,
                                   .weights = view.weights,
                                   .loss = at.loss});
    losses_ready_ =
        engine_->download(losses_[static_cast<size_t>(batch)].data(), at.loss.data, at.loss.span_bytes());
  }
}

void Trainer::head_backward(const StepInputs& inputs) {
  const float scale = static_cast<float>(1.0 / inputs.label_weight());
  for (size_t piece = 0; piece < spec_.head_pieces.size(); ++piece) {
    const Lease weights = engine_->acquire(spec_.head_pieces[piece]);
    GradientLease gradients = engine_->gradients(spec_.head_pieces[piece]);
    for (int batch = 0; batch < inputs.micro_batch_count(); ++batch) {
      const BatchViews view = views(inputs, batch);
      const HeadViews at = head(batch, view.tokens());
      decoder_.backward_head(*weights, gradients, shard(inputs, batch), head_piece(piece), view, at.hidden,
                             at.sums, scale, at.d_hidden, bench_);
    }
    engine_->offer(std::move(gradients), spec_.tied);
  }
}

// Chunk by chunk of rows through all pieces: logits and their sums, then, while they are there, their
// gradients.
void Trainer::head_once(const StepInputs& inputs) {
  const float scale = static_cast<float>(1.0 / inputs.label_weight());
  const size_t piece_count = spec_.head_pieces.size();
  std::vector<Lease> weights;
  std::vector<GradientLease> gradients;
  for (const BlockId piece : spec_.head_pieces) {
    weights.push_back(engine_->acquire(piece));
    gradients.push_back(engine_->gradients(piece));
  }
  const gpu::View kept(engine_->device_part(walk_part::kLogits), DType::f32,
                       std::min(kHeadRows, options_.limits.tokens), decoder_.config().vocab_size,
                       logit_stride(decoder_));
  const auto logits = [&](const Decoder::HeadPiece& piece, Decoder::HeadChunk chunk) {
    return kept.row_range(0, chunk.end - chunk.begin).col_range(piece.begin, piece.begin + piece.rows);
  };
  for (int batch = 0; batch < inputs.micro_batch_count(); ++batch) {
    const BatchViews view = views(inputs, batch);
    const HeadViews at = head(batch, view.tokens());
    for_each_head_chunk(view.tokens(), [&](Decoder::HeadChunk chunk) {
      for (size_t piece = 0; piece < piece_count; ++piece) {
        const Decoder::HeadPiece which = head_piece(piece);
        const WorkScope work(name(Phase::turnaround), head_name(piece));
        decoder_.forward_head_chunk(*weights[piece], which, chunk, view, at.hidden, at.sums,
                                    logits(which, chunk), bench_);
        observe(batch, chunk.begin, which, logits(which, chunk));
      }
      for (size_t piece = 0; piece < piece_count; ++piece) {
        const Decoder::HeadPiece which = head_piece(piece);
        const WorkScope work(name(Phase::turnaround), head_name(piece));
        decoder_.backward_head_chunk(*weights[piece], gradients[piece], shard(inputs, batch), which, chunk,
                                     view, at.hidden, at.sums, scale, logits(which, chunk), at.d_hidden,
                                     bench_);
      }
    });
  }
  take_losses(inputs);
  for (GradientLease& gradient : gradients) engine_->offer(std::move(gradient), spec_.tied);
}

void Trainer::backward(const StepInputs& inputs) {
  for (int layer = static_cast<int>(spec_.layers.size()) - 1; layer >= 0; --layer) {
    const BlockId block = spec_.layers[static_cast<size_t>(layer)];
    const Lease weights = engine_->acquire(block);
    GradientLease gradients = engine_->gradients(block);
    for (int batch = 0; batch < inputs.micro_batch_count(); ++batch) {
      const BatchViews view = views(inputs, batch);
      const gpu::View x = boundary(layer, batch, view.tokens());
      const SavedLayer kept = saved(layer, batch, view.tokens());
      if (engine_->tape().recomputes(layer)) {
        const gpu::View y = boundary(layer + 1, batch, view.tokens());  // its value again
        decoder_.forward_layer(*weights, rope_, view, x, y, kept, nullptr, bench_);
      }
      decoder_.backward_layer(*weights, gradients, shard(inputs, batch), rope_, view, x,
                              output_gradient(batch, view.tokens()), kept, bench_);
    }
    engine_->offer(std::move(gradients));
  }
}

void Trainer::embedding_backward(const StepInputs& inputs) {
  const WorkScope work("embedding backward");
  const int64_t rows = static_cast<int64_t>(inputs.rows().size());
  std::vector<bool> written(static_cast<size_t>(options_.gradient_shards));
  for (int batch = 0; batch < inputs.micro_batch_count(); ++batch) {
    const BatchViews view = views(inputs, batch);
    const int at = shard(inputs, batch);
    engine_->submit(gpu::EmbeddingBackward{.dy = output_gradient(batch, view.tokens()),
                                           .order = view.order,
                                           .begin = view.begin,
                                           .d_rows = embedding_gradient(at, rows),
                                           .accumulate = written[static_cast<size_t>(at)]});
    written[static_cast<size_t>(at)] = true;
  }
  for (int at = 0; at < options_.gradient_shards; ++at) {
    if (!written[static_cast<size_t>(at)]) engine_->submit(gpu::Fill{embedding_gradient(at, rows), 0});
  }
  for_each_tree_step(options_.gradient_shards, [&](int into, int from) {
    engine_->submit(gpu::Add{embedding_gradient(into, rows), embedding_gradient(from, rows),
                             embedding_gradient(into, rows)});
  });
  engine_->offer_rows(spec_.embedding, inputs.rows(), embedding_gradient(0, rows).data);
}

// Sum of the weighted token losses: a left fold within a micro-batch and within a shard, a tree across
// shards.
double Trainer::read_losses(std::span<const MicroBatch> batches, StepReport& report) {
  const auto begin = std::chrono::steady_clock::now();
  {
    const TraceWait wait("wait for the losses");
    losses_ready_->wait();
  }
  report.waited.compute += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::vector<double> sums(static_cast<size_t>(options_.gradient_shards));
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    double sum = 0;
    for (size_t token = 0; token < batches[batch].tokens.size(); ++token) {
      const double loss = static_cast<double>(losses_[batch][token]);
      if (!std::isfinite(loss) && report.bad_row.empty()) report.bad_row = row_of(batches[batch], token);
      sum += loss;
    }
    sums[static_cast<size_t>(shard_of(static_cast<int>(batch), static_cast<int>(batches.size()),
                                      options_.gradient_shards))] += sum;
  }
  for_each_tree_step(options_.gradient_shards, [&](int into, int from) {
    sums[static_cast<size_t>(into)] += sums[static_cast<size_t>(from)];
  });
  return sums[0];
}

gpu::View Trainer::activation(std::byte* data, int64_t tokens) const {
  return {data, decoder_.dtype(), tokens, decoder_.config().hidden_size};
}

gpu::View Trainer::boundary(int layer, int micro_batch, int64_t tokens) const {
  return activation(engine_->tape().boundary(layer, micro_batch).data, tokens);
}

SavedLayer Trainer::saved(int layer, int micro_batch, int64_t tokens) const {
  const Tape::Range range = engine_->tape().saved(layer, micro_batch);
  Scratch memory(range.data, range.size_bytes);
  return decoder_.carve_saved(memory, tokens);
}

gpu::View Trainer::output_gradient(int micro_batch, int64_t tokens) const {
  const size_t stride = round_up(activation_bytes(decoder_, options_.limits), Scratch::kAlignment);
  return activation(
      engine_->device_part(walk_part::kOutputGradients) + stride * static_cast<size_t>(micro_batch), tokens);
}

gpu::View Trainer::embedding_gradient(int shard, int64_t rows) const {
  const int64_t hidden = decoder_.config().hidden_size;
  const int64_t stride = most_embedding_rows(decoder_, options_.limits) * hidden * 4;
  return {engine_->device_part(walk_part::kEmbeddingGradients) + stride * shard, DType::f32, rows, hidden};
}

HeadViews Trainer::head(int micro_batch, int64_t tokens) const {
  const size_t stride = head_bytes(decoder_, options_.limits);
  Scratch memory(engine_->device_part(walk_part::kHead) + stride * static_cast<size_t>(micro_batch), stride);
  return carve_head(memory, decoder_, tokens, true);
}

Decoder::HeadPiece Trainer::head_piece(size_t piece) const {
  const BlockPart& part = spec_.model.block(spec_.head_pieces[piece]).parts[0];
  return {.begin = part.row_begin, .rows = part.row_end - part.row_begin, .first = piece == 0};
}

const std::string& Trainer::head_name(size_t piece) const {
  return spec_.model.block(spec_.head_pieces[piece]).name;
}

BatchViews Trainer::views(const StepInputs& inputs, int micro_batch) const {
  return inputs.views(micro_batch, engine_->device_part(walk_part::kInputs));
}

int Trainer::shard(const StepInputs& inputs, int micro_batch) const {
  return shard_of(micro_batch, inputs.micro_batch_count(), options_.gradient_shards);
}

}  // namespace sluice::finetune
