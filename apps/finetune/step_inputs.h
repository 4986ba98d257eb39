#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "apps/finetune/data/micro_batch.h"
#include "apps/finetune/model/decoder.h"

namespace sluice::finetune {

// How large the micro-batches of a walk can be; the plan is made for this.
struct BatchLimits {
  int micro_batch_count = 1;
  int64_t tokens = 0;          // of one micro-batch, padding included
  int64_t rows = 1;            // of one micro-batch
  int64_t tokens_per_row = 0;  // also the number of positions
  int64_t cache_rows = 0;      // of the key/value cache that attention reads; 0: there is none
};

// The integers and weights of a step's micro-batches, packed into one upload, with the rows of the embedding
// that the step needs. Index and order lists make the embedding a gather and its gradient a sum in fixed
// order.
class StepInputs {
 public:
  // Of the upload, for the plan.
  static size_t size_bytes(const BatchLimits& limits, int64_t vocab_size);

  // Token ids must be in [0, vocab_size).
  StepInputs(std::span<const MicroBatch> batches, int64_t vocab_size);

  // Distinct tokens of the step, ascending: row u of the fetched embedding is token rows()[u].
  const std::vector<int32_t>& rows() const { return rows_; }
  const std::vector<int32_t>& upload() const { return words_; }
  // Views into the upload once it is at `device`.
  BatchViews views(int micro_batch, std::byte* device) const;
  int micro_batch_count() const { return static_cast<int>(placed_.size()); }
  // Sum of the loss weights of all labelled tokens.
  double label_weight() const { return label_weight_; }
  int64_t label_count() const { return label_count_; }
  int64_t token_count() const { return token_count_; }

 private:
  struct Placed {
    int64_t tokens = 0;
    size_t index = 0, positions = 0, targets = 0, weights = 0, order = 0, begin = 0;  // words
    int64_t order_count = 0;
    gpu::AttentionSegments segments;
  };
  void place(const MicroBatch& batch);
  size_t append(std::span<const int32_t> values);

  std::vector<int32_t> rows_;
  std::vector<int32_t> words_;
  std::vector<Placed> placed_;
  double label_weight_ = 0;
  int64_t label_count_ = 0;
  int64_t token_count_ = 0;
};

}  // namespace sluice::finetune
