#include "apps/finetune/data/batcher.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

int64_t most_tokens(const Dataset& dataset, int64_t rows) {
  std::vector<int64_t> lengths(static_cast<size_t>(dataset.size()));
  for (int64_t i = 0; i < dataset.size(); ++i) lengths[static_cast<size_t>(i)] = dataset.row_length(i);
  const auto end = lengths.begin() + std::min(rows, dataset.size());
  std::partial_sort(lengths.begin(), end, lengths.end(), std::greater<>());
  return round_up(std::accumulate(lengths.begin(), end, int64_t{0}), finetune::kTokenPadding);
}

void append_row(finetune::MicroBatch& batch, const DatasetRow& row) {
  const size_t count = row.ids.size();
  for (size_t t = 0; t < count; ++t) {
    const bool has_target = t + 1 < count && row.labelled[t + 1] != 0;
    batch.tokens.push_back(row.ids[t]);
    batch.positions.push_back(static_cast<int32_t>(t));
    batch.targets.push_back(has_target ? row.ids[t + 1] : -1);
    batch.weights.push_back(has_target ? 1.0f : 0.0f);
  }
  batch.document_offsets.push_back(static_cast<int32_t>(batch.tokens.size()));
}

}  // namespace

int64_t StepWindow::tokens() const {
  int64_t sum = 0;
  for (const finetune::MicroBatch& batch : micro_batches) sum += batch.token_count();
  return sum;
}

double StepWindow::weight() const {
  double sum = 0;
  for (const finetune::MicroBatch& batch : micro_batches) {
    for (const float weight : batch.weights) sum += double{weight};
  }
  return sum;
}

Batcher::Batcher(const Dataset& dataset, uint64_t seed, BatcherOptions options)
    : dataset_(dataset), sampler_(dataset.size(), seed), options_(options) {
  if (options.per_device_train_batch_size < 1 || options.gradient_accumulation_steps < 1)
    throw Error(ErrorKind::usage,
                "per_device_train_batch_size and gradient_accumulation_steps must be 1 or more");
  most_padded_tokens_ = most_tokens(dataset, options.per_device_train_batch_size);
  if (most_padded_tokens_ > INT32_MAX)
    throw Error(ErrorKind::usage,
                "a micro-batch of " + std::to_string(options.per_device_train_batch_size) +
                    " rows may hold over 2147483647 tokens. Lower per_device_train_batch_size");
}

StepWindow Batcher::window(DataCursor cursor) const {
  SLUICE_CHECK(cursor.position >= 0 && cursor.position < dataset_.size());
  StepWindow result;
  for (int64_t i = 0; i < options_.gradient_accumulation_steps && cursor.position < dataset_.size(); ++i) {
    std::vector<int64_t> rows;
    while (static_cast<int64_t>(rows.size()) < options_.per_device_train_batch_size &&
           cursor.position < dataset_.size())
      rows.push_back(sampler_.row(cursor.epoch, cursor.position++));
    result.micro_batches.push_back(make_micro_batch(dataset_, rows));
  }
  result.next = cursor.position < dataset_.size() ? cursor : DataCursor{cursor.epoch + 1, 0};
  return result;
}

finetune::MicroBatch Batcher::sequential(int64_t first_row) const {
  std::vector<int64_t> rows;
  const int64_t end = std::min(dataset_.size(), first_row + options_.per_device_train_batch_size);
  for (int64_t row = first_row; row < end; ++row) rows.push_back(row);
  return make_micro_batch(dataset_, rows);
}

int64_t Batcher::steps_per_epoch() const {
  return divide_up(divide_up(dataset_.size(), options_.per_device_train_batch_size),
                   options_.gradient_accumulation_steps);
}

finetune::MicroBatch make_micro_batch(const Dataset& dataset, const std::vector<int64_t>& rows) {
  finetune::MicroBatch batch;
  batch.rows = rows;
  batch.document_offsets.push_back(0);
  for (const int64_t row : rows) {
    append_row(batch, dataset.row(row));
    batch.row_sources.push_back(dataset.source(row));
  }
  const auto padded =
      static_cast<size_t>(round_up(static_cast<int64_t>(batch.tokens.size()), finetune::kTokenPadding));
  batch.tokens.resize(padded, 0);
  batch.positions.resize(padded, 0);
  batch.targets.resize(padded, -1);
  batch.weights.resize(padded, 0.0f);
  return batch;
}

}  // namespace sluice
