#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/finetune/data/dataset.h"
#include "apps/finetune/data/sampler.h"

namespace sluice {

// Rows one after the other, ragged, padded at the end to a multiple of kPadding. What a model's forward and
// backward pass take. All vectors but the last two have padded_tokens() entries.
struct MicroBatch {
  static constexpr int64_t kPadding = 64;

  std::vector<int32_t> ids;        // (T); 0 in the padding
  std::vector<int32_t> positions;  // (T); restart at 0 with each row
  std::vector<int32_t> targets;    // (T); the id to predict at t, which is that of t + 1 in the same row; -1:
                                   // nothing is learnt here
  std::vector<float> weights;      // (T); of the loss at t; 0 where the target is -1
  std::vector<int32_t> document_offsets;  // (rows + 1); row r is [document_offsets[r], document_offsets[r +
                                          // 1]), padding excluded
  std::vector<int64_t> rows;              // (rows); indices into the data set, for messages (Dataset::source)

  int64_t padded_tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t tokens() const { return document_offsets.empty() ? 0 : document_offsets.back(); }
  int64_t target_count() const;
};

struct BatcherOptions {
  int64_t per_device_train_batch_size = 1;  // rows of a micro-batch
  int64_t gradient_accumulation_steps = 1;  // micro-batches of a step
};

// The micro-batches of one optimizer step. Its loss is the weighted sum over all of them divided by weight():
// never a mean of means.
struct StepWindow {
  std::vector<MicroBatch> micro_batches;
  DataCursor next;  // where the step after this one starts
  int64_t tokens() const;
  double weight() const;  // sum of all loss weights
};

// Cuts the sampler's order into steps. The last window of an epoch may have fewer micro-batches, and its last
// micro-batch fewer rows; a window never reaches into the next epoch. Borrows the data set. Safe from any
// thread: a window depends on the cursor alone.
class Batcher {
 public:
  Batcher(const Dataset& dataset, uint64_t seed, BatcherOptions options);

  // The window that starts at `cursor`, whose position is below size(); at the end of an epoch `next` is the
  // start of the one after.
  StepWindow window(DataCursor cursor) const;

  // Every row once, in file order, in micro-batches of per_device_train_batch_size; for evaluation. Empty
  // behind the end.
  MicroBatch sequential(int64_t first_row) const;

  int64_t steps_per_epoch() const;
  // No micro-batch has more padded tokens, whatever the order: the longest rows together. Plans are made for
  // it.
  int64_t most_padded_tokens() const { return most_padded_tokens_; }

 private:
  const Dataset& dataset_;
  Sampler sampler_;
  BatcherOptions options_;
  int64_t most_padded_tokens_;
};

// A micro-batch of the given rows of a data set.
MicroBatch make_micro_batch(const Dataset& dataset, const std::vector<int64_t>& rows);

}  // namespace sluice
