// A small network trained in every state format: what rounding costs in loss.
#include <cmath>
#include <gtest/gtest.h>
#include <random>

#include "cpu_optim/adamw.h"
#include "tests/cpu_optim/owned_state.h"

namespace sluice::cpu_optim {
namespace {

constexpr size_t kInputs = 256, kHidden = 16, kClasses = 8, kSamples = 256, kBatch = 32;
constexpr size_t kFirstWeights = kHidden * kInputs;
constexpr int64_t kSteps = 250;

// Clusters in a space whose coordinates have scales over four decades, as activations of language models
// have: so the moments within one record span eight.
struct Data {
  std::vector<std::vector<float>> inputs;
  std::vector<size_t> classes;

  Data() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> centres(kClasses, std::vector<float>(kInputs));
    for (auto& centre : centres) {
      for (float& value : centre) value = 0.4f * normal(random);
    }
    for (size_t sample = 0; sample < kSamples; ++sample) {
      classes.push_back(sample % kClasses);
      std::vector<float> input = centres[sample % kClasses];
      for (size_t i = 0; i < kInputs; ++i) {
        input[i] = (input[i] + normal(random)) * std::pow(10.0f, static_cast<float>(i % 16) / 4 - 3.5f);
      }
      inputs.push_back(input);
    }
  }
};

std::vector<float> starting_weights() {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> weights(kFirstWeights + kClasses * kHidden);
  for (float& weight : weights) weight = to_float(to_bfloat16(normal(random)));
  return weights;
}

// Loss of one sample, and its gradient added.
float add_gradient(std::span<const BFloat16> weights, const std::vector<float>& input, size_t label,
                   std::span<float> gradient) {
  float hidden[kHidden], logits[kClasses], upstream[kHidden] = {};
  for (size_t h = 0; h < kHidden; ++h) {
    float sum = 0;
    for (size_t i = 0; i < kInputs; ++i) sum += to_float(weights[h * kInputs + i]) * input[i];
    hidden[h] = std::tanh(sum);
  }
  float total = 0;
  for (size_t c = 0; c < kClasses; ++c) {
    float sum = 0;
    for (size_t h = 0; h < kHidden; ++h)
      sum += to_float(weights[kFirstWeights + c * kHidden + h]) * hidden[h];
    logits[c] = std::exp(sum);
    total += logits[c];
  }
  for (size_t c = 0; c < kClasses; ++c) {
    const float error = logits[c] / total - (c == label ? 1.0f : 0.0f);
    for (size_t h = 0; h < kHidden; ++h) {
      gradient[kFirstWeights + c * kHidden + h] += error * hidden[h] / kBatch;
      upstream[h] += error * to_float(weights[kFirstWeights + c * kHidden + h]);
    }
  }
  for (size_t h = 0; h < kHidden; ++h) {
    const float error = upstream[h] * (1 - hidden[h] * hidden[h]) / kBatch;
    for (size_t i = 0; i < kInputs; ++i) gradient[h * kInputs + i] += error * input[i];
  }
  return -std::log(logits[label] / total);
}

float mean_loss(const Data& data, std::span<const BFloat16> weights) {
  std::vector<float> unused(weights.size());
  float sum = 0;
  for (size_t k = 0; k < kSamples; ++k) sum += add_gradient(weights, data.inputs[k], data.classes[k], unused);
  return sum / kSamples;
}

using Update = void (*)(const StateSpan& state, std::span<const float> gradient, const AdamStep& step);

float loss_after_training(const Data& data, StateFormat format, Update update_states, uint64_t seed) {
  const std::vector<float> start = starting_weights();
  OwnedState state(format, start);
  const std::span<const BFloat16> weights(state.span().weight, start.size());
  for (int64_t step = 1; step <= kSteps; ++step) {
    std::vector<float> gradient(start.size());
    for (size_t k = 0; k < kBatch; ++k) {
      const size_t sample = (static_cast<size_t>(step) * kBatch + k * 5) % kSamples;
      add_gradient(weights, data.inputs[sample], data.classes[sample], gradient);
    }
    update_states(state.span(), gradient, make_adam_step({.learning_rate = 1e-3}, step, 1, seed));
  }
  return mean_loss(data, weights);
}

void update_plainly(const StateSpan& state, std::span<const float> gradient, const AdamStep& step) {
  update(state, gradient, step);
}

// The control: a bf16 weight rounded to nearest.
void update_to_nearest(const StateSpan& state, std::span<const float> gradient, const AdamStep& step) {
  ReadState numbers(state);
  OwnedState wide(StateFormat::fp32, numbers.w);
  encode({numbers.w, numbers.m, numbers.v}, wide.span());
  update(wide.span(), gradient, step);
  decode(wide.span(), {numbers.w, numbers.m, numbers.v});
  encode({numbers.w, numbers.m, numbers.v}, state);
}

TEST(TrainingQuality, SmallFormatsLoseAtMostTwoPercentOfTheFall) {
  const Data data;
  const std::vector<float> weights = starting_weights();
  OwnedState start(StateFormat::bf16, weights);
  const float before = mean_loss(data, {start.span().weight, weights.size()});
  const float exact = loss_after_training(data, StateFormat::fp32, update_plainly, 0);
  const float fall = before - exact;
  EXPECT_GT(fall, 1.0f);
  EXPECT_EQ(loss_after_training(data, StateFormat::split, update_plainly, 0), exact);
  for (const StateFormat format : {StateFormat::split_bf16, StateFormat::bf16, StateFormat::int8}) {
    float mean = 0;
    for (const uint64_t seed : {1u, 2u, 3u})
      mean += loss_after_training(data, format, update_plainly, seed) / 3;
    EXPECT_NEAR(mean, exact, 0.02f * fall) << name(format) << ", fall " << fall;
  }
  const float nearest = loss_after_training(data, StateFormat::bf16, update_to_nearest, 0);
  EXPECT_GT(nearest, exact + 0.02f * fall) << "rounding to nearest should not be good enough";
}

}  // namespace
}  // namespace sluice::cpu_optim
