// What a traced training run says that it did.
#include <algorithm>
#include <condition_variable>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <set>

#include "apps/common/pool.h"
#include "apps/finetune/walk_costs.h"
#include "engine/base/trace.h"
#include "engine/schedule/predicted_lanes.h"
#include "gpu/host/host_ops.h"
#include "gpu/op_cost.h"
#include "gpu/timed/timed_device.h"
#include "io/observed_queue.h"
#include "tests/support/forwarding_device.h"
#include "tests/support/trainer_trial.h"

namespace sluice::test {
namespace {

using finetune::Trainer;
using Lanes = std::vector<TraceLaneRecord>;

constexpr int kSteps = 3;

std::vector<TraceSpan> spans_of(const Lanes& lanes, std::string_view lane_begins_with) {
  std::vector<TraceSpan> spans;
  for (const TraceLaneRecord& lane : lanes) {
    if (lane.name.starts_with(lane_begins_with))
      spans.insert(spans.end(), lane.spans.begin(), lane.spans.end());
  }
  return spans;
}

struct Extent {
  int64_t begin_ns = std::numeric_limits<int64_t>::max();
  int64_t end_ns = 0;
  uint64_t bytes = 0;
  bool found() const { return end_ns > 0; }
};

// From the first to the last span of that name and step.
Extent extent(const std::vector<TraceSpan>& spans, const std::string& name, int64_t step) {
  Extent extent;
  for (const TraceSpan& span : spans) {
    if (span.name != name || span.step != step) continue;
    extent.begin_ns = std::min(extent.begin_ns, span.begin_ns);
    extent.end_ns = std::max(extent.end_ns, span.end_ns);
    extent.bytes += span.bytes;
  }
  return extent;
}

void expect_one_after_another(const Lanes& lanes) {
  for (const TraceLaneRecord& lane : lanes) {
    int64_t end_ns = std::numeric_limits<int64_t>::min();
    for (const TraceSpan& span : lane.spans) {
      EXPECT_LE(end_ns, span.begin_ns) << lane.name << ": " << span.name;
      EXPECT_LE(span.begin_ns, span.end_ns) << lane.name << ": " << span.name;
      end_ns = span.end_ns;
    }
  }
}

// Every layer's forward, backward, gradient and update, and every trained block's update, in each step.
void expect_whole_steps(const Lanes& lanes, const finetune::DecoderSpec& spec) {
  const std::vector<TraceSpan> compute = spans_of(lanes, "compute"), out = spans_of(lanes, "copy out"),
                               optimizer = spans_of(lanes, "optimizer"), in = spans_of(lanes, "copy in");
  for (int64_t step = 1; step <= kSteps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    EXPECT_TRUE(extent(spans_of(lanes, "steps"), "step " + std::to_string(step), step).found());
    for (const BlockId layer : spec.layers) {
      const std::string& name = spec.model.block(layer).name;
      SCOPED_TRACE(name);
      const Extent forward = extent(compute, "forward " + name, step);
      const Extent backward = extent(compute, "backward " + name, step);
      ASSERT_TRUE(forward.found());
      ASSERT_TRUE(backward.found());
      EXPECT_LE(forward.end_ns, backward.begin_ns);
      EXPECT_TRUE(extent(in, "in " + name, step).found());
      EXPECT_GT(extent(in, "in " + name, step).bytes, 0u);
      EXPECT_GT(extent(out, "gradient " + name, step).bytes, 0u);
      EXPECT_TRUE(extent(optimizer, "norm " + name, step).found());
    }
    for (const BlockId block : finetune::update_order(spec))
      EXPECT_TRUE(extent(optimizer, "update " + spec.model.block(block).name, step).found());
    EXPECT_TRUE(extent(compute, "embed", step).found());
    EXPECT_TRUE(extent(compute, "embedding backward", step).found());
  }
}

struct TracedRun {
  ModelConfig config = tiny_config(true);
  std::vector<Window> windows = ragged_windows(3, config.vocab_size, kSteps, 2);
  Trace trace;
  std::unique_ptr<Executor> pool = make_pool(1);
  std::unique_ptr<gpu::HostDevice> host =
      gpu::make_host_device({.executor = *pool, .make_ops = gpu::make_host_ops, .trace = &trace});

