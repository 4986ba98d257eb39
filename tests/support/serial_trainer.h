#pragma once

#include <memory>
#include <span>
#include <vector>

#include "apps/finetune/trainer.h"
#include "engine/memory/tensor_store.h"
#include "gpu/host/host_device.h"

namespace sluice::test {

// What a step of finetune::Trainer must compute, as a plain loop: no engine, no plan and nothing in flight.
// Every op is waited for before the next is submitted, on one thread; all weights are packed and all
// activations kept in device memory; one micro-batch goes through the whole model and back before the next
// begins; the update is over before step() returns. Of the options only what changes numbers is looked at.
class SerialTrainer {
 public:
  SerialTrainer(const ModelConfig& config, const finetune::TrainerOptions& options);
  ~SerialTrainer();

  TensorStore& store();
  finetune::StepReport step(std::span<const finetune::MicroBatch> batches, double learning_rate);

 private:
  class Step;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::test
