#include "apps/finetune/step_inputs.h"

#include <algorithm>
#include <bit>

#include "engine/base/math.h"

namespace sluice::finetune {
namespace {

constexpr size_t kWordAlignment = 64;  // of each list: 256 bytes

size_t padded_words(int64_t count) {
  return round_up(static_cast<size_t>(count), kWordAlignment);
}

}  // namespace

size_t StepInputs::size_bytes(const BatchLimits& limits, int64_t vocab_size) {
  const int64_t most_rows = std::min(vocab_size, limits.tokens * limits.micro_batch_count);
  const size_t words = 5 * padded_words(limits.tokens) + padded_words(most_rows + 1);
  return words * 4 * static_cast<size_t>(limits.micro_batch_count);
}

StepInputs::StepInputs(std::span<const MicroBatch> batches, int64_t vocab_size) {
  for (const MicroBatch& batch : batches) rows_.insert(rows_.end(), batch.tokens.begin(), batch.tokens.end());
  std::ranges::sort(rows_);
  rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
  SLUICE_CHECK(rows_.empty() || (rows_.front() >= 0 && rows_.back() < vocab_size), "token id out of range");
  for (const MicroBatch& batch : batches) place(batch);
}

size_t StepInputs::append(std::span<const int32_t> values) {
  const size_t begin = words_.size();
  words_.insert(words_.end(), values.begin(), values.end());
  words_.resize(begin + padded_words(static_cast<int64_t>(values.size())));
  return begin;
}

void StepInputs::place(const MicroBatch& batch) {
  Placed placed{.tokens = static_cast<int64_t>(batch.tokens.size())};
  const int64_t token_count = batch.document_offsets.empty() ? 0 : batch.document_offsets.back();
  token_count_ += token_count;
  std::vector<int32_t> index;
  index.reserve(batch.tokens.size());
  for (const int32_t token : batch.tokens) {
    index.push_back(static_cast<int32_t>(std::ranges::lower_bound(rows_, token) - rows_.begin()));
  }
  std::vector<int32_t> order(static_cast<size_t>(token_count));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::ranges::stable_sort(order, {}, [&](int32_t token) { return index[static_cast<size_t>(token)]; });
  std::vector<int32_t> begin(rows_.size() + 1);
  for (const int32_t token : order) ++begin[static_cast<size_t>(index[static_cast<size_t>(token)]) + 1];
  for (size_t row = 1; row < begin.size(); ++row) begin[row] += begin[row - 1];
  std::vector<int32_t> weight_bits;
  for (size_t i = 0; i < batch.weights.size(); ++i) {
    weight_bits.push_back(std::bit_cast<int32_t>(batch.weights[i]));
    if (batch.targets[i] < 0) continue;
    ++label_count_;
    label_weight_ += static_cast<double>(batch.weights[i]);
  }
  auto segments = std::make_shared<std::vector<gpu::AttentionSegment>>();
  for (size_t row = 0; row + 1 < batch.document_offsets.size(); ++row) {
    const int64_t first = batch.document_offsets[row];
    const int64_t count = batch.document_offsets[row + 1] - first;
    if (count > 0) segments->push_back({first, count, first, count});
  }
  placed.index = append(index);
  placed.positions = append(batch.positions);
  placed.targets = append(batch.targets);
  placed.weights = append(weight_bits);
  placed.order = append(order);
  placed.order_count = token_count;
  placed.begin = append(begin);
  placed.segments = std::move(segments);
  placed_.push_back(std::move(placed));
}

BatchViews StepInputs::views(int micro_batch, std::byte* device) const {
  const Placed& placed = placed_.at(static_cast<size_t>(micro_batch));
  const auto view = [&](size_t word, DType dtype, int64_t count) {
    return gpu::View(device + word * 4, dtype, count, 1);
  };
  return {.index = view(placed.index, DType::i32, placed.tokens),
          .positions = view(placed.positions, DType::i32, placed.tokens),
          .targets = view(placed.targets, DType::i32, placed.tokens),
          .weights = view(placed.weights, DType::f32, placed.tokens),
          .order = view(placed.order, DType::i32, placed.order_count),
          .begin = view(placed.begin, DType::i32, static_cast<int64_t>(rows_.size()) + 1),
          .segments = placed.segments};
}

}  // namespace sluice::finetune
