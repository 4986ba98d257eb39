// A trainer of its own over the engine, as someone outside would write it: this file knows the engine's API
// and nothing else of the tree (one test below reads its includes).
#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <string>

#include "engine/api/engine.h"
#include "tests/support/source_tree.h"
#include "tests/support/test_device.h"

namespace sluice {
namespace {

// y = W2 swiglu(W1 x), loss = sum (y - target)^2 / (2 x rows of the window).
constexpr int64_t kInputs = 6, kHidden = 10, kOutputs = 3;
constexpr int64_t kTokens = 16;  // of a micro-batch
constexpr int kMicroBatches = 4;
constexpr BlockId kFirst{0}, kSecond{1};
constexpr TensorId kW1{0}, kW2{1};
constexpr double kLearningRate = 1e-2, kMaxNorm = 1;
constexpr cpu_optim::AdamOptions kAdam{
    .learning_rate = 1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-2, .weight_decay = 0.01};

ModelSpec mlp_model() {
  return {.tensors = {{.name = "w1", .rows = 2 * kHidden, .cols = kInputs},
                      {.name = "w2", .rows = kOutputs, .cols = kHidden}},
          .blocks = {{.name = "first", .parts = {{kW1, 0, 2 * kHidden}}, .linears = {LinearUse{{0}}}},
                     {.name = "second", .parts = {{kW2, 0, kOutputs}}, .linears = {LinearUse{{0}}}}}};
}

struct Window {
  std::vector<float> x;       // (micro-batches x tokens, inputs)
  std::vector<float> target;  // (micro-batches x tokens, outputs)
};

std::vector<float> random_floats(int64_t count, uint32_t seed, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(normal(random)));
  return values;
}

// The same network in double, written down plainly: also the teacher that makes the targets.
struct DoubleMlp {
  std::vector<double> w1, w2;
  std::vector<double> d1, d2;
  std::vector<double> m1, v1, m2, v2;
  int64_t step_count = 0;

  DoubleMlp(const std::vector<float>& first, const std::vector<float>& second)
      : w1(first.begin(), first.end()),
        w2(second.begin(), second.end()),
        m1(w1.size()),
        v1(w1.size()),
        m2(w2.size()),
        v2(w2.size()) {}

  std::vector<double> forward(const float* x, std::vector<double>& gate_up,
                              std::vector<double>& hidden) const {
    gate_up.assign(2 * kHidden, 0);
    hidden.assign(kHidden, 0);
    std::vector<double> y(kOutputs);
    for (size_t n = 0; n < gate_up.size(); ++n) {
      for (size_t k = 0; k < kInputs; ++k) gate_up[n] += w1[n * kInputs + k] * static_cast<double>(x[k]);
    }
    for (size_t n = 0; n < kHidden; ++n) {
      hidden[n] = gate_up[n] / (1 + std::exp(-gate_up[n])) * gate_up[n + kHidden];
    }
    for (size_t n = 0; n < kOutputs; ++n) {
      for (size_t k = 0; k < kHidden; ++k) y[n] += w2[n * kHidden + k] * hidden[k];
    }
    return y;
  }

  // Loss and gradients of a window.
  double gradients(const Window& window) {
    const size_t rows = window.target.size() / kOutputs;
    d1.assign(w1.size(), 0);
    d2.assign(w2.size(), 0);
    double loss = 0;
    std::vector<double> gate_up, hidden;
    for (size_t row = 0; row < rows; ++row) {
      const float* x = window.x.data() + row * kInputs;
      std::vector<double> dy = forward(x, gate_up, hidden);
      for (size_t n = 0; n < kOutputs; ++n) {
        dy[n] -= static_cast<double>(window.target[row * kOutputs + n]);
        loss += dy[n] * dy[n] / 2 / static_cast<double>(rows);
        dy[n] /= static_cast<double>(rows);
      }
      for (size_t k = 0; k < kHidden; ++k) {
        double d_hidden = 0;
        for (size_t n = 0; n < kOutputs; ++n) {
          d2[n * kHidden + k] += dy[n] * hidden[k];
          d_hidden += dy[n] * w2[n * kHidden + k];
        }
        const double gate = gate_up[k], up = gate_up[k + kHidden];
        const double sigmoid = 1 / (1 + std::exp(-gate));
        const double d_gate = d_hidden * up * sigmoid * (1 + gate * (1 - sigmoid));
        const double d_up = d_hidden * gate * sigmoid;
        for (size_t i = 0; i < kInputs; ++i) {
          d1[k * kInputs + i] += d_gate * static_cast<double>(x[i]);
          d1[(k + kHidden) * kInputs + i] += d_up * static_cast<double>(x[i]);
        }
      }
    }
    return loss;
  }

