#include "engine/train/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "cpu_optim/convert.h"
#include "cpu_optim/norm.h"
#include "engine/base/math.h"
#include "engine/base/trace.h"

namespace sluice {
namespace {

constexpr size_t kBlockAlignment = 4096;

size_t gradient_bytes(const TensorStore& store, BlockId block, DType dtype) {
  return static_cast<size_t>(store.layout(block).logical_elements()) * size_bytes(dtype);
}

// Of the gradients that wait in the host tier.
std::vector<size_t> waiting_offsets(const TensorStore& store, const std::vector<DType>& dtypes) {
  std::vector<size_t> result{0};
  for (BlockId block{0}; block.value < store.block_count(); ++block.value) {
    const bool here = store.home(block).gradient == Tier::host;
    const size_t bytes = here ? gradient_bytes(store, block, dtypes[static_cast<size_t>(block.value)]) : 0;
    result.push_back(result.back() + round_up(bytes, kBlockAlignment));
  }
  return result;
}

}  // namespace

struct Optimizer::StepState {
  std::vector<double> chunk_sums;
  std::vector<cpu_optim::AdamStep> group_steps;
  std::atomic<int64_t> applied_steps = 0;
  double norm = 0;
  bool skip = false;
};

struct Optimizer::Save {
  std::shared_ptr<std::exception_ptr> failure = std::make_shared<std::exception_ptr>();  // the lane's
  std::vector<uint8_t> slots;
  std::vector<BlockId> written;  // what of them is in the host tier
  std::optional<gpu::Event> ended;
};

size_t Optimizer::waiting_arena_bytes(const TensorStore& store, const std::vector<DType>& dtypes) {
  return waiting_offsets(store, dtypes).back();
}

Optimizer::Optimizer(TensorStore& store, gpu::Device& device, Executor& executor, TierBudget& host_budget,
                     std::vector<DType> waiting_dtypes, OptimizerOptions options, const Plan& plan,
                     const IoQueueFactory& make_queue)
    : store_(store),
      executor_(executor),
      waiting_dtypes_(std::move(waiting_dtypes)),
      options_(std::move(options)),
      offsets_(waiting_offsets(store, waiting_dtypes_)),
      arena_(host_budget, device, offsets_.back(), plan_part::kWaiting),
      update_arena_(host_budget, device, plan.part(plan_part::kUpdate).size_bytes, plan_part::kUpdate),
      gradient_arena_(host_budget, device, plan.part(plan_part::kGradientStaging).size_bytes,
                      plan_part::kGradientStaging),
      gradient_ring_(gradient_arena_.data(), plan.gradient_staging_slot_bytes,
                     plan.gradient_staging_slot_count),
      gradient_slots_(static_cast<size_t>(store.block_count()), -1),
      saved_versions_(gradient_slots_.size()),
      saved_(gradient_slots_.size()),
      offered_(static_cast<size_t>(store.block_count())),
      before_rows_(offered_.size()),
      step_(std::make_unique<StepState>()),
      lane_(device.make_stream(gpu::StreamKind::cpu, "optimizer")) {
  size_t chunk_count = 0;
  for (int block = 0; block < store.block_count(); ++block) {
    chunk_begin_.push_back(chunk_count);
    chunk_count +=
        static_cast<size_t>(cpu_optim::norm_chunk_count(store.layout(BlockId{block}).logical_elements()));
  }
  chunk_begin_.push_back(chunk_count);
  step_->chunk_sums.resize(chunk_count);
  if (store.file() != nullptr) {
    stream_ = std::make_unique<StateStream>(*store.file(), make_queue, update_arena_.bytes(),
                                            gradient_arena_.bytes());
  }
}

// Transfers may be in flight (those ahead of the next update; all, where one failed), which only the lane's
// thread may wait for.
Optimizer::~Optimizer() {
  lane_->run({.name = "end streaming",
              .accesses = {},
              .body = [this] { stream_.reset(); },
              .even_after_error = true});
}

std::byte* Optimizer::waiting_gradient(BlockId block) const {
  SLUICE_CHECK(store_.home(block).gradient == Tier::host, store_.model().block(block).name);
  return arena_.data() + offsets_.at(static_cast<size_t>(block.value));
}

Optimizer::GradientTarget Optimizer::gradient_target(BlockId block) {
  if (store_.home(block).gradient == Tier::host)
    return {waiting_gradient(block), store_.version_ready(block)};
  int& slot = gradient_slots_.at(static_cast<size_t>(block.value));
  slot = next_gradient_slot_;
  next_gradient_slot_ = (next_gradient_slot_ + 1) % gradient_ring_.slot_count();
  return {gradient_ring_.slot(slot), gradient_ring_.free_after(slot)};
}

// Where this step's gradient is in the host tier, before it leaves for the disk if it does.
std::byte* Optimizer::gradient_memory(BlockId block) const {
  if (store_.home(block).gradient == Tier::host) return waiting_gradient(block);
  return gradient_ring_.slot(gradient_slots_.at(static_cast<size_t>(block.value)));
}

size_t Optimizer::waiting_bytes(BlockId block) const {
  return gradient_bytes(store_, block, waiting_dtype(block));
}

cpu_optim::FloatView Optimizer::gradient(BlockId block) const {
  return {waiting_dtype(block), gradient_memory(block), store_.layout(block).logical_elements()};
}

std::span<double> Optimizer::chunk_sums(BlockId block) {
  const size_t at = static_cast<size_t>(block.value);
  return std::span(step_->chunk_sums).subspan(chunk_begin_[at], chunk_begin_[at + 1] - chunk_begin_[at]);
}

void Optimizer::count_in_norm(BlockId block) {
  SLUICE_CHECK(!offered_.at(static_cast<size_t>(block.value)), store_.model().block(block).name);
  offered_[static_cast<size_t>(block.value)] = true;
  const std::string_view whose = store_.model().block(block).name;
  std::optional<WorkScope> work(std::in_place, "norm", whose);
  const cpu_optim::FloatView values = gradient(block);
  std::byte* const memory = gradient_memory(block);
  lane_->run({.name = "sum of squares",
              .accesses = {gpu::reads(memory, waiting_bytes(block))},
              .body = [this, values, sums = chunk_sums(block)] {
                cpu_optim::sums_of_squares(executor_, values, sums);
              }});
  if (store_.home(block).gradient == Tier::host) return;
  work.emplace("gradient", whose);
  lane_->run({.name = "write gradient",
              .accesses = {gpu::writes(memory, gradient_ring_.slot_bytes())},  // its padding is cleared
              .body = [this, block, memory, bytes = waiting_bytes(block)] {
                stream_->write_gradient(block, memory, bytes);
              }});
  gradient_ring_.release(gradient_slots_[static_cast<size_t>(block.value)], lane_->record());
}

void Optimizer::offer(BlockId block, const gpu::Event& arrived) {
  lane_->wait(arrived);
  count_in_norm(block);
}

void Optimizer::offer_copy(BlockId block, cpu_optim::FloatView gradient) {
  const int64_t count = store_.layout(block).logical_elements();
  SLUICE_CHECK(gradient.size() == count, store_.model().block(block).name);
  const GradientTarget destination = gradient_target(block);
  if (destination.free) destination.free->wait();
  std::byte* const waiting = destination.data;
  const auto copy = [&](auto source, auto target) {
    if constexpr (sizeof(*source) == sizeof(*target)) {
      std::memcpy(target, source, static_cast<size_t>(count) * sizeof(*target));
    } else {
      cpu_optim::convert(std::span(source, static_cast<size_t>(count)),
                         std::span(target, static_cast<size_t>(count)));
    }
  };
  const auto copy_from = [&](auto source) {
    if (waiting_dtype(block) == DType::f32) return copy(source, reinterpret_cast<float*>(waiting));
    copy(source, reinterpret_cast<BFloat16*>(waiting));
  };
  gradient.dtype() == DType::f32 ? copy_from(gradient.fp32()) : copy_from(gradient.bf16());
  clear_padding(block);
  count_in_norm(block);
}

// The norm is of whole spans, so their padding must be zero.
void Optimizer::clear_padding(BlockId block) {
  const size_t element_bytes = size_bytes(waiting_dtype(block));
  for (const BlockLayout::Part& part : store_.layout(block).parts()) {
    if (!part.trainable) continue;
    const int64_t count = part.element_count();
    std::memset(gradient_memory(block) + static_cast<size_t>(part.span_begin + count) * element_bytes, 0,
                static_cast<size_t>(round_up(count, kSpanPadding) - count) * element_bytes);
  }
}

void Optimizer::offer_before_rows(BlockId block, const gpu::Event& arrived) {
  SLUICE_CHECK(waiting_dtype(block) == DType::f32, store_.model().block(block).name);
  before_rows_.at(static_cast<size_t>(block.value)) = true;
  lane_->wait(arrived);
}

void Optimizer::offer_rows(TensorId tensor, std::vector<int32_t> rows, const float* gradients,
                           const gpu::Event& arrived, DType gradient_dtype) {
  const TensorSpec& spec = store_.model().tensor(tensor);
  lane_->wait(arrived);
  size_t next = 0;
  for (int64_t row = 0; row < spec.rows;) {
    const TensorStore::Place place = store_.find(tensor, row);
    const BlockLayout::Part part = store_.layout(place.block).part(place.part);
    const size_t begin = next;
    while (next < rows.size() && rows[next] < part.row_begin + part.rows) ++next;
    std::vector<int32_t> local(rows.begin() + static_cast<ptrdiff_t>(begin),
                               rows.begin() + static_cast<ptrdiff_t>(next));
    for (int32_t& value : local) value -= static_cast<int32_t>(part.row_begin);
    const std::span<const float> values{gradients + begin * static_cast<size_t>(spec.cols),
                                        local.size() * static_cast<size_t>(spec.cols)};
    const std::span<float> sums{reinterpret_cast<float*>(waiting_gradient(place.block)) + part.span_begin,
                                static_cast<size_t>(part.element_count())};
    const bool starts_at_zero = !before_rows_.at(static_cast<size_t>(place.block.value));
    before_rows_[static_cast<size_t>(place.block.value)] = false;
    const WorkScope work("norm", store_.model().block(place.block).name);
    if (starts_at_zero) clear_gradient(place.block);
    lane_->run({.name = "add embedding rows",
                .accesses = {gpu::reads(values.data(), values.size_bytes()),
                             gpu::writes(sums.data(), sums.size_bytes())},
                .body = [values, sums, local = std::move(local), cols = spec.cols, gradient_dtype] {
                  cpu_optim::add_rows(values, local, cols, sums);
                  if (gradient_dtype == DType::bf16) cpu_optim::round_to_bf16(sums, sums);
                }});
    count_in_norm(place.block);
    row = part.row_begin + part.rows;
  }
  SLUICE_CHECK(next == rows.size(), "rows must be ascending and within the tensor");
}

void Optimizer::clear_gradient(BlockId block) {
  lane_->run({.name = "clear gradient",
              .accesses = {gpu::writes(waiting_gradient(block), waiting_bytes(block))},
              .body = [begin = waiting_gradient(block), count = waiting_bytes(block)] {
                std::memset(begin, 0, count);
              }});
}

void Optimizer::begin_update(double learning_rate, std::span<const BlockId> order) {
  const WorkScope work("norm");
  lane_->run({.name = "gradient norm", .accesses = {}, .body = [this, learning_rate, offered = offered_] {
                for (int block = 0; block < store_.block_count(); ++block) {
                  if (!offered[static_cast<size_t>(block)])
                    std::ranges::fill(chunk_sums(BlockId{block}), 0.0);
                }
                decide(learning_rate);
              }});
  decided_ = lane_->record();
  settle_save();
  std::vector<StreamedBlock> streaming;
  if (stream_) streaming = begin_streaming(order);
  for (const BlockId block : order) {
    if (!offered_.at(static_cast<size_t>(block.value))) continue;
    offered_[static_cast<size_t>(block.value)] = false;
    update_block(block);
  }
  if (stream_) read_ahead(std::move(streaming));
  SLUICE_CHECK(std::ranges::find(offered_, true) == offered_.end(),
               "an offered block is missing from the update order");
  SLUICE_CHECK(std::ranges::find(before_rows_, true) == before_rows_.end(),
               "offer_before_rows without offer_rows");
}

void Optimizer::decide(double learning_rate) {
  step_->norm = std::sqrt(cpu_optim::tree_sum(step_->chunk_sums));
  step_->skip = !std::isfinite(step_->norm);
  if (step_->skip) return;
  const int64_t number = step_->applied_steps + 1;
  float scale = 1;
  if (options_.max_gradient_norm > 0)
    scale = *cpu_optim::clip_coefficient(step_->norm, options_.max_gradient_norm);
  step_->group_steps.clear();
  for (cpu_optim::AdamOptions group : options_.groups) {
    group.learning_rate *= learning_rate;
    step_->group_steps.push_back(cpu_optim::make_adam_step(group, number, scale, options_.seed));
  }
  step_->applied_steps = number;
}

// Its update has something on disk.
bool Optimizer::streams(BlockId block) const {
  return store_.home(block) != BlockHome{};
}

StreamedBlock Optimizer::streamed(BlockId block) {
  const int read_slot = store_.newest_slot(block);
  const int write_slot = store_.next_slot(block);
  store_.set_newest_slot(block, write_slot);
  const bool here = store_.home(block).gradient == Tier::host;
  return {.block = block,
          .home = store_.home(block),
          .read_slot = read_slot,
          .write_slot = write_slot,
          .resident = store_.states(block),
          .gradient = {waiting_dtype(block), here ? waiting_gradient(block) : nullptr,
                       store_.layout(block).logical_elements()}};
}

std::vector<StreamedBlock> Optimizer::begin_streaming(std::span<const BlockId> order) {
  std::vector<StreamedBlock> blocks;
  for (const BlockId block : order) {
    if (offered_.at(static_cast<size_t>(block.value)) && streams(block)) blocks.push_back(streamed(block));
  }
  const WorkScope work("begin streaming");
  lane_->run({.name = "begin streaming", .accesses = {}, .body = [this, blocks] {
                stream_->begin(blocks,
                               [this](BlockId block, int64_t begin, const cpu_optim::StateSpan& states,
                                      const cpu_optim::FloatView& gradients) {
                                 update_range(block, begin, states, gradients);
                               });
              }});
  return blocks;
}

// The next update is of the same blocks, unless gradients are missing then.
void Optimizer::read_ahead(std::vector<StreamedBlock> updated) {
  for (StreamedBlock& block : updated) block.read_slot = block.write_slot;
  const WorkScope work(WorkLabel{"read ahead", {}, this_thread_label().step + 1});
  lane_->run({.name = "read ahead", .accesses = {}, .body = [this, blocks = std::move(updated)] {
                stream_->read_ahead(blocks);
              }});
}

void Optimizer::run_update(std::optional<BlockId> block, const std::function<void()>& task) {
  try {
    task();
  } catch (const std::exception& error) {  // shows one step later, so it says which
    const auto* known = dynamic_cast<const Error*>(&error);
    const std::string whose = block ? "'" + store_.model().block(*block).name + "' in " : "";
    throw Error(known != nullptr ? known->kind() : ErrorKind::runtime,
                "the update of " + whose + "optimizer step " + std::to_string(step_->applied_steps) +
                    " failed: " + error.what());
  }
}

void Optimizer::update_block(BlockId block) {
  const BlockState state = store_.state(block);
  const WorkScope work("update", store_.model().block(block).name);
  gpu::Task task{.name = "adamw", .accesses = {}, .body = {}};
  const auto touch = [&](bool writes, const void* data, size_t size_bytes) {
    if (size_bytes == 0) return;
    task.accesses.push_back(writes ? gpu::writes(data, size_bytes) : gpu::reads(data, size_bytes));
  };
  if (store_.home(block).gradient == Tier::host) touch(false, waiting_gradient(block), waiting_bytes(block));
  touch(true, state.low.data(), state.low.size_bytes());
  touch(true, state.high.data(), state.high.size_bytes());
  touch(true, state.first_moment.data(), state.first_moment.size_bytes());
  touch(true, state.second_moment.data(), state.second_moment.size_bytes());
  if (!streams(block)) {
    task.body = [this, block, whole = store_.states(block)] {
      run_update(block, [&] { update_range(block, 0, whole, gradient(block)); });
    };
  } else {
    touch(true, store_.disk_token(block), 1);
    task.body = [this] { run_update({}, [&] { stream_->finish_next(); }); };
  }
  lane_->run(std::move(task));
  store_.set_version(block, lane_->record());
}

void Optimizer::update_range(BlockId block, int64_t begin, const cpu_optim::StateSpan& state,
                             const cpu_optim::FloatView& gradient) {
  if (step_->skip) return;
  const int64_t end = begin + state.size;
  for (const BlockLayout::Part& part : store_.layout(block).parts()) {
    if (!part.trainable) continue;
    const int64_t first = std::max(begin, part.span_begin);
    const int64_t last = std::min(end, part.span_begin + part.element_count());
    if (first >= last) continue;
    cpu_optim::update(executor_, state.subrange(first - begin, last - first),
                      gradient.subrange(first - begin, last - first),
                      step_->group_steps.at(static_cast<size_t>(part.group)));
  }
}

// What the host tier has of the block joins its newest copy on disk, if it changed since it last did.
void Optimizer::save_block(BlockId block, Save& save) {
  const size_t at = static_cast<size_t>(block.value);
  if (saved_[at] && saved_versions_[at] == store_.version(block)) return;
  saved_[at] = true;
  saved_versions_[at] = store_.version(block);
  const BlockHome home = store_.home(block);
  if (home.weights == Tier::disk && home.moments == Tier::disk) return;
  if (home.weights == Tier::host && home.moments == Tier::host)
    store_.set_newest_slot(block, store_.next_slot(block));
  const BlockState state = store_.state(block);
  const WorkScope work("save", store_.model().block(block).name);
  gpu::Task task{.name = "save", .accesses = {}, .body = {}};
  if (home.weights == Tier::host)
    task.accesses.push_back(gpu::reads(store_.weights(block), store_.layout(block).weight_bytes()));
  for (const std::span<std::byte> moment : {state.first_moment, state.second_moment}) {
    if (!moment.empty()) task.accesses.push_back(gpu::reads(moment.data(), moment.size_bytes()));
  }
  task.body = [this, block, state, slot = store_.newest_slot(block), failure = save.failure] {
    if (*failure) return;
    try {
      stream_->save(block, state, slot);
    } catch (const std::exception&) {
      *failure = std::current_exception();
    }
  };
  lane_->run(std::move(task));
  save.written.push_back(block);
}

PendingSave Optimizer::save(GenerationFacts facts) {
  SLUICE_CHECK(stream_ != nullptr, "a generation needs a state file");
  settle_save();
  save_ = std::make_unique<Save>();
  for (BlockId block{0}; block.value < store_.block_count(); ++block.value) save_block(block, *save_);
  save_->slots = store_.newest_slots();
  const WorkScope work("commit");
  lane_->run(
      {.name = "commit",
       .accesses = {},
       .body = [this, facts = std::move(facts), slots = save_->slots, failure = save_->failure]() mutable {
         if (*failure) return;
         facts.applied_step = step_->applied_steps;
         try {
           store_.file()->commit(facts, slots);
         } catch (const std::exception&) {
           if (store_.file()->in_doubt()) throw;
           *failure = std::current_exception();
         }
       }});
  save_->ended = lane_->record();
  return {*save_->ended, save_->failure};
}

// The lane has come to the save's end by the time that a step's norm is there, so waiting costs nothing.
void Optimizer::settle_save() {
  if (!save_) return;
  const std::unique_ptr<Save> save = std::move(save_);
  try {
    const TraceWait wait("wait for the save");
    save->ended->wait();
  } catch (const std::exception&) {
    return;  // nothing runs on this lane any more, and report() says why
  }
  if (!*save->failure) return store_.set_committed(std::move(save->slots));
  for (const BlockId block : save->written) saved_[static_cast<size_t>(block.value)] = false;
}

void Optimizer::attach(const IoQueueFactory& make_queue) {
  SLUICE_CHECK(stream_ == nullptr && store_.file() != nullptr);
  stream_ = std::make_unique<StateStream>(*store_.file(), make_queue, std::span<std::byte>());
}

void Optimizer::restore(int64_t applied_steps) {
  step_->applied_steps = applied_steps;
  for (BlockId block{0}; block.value < store_.block_count(); ++block.value) {
    saved_[static_cast<size_t>(block.value)] = true;
    saved_versions_[static_cast<size_t>(block.value)] = store_.version(block);
  }
}

UpdateReport Optimizer::report() {
  SLUICE_CHECK(decided_.has_value());
  decided_->wait();
  return {.gradient_norm = step_->norm, .skipped = step_->skip};
}

void Optimizer::wait() {
  lane_->record().wait();
}

int64_t Optimizer::applied_steps() const {
  return step_->applied_steps;
}

}  // namespace sluice