  finetune::TrainerOptions options(const TrialOptions& trial) const {
    return trainer_options(limits_of(windows), trial);
  }
  Lanes train(gpu::Device& device, Executor& executor, const finetune::TrainerOptions& how) {
    {
      Trainer trainer(device, executor, config, how);
      fill_weights(trainer.engine().store(), kWeightSeed);
      const TraceThread thread(&trace, "trainer", trace_order::kTrainer);
      for (size_t step = 0; step < windows.size(); ++step) {
        trace.begin_step(static_cast<int64_t>(step) + 1);
        (void)trainer.step(windows[step], trial_learning_rate(step));
      }
      trainer.engine().wait();
    }
    Lanes lanes = trace.stop();
    expect_one_after_another(lanes);
    return lanes;
  }
};

TEST(TrainerTrace, NamesTheWorkOfEveryBlockInRam) {
  TracedRun run;
  const Lanes lanes = run.train(*run.host, *run.pool, run.options({}));
  const finetune::DecoderSpec spec = finetune::make_decoder_spec(run.config);
  expect_whole_steps(lanes, spec);
  const std::vector<TraceSpan> compute = spans_of(lanes, "compute"), optimizer = spans_of(lanes, "optimizer");
  for (int64_t step = 1; step < kSteps; ++step) {
    for (const BlockId layer : spec.layers) {
      const std::string& name = spec.model.block(layer).name;
      EXPECT_LE(extent(optimizer, "update " + name, step).end_ns,
                extent(compute, "forward " + name, step + 1).begin_ns);
    }
  }
}

TEST(TrainerTrace, NamesWhatGoesToTheDriveAndBack) {
  TracedRun run;
  const TrialOptions trial{.disk = TrialDisk{.layer_inputs = LayerInputs::disk}};
  finetune::TrainerOptions how = run.options(trial);
  TrialStore store(run.config, *trial.disk);
  store.create(how);
  how.make_queue = [make = how.make_queue,
                    &trace = run.trace](auto&&... arguments) -> std::unique_ptr<IoQueue> {
    std::unique_ptr<IoQueue> queue = make(arguments...);
    std::vector<std::unique_ptr<IoObserver>> observers;
    observers.push_back(trace_transfers(&trace, *queue));
    return std::make_unique<ObservedQueue>(std::move(queue), std::move(observers));
  };
  const Lanes lanes = run.train(*run.host, *run.pool, how);
  const finetune::DecoderSpec spec = finetune::make_decoder_spec(run.config);
  expect_whole_steps(lanes, spec);
  const std::vector<TraceSpan> read = spans_of(lanes, "disk read, "),
                               written = spans_of(lanes, "disk write, ");
  for (int64_t step = 1; step <= kSteps; ++step) {
    for (const BlockId layer : spec.layers) {
      const std::string& name = spec.model.block(layer).name;
      SCOPED_TRACE(name + ", step " + std::to_string(step));
      EXPECT_GT(extent(read, "read weights of " + name, step).bytes, 0u);
      EXPECT_GT(extent(read, "read states of " + name, step).bytes, 0u);
      EXPECT_GT(extent(written, "write states of " + name, step).bytes, 0u);
      EXPECT_GT(extent(written, "gradient " + name, step).bytes, 0u);
    }
    EXPECT_GT(extent(written, "input of layer 0", step).bytes, 0u);
    EXPECT_GT(extent(read, "input of layer 0", step).bytes, 0u);
  }
}

// Where the test holds the update of step 1 until the next forward pass has come through its first layer: so
// that what is asked for below depends on no clock.
class Latch {
 public:
  void open(gpu::Event event) {
    MutexLock lock(mutex_);
    event_ = std::move(event);
    opened_.notify_all();
  }
  void pass() {
    MutexLock lock(mutex_);
    while (!event_) opened_.wait(lock);
    const gpu::Event event = *event_;
    lock.unlock();
    event.wait();
    lock.lock();
  }