  // One AdamW step; returns the gradient norm.
  double update() {
    double squares = 0;
    for (const double value : d1) squares += value * value;
    for (const double value : d2) squares += value * value;
    const double norm = std::sqrt(squares);
    const double clip = std::min(1.0, kMaxNorm / (norm + 1e-6));
    ++step_count;
    const auto adam = [&](std::vector<double>& w, std::vector<double>& m, std::vector<double>& v,
                          const std::vector<double>& gradient) {
      const double t = static_cast<double>(step_count);
      for (size_t i = 0; i < w.size(); ++i) {
        const double g = gradient[i] * clip;
        m[i] = kAdam.beta1 * m[i] + (1 - kAdam.beta1) * g;
        v[i] = kAdam.beta2 * v[i] + (1 - kAdam.beta2) * g * g;
        w[i] -= kLearningRate * kAdam.weight_decay * w[i];
        w[i] -= kLearningRate * (m[i] / (1 - std::pow(kAdam.beta1, t))) /
                (std::sqrt(v[i] / (1 - std::pow(kAdam.beta2, t))) + kAdam.epsilon);
      }
    };
    adam(w1, m1, v1, d1);
    adam(w2, m2, v2, d2);
    return norm;
  }
};

std::vector<float> initial_w1() {
  return random_floats(2 * kHidden * kInputs, 1, 0.5);
}
std::vector<float> initial_w2() {
  return random_floats(kOutputs * kHidden, 2, 0.5);
}

Window window_of_step(int step) {
  static const DoubleMlp kTeacher(random_floats(2 * kHidden * kInputs, 11, 0.6),
                                  random_floats(kOutputs * kHidden, 12, 0.6));
  Window window;
  window.x = random_floats(kMicroBatches * kTokens * kInputs, 100 + static_cast<uint32_t>(step % 8), 1);
  std::vector<double> gate_up, hidden;
  for (size_t row = 0; row < kMicroBatches * kTokens; ++row) {
    for (const double y : kTeacher.forward(window.x.data() + row * kInputs, gate_up, hidden)) {
      window.target.push_back(static_cast<float>(y));
    }
  }
  return window;
}

struct MlpOptions {
  int prefetch_distance = 1;
  int gradient_shards = 1;
  Recompute recompute = Recompute::none;
  std::optional<size_t> device_limit_bytes;
  bool interleave_shards = false;
};

struct MlpReport {
  double loss = 0;
  double gradient_norm = 0;
};

// What both trainers share: the network's ops on views, and memory for one step's data.
class MlpTrainer {
 public:
  MlpTrainer(test::TestDevice& host, const MlpOptions& options) : host_(host), options_(options) {}
  virtual ~MlpTrainer() = default;
  virtual MlpReport step(const Window& window) = 0;
  Engine& engine() { return *engine_; }

  std::vector<float> weights(TensorId tensor) {
    engine_->wait();
    const TensorSpec& spec = engine_->store().model().tensor(tensor);
    std::vector<float> values(static_cast<size_t>(spec.rows * spec.cols));
    engine_->store().read_rows(tensor, 0, spec.rows, values.data());
    return values;
  }

 protected:
  struct Activations {
    gpu::View x, target, gate_up, hidden, y, d_hidden;
  };

