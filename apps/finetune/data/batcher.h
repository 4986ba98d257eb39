#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/finetune/data/dataset.h"
#include "apps/finetune/data/micro_batch.h"
#include "apps/finetune/data/sampler.h"

namespace sluice {

struct BatcherOptions {
  int64_t per_device_train_batch_size = 1;  // rows of a micro-batch
  int64_t gradient_accumulation_steps = 1;  // micro-batches of a step
};

// The micro-batches of one optimizer step. Its loss is the weighted sum over all of them divided by weight():
// never a mean of means.
struct StepWindow {
  std::vector<finetune::MicroBatch> micro_batches;
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
  finetune::MicroBatch sequential(int64_t first_row) const;

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
finetune::MicroBatch make_micro_batch(const Dataset& dataset, const std::vector<int64_t>& rows);

}  // namespace sluice
