#include "engine/train/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "cpu_optim/convert.h"
#include "cpu_optim/norm.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

constexpr size_t kBlockAlignment = 4096;

size_t gradient_bytes(const TensorStore& store, BlockId block, DType dtype) {
  return static_cast<size_t>(store.layout(block).logical_elements()) * size_bytes(dtype);
}

std::vector<size_t> waiting_offsets(const TensorStore& store, const std::vector<DType>& dtypes) {
  std::vector<size_t> result{0};
  for (int block = 0; block < store.block_count(); ++block) {
    result.push_back(
        result.back() +
        round_up(gradient_bytes(store, BlockId{block}, dtypes[static_cast<size_t>(block)]), kBlockAlignment));
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

size_t Optimizer::waiting_arena_bytes(const TensorStore& store, const std::vector<DType>& dtypes) {
  return waiting_offsets(store, dtypes).back();
}

Optimizer::Optimizer(TensorStore& store, gpu::Device& device, Executor& executor, TierBudget& host_budget,
                     std::vector<DType> waiting_dtypes, OptimizerOptions options)
    : store_(store),
      executor_(executor),
      waiting_dtypes_(std::move(waiting_dtypes)),
      options_(std::move(options)),
      offsets_(waiting_offsets(store, waiting_dtypes_)),
      arena_(host_budget, device, offsets_.back(), "waiting gradients"),
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
}

Optimizer::~Optimizer() = default;

std::byte* Optimizer::waiting_gradient(BlockId block) const {
  return arena_.data() + offsets_.at(static_cast<size_t>(block.value));
}

size_t Optimizer::waiting_bytes(BlockId block) const {
  return gradient_bytes(store_, block, waiting_dtype(block));
}

cpu_optim::FloatView Optimizer::gradient(BlockId block) const {
  return {waiting_dtype(block), waiting_gradient(block), store_.layout(block).logical_elements()};
}

std::span<double> Optimizer::chunk_sums(BlockId block) {
  const size_t at = static_cast<size_t>(block.value);
  return std::span(step_->chunk_sums).subspan(chunk_begin_[at], chunk_begin_[at + 1] - chunk_begin_[at]);
}

void Optimizer::count_in_norm(BlockId block) {
  SLUICE_CHECK(!offered_.at(static_cast<size_t>(block.value)), store_.model().block(block).name);
  offered_[static_cast<size_t>(block.value)] = true;
  lane_->run(
      {.name = "sum of squares",
       .accesses = {gpu::reads(waiting_gradient(block), waiting_bytes(block))},
       .body = [this, block] { cpu_optim::sums_of_squares(executor_, gradient(block), chunk_sums(block)); }});
}

void Optimizer::offer(BlockId block, const gpu::Event& arrived) {
  lane_->wait(arrived);
  count_in_norm(block);
}

void Optimizer::offer_copy(BlockId block, cpu_optim::FloatView gradient) {
  const int64_t count = store_.layout(block).logical_elements();
  SLUICE_CHECK(gradient.size() == count, store_.model().block(block).name);
  std::byte* const waiting = waiting_gradient(block);
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
    std::memset(waiting_gradient(block) + static_cast<size_t>(part.span_begin + count) * element_bytes, 0,
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
  lane_->run({.name = "gradient norm", .accesses = {}, .body = [this, learning_rate, offered = offered_] {
                for (int block = 0; block < store_.block_count(); ++block) {
                  if (!offered[static_cast<size_t>(block)])
                    std::ranges::fill(chunk_sums(BlockId{block}), 0.0);
                }
                decide(learning_rate);
              }});
  decided_ = lane_->record();
  for (const BlockId block : order) {
    if (!offered_.at(static_cast<size_t>(block.value))) continue;
    offered_[static_cast<size_t>(block.value)] = false;
    update_block(block);
  }
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
    step_->group_steps.push_back(cpu_optim::make_adam_step(group, number, scale));
  }
  step_->applied_steps = number;
}

void Optimizer::update_block(BlockId block) {
  const BlockState state = store_.state(block);
  lane_->run({.name = "adamw",
              .accesses = {gpu::reads(waiting_gradient(block), waiting_bytes(block)),
                           gpu::writes(state.low.data(), state.low.size_bytes()),
                           gpu::writes(state.high.data(), state.high.size_bytes()),
                           gpu::writes(state.first_moment.data(), state.first_moment.size_bytes()),
                           gpu::writes(state.second_moment.data(), state.second_moment.size_bytes())},
              .body = [this, block, state] {
                if (step_->skip) return;
                try {
                  update_parts(block, state);
                } catch (const std::exception& error) {  // shows one step later, so it says where it belongs
                  const auto* known = dynamic_cast<const Error*>(&error);
                  throw Error(known != nullptr ? known->kind() : ErrorKind::runtime,
                              "the update of '" + store_.model().block(block).name + "' in optimizer step " +
                                  std::to_string(step_->applied_steps) + " failed: " + error.what());
                }
              }});
  store_.set_version(block, lane_->record());
}

void Optimizer::update_parts(BlockId block, const BlockState& state) {
  const cpu_optim::SplitState whole{state.high, state.low, state.first_moment, state.second_moment};
  for (const BlockLayout::Part& part : store_.layout(block).parts()) {
    if (!part.trainable) continue;
    const cpu_optim::AdamStep& step = step_->group_steps.at(static_cast<size_t>(part.group));
    cpu_optim::update(executor_, whole.subrange(part.span_begin, part.element_count()),
                      gradient(block).subrange(part.span_begin, part.element_count()), step);
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