  void make_engine(std::vector<Access> accesses, std::vector<TapeLayerNeeds> tape,
                   std::vector<PlanPart> parts, bool device_gradients) {
    const auto part = [&](const char* name, int64_t cols) {
      parts.push_back({name, Tier::device, kMicroBatches * static_cast<size_t>(kTokens * cols) * 4, 0});
    };
    part("x", kInputs);
    part("targets", kOutputs);
    part("gate_up", 2 * kHidden);
    part("hidden", kHidden);
    part("y", kOutputs);
    part("d_hidden", kHidden);
    WalkSpec walk{.accesses = std::move(accesses),
                  .tape = std::move(tape),
                  .micro_batch_count = kMicroBatches,
                  .fixed_parts = std::move(parts),
                  .workspace_bytes = workspace_bytes(),
                  .device_gradients = device_gradients};
    engine_ = std::make_unique<Engine>(
        host_.device(), host_.pool(), mlp_model(), std::move(walk),
        EngineOptions{.prefetch_distance = options_.prefetch_distance,
                      .gradient_shards = options_.gradient_shards,
                      .recompute = options_.recompute,
                      .device_limit_bytes = options_.device_limit_bytes,
                      .training = true,
                      .optimizer = {.groups = {kAdam}, .max_gradient_norm = kMaxNorm}});
    engine_->store().write_rows(kW1, 0, 2 * kHidden, initial_w1().data());
    engine_->store().write_rows(kW2, 0, kOutputs, initial_w2().data());
  }

  // The most that any of the ops wants, asked with shapes only.
  size_t workspace_bytes() const {
    const auto shape = [&](int64_t cols) { return gpu::View(nullptr, DType::f32, kTokens, cols); };
    const gpu::Ops& ops = host_.device().ops();
    size_t most = 0;
    for (const auto& [block, rows, cols] :
         {std::tuple{kFirst, 2 * kHidden, kInputs}, std::tuple{kSecond, kOutputs, kHidden}}) {
      const PreparedBlock weights = Engine::shape_of(host_.device(), mlp_model(), block, DType::f32);
      most = std::max(
          {most, ops.workspace_bytes(gpu::LinearForward{shape(cols), weights.forward(0), {}, shape(rows)}),
           ops.workspace_bytes(gpu::LinearBackwardInput{shape(rows), weights.backward(0), shape(cols)}),
           ops.workspace_bytes(gpu::LinearBackwardWeight{shape(rows), shape(cols),
                                                         gpu::View(nullptr, DType::f32, rows, cols)})});
    }
    return most;
  }

  gpu::View part(const char* name, int micro_batch, int64_t cols) const {
    std::byte* const begin = engine_->device_part(name);
    const size_t stride = static_cast<size_t>(kTokens * cols) * 4;
    return {begin + static_cast<size_t>(micro_batch) * stride, DType::f32, kTokens, cols};
  }
  Activations activations(int batch) const {
    return {part("x", batch, kInputs),           part("targets", batch, kOutputs),
            part("gate_up", batch, 2 * kHidden), part("hidden", batch, kHidden),
            part("y", batch, kOutputs),          part("d_hidden", batch, kHidden)};
  }

  void upload(const Window& window) {
    uploaded_.clear();
    const auto send = [&](const char* name, const std::vector<float>& values, float factor) {
      std::vector<float>& kept = uploaded_.emplace_back();
      for (const float value : values) kept.push_back(factor * value);
      engine_->upload(engine_->device_part(name), kept.data(), kept.size() * 4);
    };
    send("x", window.x, 1);
    send("targets", window.target, -1);  // so that Add subtracts
  }

  void forward_first(const Lease& weights, const Activations& at) {
    engine_->submit(gpu::LinearForward{at.x, weights->forward(0), {}, at.gate_up});
  }
  // y becomes its own gradient, and what the loss is computed from leaves for the host.
  void second(const Lease& weights, const Activations& at, int batch) {
    engine_->submit(gpu::SwigluForward{at.gate_up, at.hidden});
    engine_->submit(gpu::LinearForward{at.hidden, weights->forward(0), {}, at.y});
    engine_->submit(gpu::Add{at.y, at.target, at.y});
    std::vector<float>& error = errors_[static_cast<size_t>(batch)];
    error.resize(kTokens * kOutputs);
    const gpu::Event copied = engine_->download(error.data(), at.y.data, error.size() * 4);
    engine_->compute().wait(copied);  // what is scaled next is what is being copied
    errors_copied_.push_back(copied);
    engine_->submit(gpu::Scale{at.y, 1.0F / (kMicroBatches * kTokens)});
    engine_->submit(gpu::LinearBackwardInput{at.y, weights->backward(0), at.d_hidden});
  }
  // The gradient at gate_up, in its place.
  void backward_swiglu(const Activations& at) {
    engine_->submit(gpu::SwigluBackward{at.gate_up, at.d_hidden, at.gate_up, {}});
  }