 private:
  Mutex mutex_;
  std::condition_variable_any opened_;
  std::optional<gpu::Event> event_ GUARDED_BY(mutex_);
};

class HeldExecutor final : public Executor {
 public:
  HeldExecutor(Executor& inner, Latch& latch) : inner_(inner), latch_(latch) {}
  int thread_count() const override { return inner_.thread_count(); }
  void run(int64_t task_count, const Body& body) override {
    if (this_thread_label().text() == "update layer 2" && this_thread_label().step == 1) latch_.pass();
    inner_.run(task_count, body);
  }

 private:
  Executor& inner_;
  Latch& latch_;
};

// Opens the latch where layer 1 of step 2 begins to be computed.
class OpeningOps final : public ForwardingOps {
 public:
  OpeningOps(gpu::Ops& inner, Latch& latch) : ForwardingOps(inner), latch_(latch) {}
  void submit(gpu::Stream& stream, gpu::Op op, gpu::Workspace workspace) override {
    const bool second = this_thread_label().text() == "forward layer 1" && this_thread_label().step == 2;
    if (second && !opened_) latch_.open(stream.record());
    opened_ = opened_ || second;
    inner_.submit(stream, std::move(op), workspace);
  }

 private:
  Latch& latch_;
  bool opened_ = false;
};

class OpeningDevice final : public ForwardingDevice {
 public:
  OpeningDevice(gpu::Device& inner, Latch& latch) : ForwardingDevice(inner), ops_(inner.ops(), latch) {}
  gpu::Ops& ops() override { return ops_; }