  double loss() {
    double sum = 0;
    for (const gpu::Event& event : errors_copied_) event.wait();
    errors_copied_.clear();
    for (const std::vector<float>& error : errors_) {
      for (const float value : error) sum += static_cast<double>(value) * static_cast<double>(value);
    }
    return sum / 2 / (kMicroBatches * kTokens);
  }

  // Micro-batches in the order in which they are computed: shards one after another, or in turn.
  std::vector<int> order() const {
    std::vector<int> batches;
    for (int batch = 0; batch < kMicroBatches; ++batch) batches.push_back(batch);
    if (!options_.interleave_shards) return batches;
    std::vector<int> in_turn;
    for (size_t round = 0; in_turn.size() < batches.size(); ++round) {
      for (int shard = 0; shard < options_.gradient_shards; ++shard) {
        size_t position = 0;
        for (const int batch : batches) {
          if (shard_of(batch, kMicroBatches, options_.gradient_shards) != shard) continue;
          if (position++ == round) in_turn.push_back(batch);
        }
      }
    }
    return in_turn;
  }
  int shard(int batch) const { return shard_of(batch, kMicroBatches, options_.gradient_shards); }

  test::TestDevice& host_;
  const MlpOptions options_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<float>> uploaded_;
  std::array<std::vector<float>, kMicroBatches> errors_;
  std::vector<gpu::Event> errors_copied_;
};

// Micro-batch-major, with gradients of its own: each micro-batch goes through the whole network before the
// next, sums lie in device memory that the engine knows by name and size only, and come back to it from the
// host.
class OwnGradientsTrainer final : public MlpTrainer {
 public:
  OwnGradientsTrainer(test::TestDevice& host, const MlpOptions& options) : MlpTrainer(host, options) {
    std::vector<Access> accesses;
    for (int batch = 0; batch < kMicroBatches; ++batch) {
      accesses.push_back(
          {.block = kFirst, .layouts = {.forward = true}, .micro_batches = {batch, batch + 1}});
      accesses.push_back({.block = kSecond,
                          .phase = Phase::turnaround,
                          .layouts = {.forward = true, .backward = true},
                          .micro_batches = {batch, batch + 1}});
    }
    const size_t shards = static_cast<size_t>(options.gradient_shards);
    make_engine(std::move(accesses), {},
                {{"own gradients 1", Tier::device, shards * logical_bytes(kFirst), 0},
                 {"own gradients 2", Tier::device, shards * logical_bytes(kSecond), 0}},
                false);
  }

  MlpReport step(const Window& window) override {
    engine_->begin_walk();
    upload(window);
    std::vector<bool> begun(static_cast<size_t>(options_.gradient_shards));
    for (const int batch : order()) {
      const Activations at = activations(batch);
      const bool accumulate = begun[static_cast<size_t>(shard(batch))];
      begun[static_cast<size_t>(shard(batch))] = true;
      {
        const Lease first = engine_->acquire(kFirst);
        forward_first(first, at);
      }
      const Lease weights = engine_->acquire(kSecond);
      second(weights, at, batch);
      engine_->submit(gpu::LinearBackwardWeight{at.y, at.hidden, sum(kSecond, shard(batch)), accumulate});
      backward_swiglu(at);
      engine_->submit(gpu::LinearBackwardWeight{at.gate_up, at.x, sum(kFirst, shard(batch)), accumulate});
    }
    MlpReport report;
    for (const BlockId block : {kFirst, kSecond}) offer(block);
    report.loss = loss();
    engine_->begin_update(kLearningRate, std::array{kFirst, kSecond});
    report.gradient_norm = engine_->update_report().gradient_norm;
    return report;
  }

 private:
  static size_t logical_bytes(BlockId block) {
    return static_cast<size_t>(BlockLayout(mlp_model(), block).logical_elements()) * 4;
  }
  std::byte* sums(BlockId block, int shard) const {
    return engine_->device_part(block == kFirst ? "own gradients 1" : "own gradients 2") +
           static_cast<size_t>(shard) * logical_bytes(block);
  }
  gpu::View sum(BlockId block, int shard) const {
    const BlockLayout::Part& part = engine_->store().layout(block).part(0);
    return {sums(block, shard) + part.span_begin * 4, DType::f32, part.rows, part.cols};
  }
  void offer(BlockId block) {
    for_each_tree_step(options_.gradient_shards, [&](int into, int from) {
      engine_->submit(gpu::Add{sum(block, into), sum(block, from), sum(block, into)});
    });
    std::vector<float> gradient(static_cast<size_t>(engine_->store().layout(block).logical_elements()));
    engine_->download(gradient.data(), sums(block, 0), gradient.size() * 4).wait();
    engine_->offer_from_host(block, gradient);
  }
};

// Layer-major, with the engine's gradient buffers and its tape: forward's gate_up is kept or computed again.
class EngineGradientsTrainer final : public MlpTrainer {
 public:
  EngineGradientsTrainer(test::TestDevice& host, const MlpOptions& options) : MlpTrainer(host, options) {
    const MicroBatchRange all{0, kMicroBatches};
    const size_t row_bytes = static_cast<size_t>(kTokens) * 4;
    make_engine(
        {{.block = kFirst, .layouts = {.forward = true}, .micro_batches = all, .tape_layer = 0},
         {.block = kSecond,
          .phase = Phase::turnaround,
          .layouts = {.forward = true, .backward = true},
          .micro_batches = all},
         {.block = kFirst, .phase = Phase::backward, .layouts = {}, .micro_batches = all, .tape_layer = 0}},
        {{"first", kInputs * row_bytes, 2 * kHidden * row_bytes}}, {}, true);
  }

  MlpReport step(const Window& window) override {
    engine_->begin_walk();
    upload(window);
    {
      const Lease first = engine_->acquire(kFirst);
      for (int batch = 0; batch < kMicroBatches; ++batch) forward_first(first, taped(batch));
    }
    {
      const Lease weights = engine_->acquire(kSecond);
      GradientLease gradients = engine_->gradients(kSecond);
      for (const int batch : order()) {
        Activations at = taped(batch);
        // Where gate_up is computed again, the tape holds that of the last micro-batch only, and forward left
        // a copy for this layer: its input, as a deeper network's boundary would be.
        if (engine_->tape().recomputes(0)) at.gate_up = part("gate_up", batch, 2 * kHidden);
        second(weights, at, batch);
        add(gradients, at.y, at.hidden, batch);
      }
      engine_->offer(std::move(gradients));
    }
    {
      const Lease first = engine_->acquire(kFirst);
      GradientLease gradients = engine_->gradients(kFirst);
      for (const int batch : order()) {
        const Activations at = taped(batch);
        if (engine_->tape().recomputes(0)) forward_first(first, at);
        backward_swiglu(at);
        add(gradients, at.gate_up, at.x, batch);
      }
      engine_->offer(std::move(gradients));
    }
    MlpReport report{.loss = loss()};
    engine_->begin_update(kLearningRate, std::array{kFirst, kSecond});
    report.gradient_norm = engine_->update_report().gradient_norm;
    return report;
  }