 private:
  OpeningOps ops_;
};

TEST(TrainerTrace, ShowsTheUpdateUnderTheNextForward) {
  TracedRun run;
  const auto timed =
      gpu::make_timed_device(*run.host, {.model = gpu::gpu_model("RTX 4090"), .trace = &run.trace});
  Latch latch;
  OpeningDevice device(*timed, latch);
  HeldExecutor executor(*run.pool, latch);
  const Lanes lanes = run.train(device, executor, run.options({.compute_dtype = DType::bf16}));
  const finetune::DecoderSpec spec = finetune::make_decoder_spec(run.config);
  expect_whole_steps(lanes, spec);
  const std::vector<TraceSpan> compute = spans_of(lanes, "compute"), optimizer = spans_of(lanes, "optimizer");
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    const std::string name = "layer " + std::to_string(layer);
    const Extent update = extent(optimizer, "update " + name, 1);
    EXPECT_LE(extent(compute, "backward layer 0", 1).end_ns, update.begin_ns);
    EXPECT_LE(update.end_ns, extent(compute, "forward " + name, 2).begin_ns);
  }
  const Extent forward = extent(compute, "forward layer 0", 2);
  EXPECT_LT(extent(optimizer, "update layer 0", 1).begin_ns, forward.begin_ns);
  EXPECT_GE(extent(optimizer, "update layer 2", 1).end_ns, forward.end_ns);
}

// A run and its prediction have the same names for the same work.
TEST(TrainerTrace, PredictedLanesLieBesideTheMeasuredOnes) {
  TracedRun run;
  const TrialOptions trial{.disk = TrialDisk{}};
  finetune::TrainerOptions how = run.options(trial);
  const LaneRates rates{.copy_in_bytes_per_second = 1e6,
                        .copy_out_bytes_per_second = 1e6,
                        .disk_read_bytes_per_second = 1e6,
                        .disk_write_bytes_per_second = 1e6,
                        .disk_mixed_bytes_per_second = 1e6,
                        .optimizer_parameters_per_second = 1e6,
                        .norm_bytes_per_second = 1e6,
                        .checksum_bytes_per_second = 1e6,
                        .input_tokens_per_second = 1e6};
  const Prediction prediction = finetune::predict_step(
      *run.host, run.config, how, how.limits,
      [](const gpu::Op& op) { return 1e-9 * gpu::matmul_flops(op) + 1e-6; }, rates);
  const std::vector<StepGroup> groups{{.first_step = 1, .count = 3, .begin_ns = 1000},
                                      {.first_step = 90, .count = 2, .begin_ns = 5'000'000'000'000}};
  const Lanes lanes = predicted_lanes(prediction.tasks, prediction.processors, groups);
  expect_one_after_another(lanes);
  const finetune::DecoderSpec spec = finetune::make_decoder_spec(run.config);
  const std::vector<TraceSpan> compute = spans_of(lanes, "compute");
  EXPECT_EQ(compute.front().begin_ns, 1000);
  EXPECT_EQ(compute.front().name, "step inputs");
  for (const int64_t step : {1, 2, 3, 90, 91}) {
    for (const BlockId layer : spec.layers) {
      const std::string& name = spec.model.block(layer).name;
      SCOPED_TRACE(name + ", step " + std::to_string(step));
      EXPECT_TRUE(extent(compute, "forward " + name, step).found());
      EXPECT_TRUE(extent(compute, "backward " + name, step).found());
      EXPECT_TRUE(extent(spans_of(lanes, "optimizer"), "update " + name, step).found());
      EXPECT_GT(extent(spans_of(lanes, "copy in"), "in " + name, step).bytes, 0u);
      EXPECT_GT(extent(spans_of(lanes, "copy out"), "gradient " + name, step).bytes, 0u);
      EXPECT_GT(extent(spans_of(lanes, "disk read"), "read weights of " + name, step).bytes, 0u);
      EXPECT_GT(extent(spans_of(lanes, "disk read"), "read states of " + name, step).bytes, 0u);
      EXPECT_GT(extent(spans_of(lanes, "disk write"), "write states of " + name, step).bytes, 0u);
    }
  }
}

// In the steady state the update of the step before runs under the first forward pass that is shown.
TEST(TrainerTrace, PredictsTheUpdateUnderTheNextForward) {
  TracedRun run;
  const finetune::TrainerOptions how = run.options({});
  const LaneRates rates{.optimizer_parameters_per_second = 1e4, .input_tokens_per_second = 1e6};
  const Prediction prediction = finetune::predict_step(
      *run.host, run.config, how, how.limits, [](const gpu::Op&) { return 0.1; }, rates);
  const StepGroup group{.first_step = 90, .count = 2, .begin_ns = 0};
  const Lanes lanes = predicted_lanes(prediction.tasks, prediction.processors, {&group, 1});
  expect_one_after_another(lanes);
  const std::vector<TraceSpan> compute = spans_of(lanes, "compute"), optimizer = spans_of(lanes, "optimizer");
  EXPECT_EQ(compute.front().begin_ns, 0);
  for (const int64_t step : {89, 90}) {
    const Extent update = extent(optimizer, "update layer 1", step);
    const Extent forward = extent(compute, "forward layer 0", step + 1);
    EXPECT_LT(update.begin_ns, forward.end_ns);
    EXPECT_GT(update.end_ns, forward.begin_ns);
  }
}

TEST(TrainerTrace, SaysWhatTheTrainerWaitsFor) {
  TracedRun run;
  const auto timed = gpu::make_timed_device(
      *run.host,
      {.model = gpu::gpu_model("flops=3e8,memory=1e9,pcie=1e8,capacity=8e9"), .trace = &run.trace});
  const Lanes lanes = run.train(*timed, *run.pool, run.options({.compute_dtype = DType::bf16}));
  std::set<std::string> waits;
  for (const TraceSpan& span : spans_of(lanes, "trainer")) waits.insert(span.name);
  EXPECT_TRUE(waits.contains("wait for the losses"));  // of a GPU that takes long for anything
  for (const std::string& name : waits) EXPECT_TRUE(name.starts_with("wait for ")) << name;
}

}  // namespace
}  // namespace sluice::test