 private:
  // The same activations, with gate_up on the tape.
  Activations taped(int batch) const {
    Activations at = activations(batch);
    at.gate_up.data = engine_->tape().saved(0, batch).data;
    return at;
  }
  void forward_first(const Lease& weights, const Activations& at) {
    MlpTrainer::forward_first(weights, at);
    if (!engine_->tape().recomputes(0)) return;
    const int batch =
        static_cast<int>((at.x.data - engine_->device_part("x")) / static_cast<ptrdiff_t>(at.x.span_bytes()));
    engine_->submit(gpu::Cast{at.gate_up, part("gate_up", batch, 2 * kHidden)});
  }
  void add(GradientLease& gradients, const gpu::View& dy, const gpu::View& x, int batch) {
    const GradientLease::Target target = gradients.contribute(0, shard(batch));
    engine_->submit(gpu::LinearBackwardWeight{dy, x, target.sum, target.accumulate});
  }
};

template <class Trainer>
uint64_t hash_after(int steps, const MlpOptions& options, const test::TestDeviceOptions& device = {}) {
  test::TestDevice host(device);
  Trainer trainer(host, options);
  for (int step = 0; step < steps; ++step) (void)trainer.step(window_of_step(step));
  return trainer.engine().state_hash();
}

template <class Trainer>
void expect_matches_the_double_loop() {
  test::TestDevice host;
  Trainer trainer(host, {});
  DoubleMlp plain(initial_w1(), initial_w2());
  constexpr int kSteps = 20;
  constexpr double kUnit = 0x1p-24;
  // A gradient sums rows x (1 + chains of at most 2 hidden + inputs) products of numbers around 1, divided by
  // the rows; lambda = 6 standard deviations of that many roundings (tests/support/tolerance.h has the
  // source).
  const double gradient_error =
      6 * std::sqrt(static_cast<double>(kMicroBatches * kTokens + 2 * kHidden + kInputs)) * kUnit * 4;
  // Adam divides by at least epsilon; a weight of about 1 is rounded twice a step.
  const double step_error = kLearningRate * gradient_error / kAdam.epsilon + 4 * kUnit;
  for (int step = 0; step < kSteps; ++step) {
    const Window window = window_of_step(step);
    const MlpReport report = trainer.step(window);
    const double loss = plain.gradients(window);
    const double norm = plain.update();
    const double error =
        gradient_error + 10 * step_error * step;  // weights that are off make losses that are off
    EXPECT_NEAR(report.loss, loss, error * (1 + loss)) << "step " << step;
    EXPECT_NEAR(report.gradient_norm, norm, error * (1 + norm)) << "step " << step;
  }
  const auto expect_weights = [&](TensorId tensor, const std::vector<double>& expected) {
    const std::vector<float> actual = trainer.weights(tensor);
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(actual[i]), expected[i], kSteps * step_error) << "element " << i;
    }
  };
  expect_weights(kW1, plain.w1);
  expect_weights(kW2, plain.w2);
}

TEST(MlpTrainer, OwnGradientsMatchTheDoubleLoop) {
  expect_matches_the_double_loop<OwnGradientsTrainer>();
}

TEST(MlpTrainer, EngineGradientsMatchTheDoubleLoop) {
  expect_matches_the_double_loop<EngineGradientsTrainer>();
}

template <class Trainer>
void expect_converges() {
  test::TestDevice host;
  Trainer trainer(host, {});
  const double first = trainer.step(window_of_step(0)).loss;
  double last = first;
  for (int step = 1; step < 400; ++step) last = trainer.step(window_of_step(step)).loss;
  EXPECT_LT(last, 0.05 * first) << "from " << first;
  EXPECT_EQ(trainer.engine().applied_steps(), 400);
}

TEST(MlpTrainer, OwnGradientsConverge) {
  expect_converges<OwnGradientsTrainer>();
}

TEST(MlpTrainer, EngineGradientsConverge) {
  expect_converges<EngineGradientsTrainer>();
}

TEST(MlpTrainer, BothWaysHaveTheSameBits) {
  EXPECT_EQ(hash_after<OwnGradientsTrainer>(5, {}), hash_after<EngineGradientsTrainer>(5, {}));
}

TEST(MlpTrainer, BitsDoNotDependOnThreadsDelaysPrefetchOrMemory) {
  const uint64_t expected = hash_after<EngineGradientsTrainer>(5, {});
  for (const int threads : {1, 3}) {
    EXPECT_EQ(hash_after<EngineGradientsTrainer>(5, {}, {.thread_count = threads}), expected);
    EXPECT_EQ(hash_after<OwnGradientsTrainer>(5, {}, {.thread_count = threads}), expected);
  }
  for (const int distance : {0, 2, 3}) {
    EXPECT_EQ(hash_after<EngineGradientsTrainer>(5, {.prefetch_distance = distance}, {.delay_seed = 7}),
              expected);
    EXPECT_EQ(hash_after<OwnGradientsTrainer>(5, {.prefetch_distance = distance}, {.delay_seed = 8}),
              expected);
  }
  EXPECT_EQ(hash_after<EngineGradientsTrainer>(5, {.recompute = Recompute::all}), expected);
}

// As on a GPU, whose memory is worth keeping prepared weights in.
TEST(MlpTrainer, BitsDoNotDependOnKeptWeights) {
  const uint64_t expected = hash_after<EngineGradientsTrainer>(5, {});
  test::TestDevice host({.delay_seed = 4, .shares_host_memory = false});
  EngineGradientsTrainer keeping(host, {});
  EXPECT_GT(keeping.engine().plan().part(plan_part::kKept).size_bytes, 0u);
  for (int step = 0; step < 5; ++step) (void)keeping.step(window_of_step(step));
  EXPECT_EQ(keeping.engine().state_hash(), expected);
  for (const bool recompute : {false, true}) {
    EXPECT_EQ(hash_after<OwnGradientsTrainer>(5, {}, {.delay_seed = 5, .shares_host_memory = false}),
              expected);
    EXPECT_EQ(
        hash_after<EngineGradientsTrainer>(5, {.recompute = recompute ? Recompute::all : Recompute::none},
                                           {.delay_seed = 6, .shares_host_memory = false}),
        expected);
  }
}

// The least memory that the plan names is enough, gives the same bits, and one byte less is refused with its
// number.
TEST(MlpTrainer, TheLeastMemoryIsEnough) {
  const uint64_t expected = hash_after<EngineGradientsTrainer>(5, {});
  test::TestDevice host({.shares_host_memory = false});
  size_t least = 0;
  try {
    EngineGradientsTrainer trainer(host, {.recompute = Recompute::automatic, .device_limit_bytes = 1});
    FAIL() << "one byte was enough";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    const std::string text = error.what();
    least = std::stoull(text.substr(text.find('(') + 1));
  }
  EXPECT_EQ(
      hash_after<EngineGradientsTrainer>(5, {.recompute = Recompute::automatic, .device_limit_bytes = least},
                                         {.shares_host_memory = false}),
      expected);
  EXPECT_THROW(
      EngineGradientsTrainer(host, {.recompute = Recompute::automatic, .device_limit_bytes = least - 1}),
      Error);
  EXPECT_EQ(host.used_bytes(), 0u);
}

TEST(MlpTrainer, ShardsAreSummedByATreeInWhateverOrderTheyAreComputed) {
  for (const int shards : {2, 3, 4}) {
    const uint64_t expected = hash_after<OwnGradientsTrainer>(5, {.gradient_shards = shards});
    EXPECT_EQ(hash_after<EngineGradientsTrainer>(5, {.gradient_shards = shards}), expected);
    const MlpOptions interleaved{.gradient_shards = shards, .interleave_shards = true};
    EXPECT_EQ(hash_after<EngineGradientsTrainer>(5, interleaved), expected);
  }
  EXPECT_NE(hash_after<EngineGradientsTrainer>(5, {.gradient_shards = 4}),
            hash_after<EngineGradientsTrainer>(5, {}))
      << "S enters the bits, so it belongs to a run's identity";
}

TEST(MlpTrainer, MemoryAndCopiesAreWhatThePlanSays) {
  test::TestDevice host;
  {
    EngineGradientsTrainer trainer(host, {});
    const Plan& plan = trainer.engine().plan();
    EXPECT_EQ(host.used_bytes(), plan.peak_bytes(Tier::device));
    for (int step = 0; step < 3; ++step) (void)trainer.step(window_of_step(step));
    EXPECT_EQ(host.used_bytes(), plan.peak_bytes(Tier::device));
    EXPECT_EQ(trainer.engine().counters().copied_in_bytes, 3 * plan.copy_in_bytes_per_walk);
    EXPECT_EQ(trainer.engine().counters().copied_out_bytes, 3 * plan.copy_out_bytes_per_walk);
    EXPECT_EQ(plan.part(plan_part::kGradients).tier, Tier::device);
    const OwnGradientsTrainer own(host, {});
  }
  EXPECT_EQ(host.used_bytes(), 0u);
  OwnGradientsTrainer own(host, {});
  EXPECT_EQ(own.engine().plan().part(plan_part::kGradients).size_bytes, 0u) << "it has its own";
  EXPECT_EQ(own.engine().plan().copy_out_bytes_per_walk, 0u);
}

TEST(MlpTrainer, KnowsTheApiOnly) {
  std::ifstream file(test::source_folder() / "tests/engine/api/mlp_trainer_test.cpp");
  std::vector<std::string> ours;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("#include \"") || line.find("tests/support/") != std::string::npos) continue;
    ours.push_back(line.substr(10, line.rfind('"') - 10));
  }
  EXPECT_EQ(ours, (std::vector<std::string>{"engine/api/engine.h"}));
}

}  // namespace
}  // namespace sluice
