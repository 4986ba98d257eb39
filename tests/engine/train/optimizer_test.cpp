#include "engine/train/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "cpu_optim/norm.h"
#include "cpu_optim/state_codec.h"
#include "engine/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_device.h"

namespace sluice {
namespace {

constexpr BlockId kBig{0}, kMixed{1}, kTableBegin{2}, kTableEnd{3}, kFrozen{4};
constexpr TensorId kTable{3};
using cpu_optim::StateFormat;
const std::vector<BlockId> kAll{kBig, kMixed, kTableBegin, kTableEnd};

ModelSpec model(StateFormat format) {
  return {.tensors = {{.name = "big", .rows = 601, .cols = 1000},  // three chunks of the norm
                      {.name = "norm", .rows = 1, .cols = 300, .group = 1},
                      {.name = "matrix", .rows = 10, .cols = 30},
                      {.name = "table", .rows = 100, .cols = 16},
                      {.name = "frozen", .rows = 5, .cols = 5, .trainable = false}},
          .blocks = {{.name = "big", .parts = {{TensorId{0}, 0, 601}}},
                     {.name = "mixed", .parts = {{TensorId{1}, 0, 1}, {TensorId{2}, 0, 10}}},
                     {.name = "table begin", .parts = {{kTable, 0, 40}}},
                     {.name = "table end", .parts = {{kTable, 40, 100}}},
                     {.name = "frozen", .parts = {{TensorId{4}, 0, 5}}}},
          .state_format = format};
}

OptimizerOptions options(double max_norm = 0) {
  return {.groups = {{.learning_rate = 1, .weight_decay = 0.1}, {.learning_rate = 0.5, .weight_decay = 0}},
          .seed = 42,
          .max_gradient_norm = max_norm};
}

// The order that cpu_optim/norm.h describes, written plainly.
double tree(const std::vector<double>& values, size_t begin, size_t count) {
  if (count == 0) return 0;
  if (count == 1) return values[begin];
  size_t left = 1;
  while (left * 2 < count) left *= 2;
  return tree(values, begin, left) + tree(values, begin + left, count - left);
}
double chunk_sum(const float* values, size_t count) {
  std::array<double, 32> sums{};
  for (size_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(values[i]);
    sums[i % 32] += value * value;
  }
  for (size_t width = 16; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return sums[0];
}

// A host loop that fails, or is held, from the n-th on.
class TrickyExecutor final : public Executor {
 public:
  explicit TrickyExecutor(Executor& inner) : inner_(inner) {}
  int thread_count() const override { return inner_.thread_count(); }
  void run(int64_t task_count, const Body& body) override {
    const int number = loop_count++;
    if (number == fail_at) throw Error(ErrorKind::resource, "no threads left");
    if (number >= hold_from) open.wait(false);
    inner_.run(task_count, body);
  }
  std::atomic<int> loop_count = 0;
  std::atomic<int> fail_at = -1;
  std::atomic<int> hold_from = std::numeric_limits<int>::max();
  std::atomic<bool> open = false;

 private:
  Executor& inner_;
};

class OptimizerTest : public testing::TestWithParam<std::tuple<DType, StateFormat>> {
 protected:
  static DType dtype() { return std::get<0>(GetParam()); }
  static StateFormat format() { return std::get<1>(GetParam()); }

  OptimizerTest() {
    std::mt19937 random(1);
    for (int32_t tensor = 0; tensor < 5; ++tensor) {
      const TensorSpec& spec = store_.model().tensor(TensorId{tensor});
      std::vector<float> values(static_cast<size_t>(spec.rows * spec.cols));
      for (float& value : values) value = std::normal_distribution<float>()(random);
      store_.write_rows(TensorId{tensor}, 0, spec.rows, values.data());
    }
  }

  // `table_dtype`: of the two table blocks; the others wait in the parameter's dtype.
  std::unique_ptr<Optimizer> make(OptimizerOptions with, DType table_dtype = dtype()) {
    return std::make_unique<Optimizer>(
        store_, host_.device(), executor_, budget_,
        std::vector<DType>{dtype(), dtype(), table_dtype, table_dtype, dtype()}, std::move(with));
  }

  // A gradient as it waits: zero in the padding, rounded to the waiting dtype.
  std::vector<float> gradient(BlockId block, uint32_t seed, float scale = 0.1F) {
    const BlockLayout& layout = store_.layout(block);
    std::vector<float> values(static_cast<size_t>(layout.logical_elements()));
    std::mt19937 random(seed * 100 + static_cast<uint32_t>(block.value));
    for (const BlockLayout::Part& part : layout.parts()) {
      if (!part.trainable) continue;
      for (int64_t i = 0; i < part.element_count(); ++i) {
        const float value = scale * std::normal_distribution<float>()(random);
        values[static_cast<size_t>(part.span_begin + i)] =
            dtype() == DType::bf16 ? to_float(to_bfloat16(value)) : value;
      }
    }
    return values;
  }
  // As if it had come from the device.
  gpu::Event arrive(Optimizer& optimizer, BlockId block, const std::vector<float>& values) {
    std::byte* const to = optimizer.waiting_gradient(block);
    if (store_.version_ready(block)) arrivals_->wait(*store_.version_ready(block));
    arrivals_->run({"arrive",
                    {gpu::writes(to, optimizer.waiting_bytes(block))},
                    [to, values, bf16 = optimizer.waiting_dtype(block) == DType::bf16] {
                      for (size_t i = 0; i < values.size(); ++i) {
                        if (bf16) {
                          reinterpret_cast<BFloat16*>(to)[i] = to_bfloat16(values[i]);
                        } else {
                          reinterpret_cast<float*>(to)[i] = values[i];
                        }
                      }
                    }});
    return arrivals_->record();
  }
  void offer(Optimizer& optimizer, BlockId block, const std::vector<float>& values) {
    optimizer.offer(block, arrive(optimizer, block, values));
  }
  void offer_all(Optimizer& optimizer, uint32_t seed, float scale = 0.1F) {
    for (const BlockId block : {kTableEnd, kBig, kMixed, kTableBegin}) {
      offer(optimizer, block, gradient(block, seed, scale));
    }
  }

  double direct_norm(const std::vector<std::pair<BlockId, std::vector<float>>>& gradients) {
    std::vector<double> sums;
    for (int block = 0; block < store_.block_count(); ++block) {
      const size_t count = static_cast<size_t>(store_.layout(BlockId{block}).logical_elements());
      const auto found =
          std::ranges::find(gradients, BlockId{block}, [](const auto& pair) { return pair.first; });
      for (size_t begin = 0; begin < count; begin += 262144) {
        sums.push_back(found == gradients.end() ? 0
                                                : chunk_sum(found->second.data() + begin,
                                                            std::min(count - begin, size_t{262144})));
      }
    }
    return std::sqrt(tree(sums, 0, sums.size()));
  }

  struct Copy {
    cpu_optim::StateSpan like;
    std::vector<BFloat16> high;
    std::vector<std::byte> low, m, v;
    cpu_optim::StateSpan span() {
      cpu_optim::StateSpan span = like;
      span.weight = high.data();
      span.low = low.empty() ? nullptr : low.data();
      span.first_moment = m.data();
      span.second_moment = v.data();
      return span;
    }
  };
  Copy copy(BlockId block) {
    const BlockState state = store_.state(block);
    return {store_.states(block),
            {state.high.begin(), state.high.end()},
            {state.low.begin(), state.low.end()},
            {state.first_moment.begin(), state.first_moment.end()},
            {state.second_moment.begin(), state.second_moment.end()}};
  }
  // Of one element.
  struct Numbers {
    float weight = 0, m = 0, v = 0;
  };
  Numbers numbers(BlockId block, int64_t element) {
    const cpu_optim::StateSpan all = store_.states(block);
    const size_t count = static_cast<size_t>(all.size);
    std::vector<float> w(count), m(count), v(count);
    cpu_optim::decode(all, {w, m, v});
    const size_t at = static_cast<size_t>(element);
    return {w[at], m[at], v[at]};
  }
  void expect_equal(BlockId block, const Copy& expected) {
    const BlockState state = store_.state(block);
    const auto same = [](auto span, const auto& vector) {
      return span.size() == vector.size() &&
             (span.empty() || std::memcmp(span.data(), vector.data(), span.size_bytes()) == 0);
    };
    EXPECT_TRUE(same(state.high, expected.high)) << "block " << block.value;
    EXPECT_TRUE(same(state.low, expected.low)) << "block " << block.value;
    EXPECT_TRUE(same(state.first_moment, expected.m)) << "block " << block.value;
    EXPECT_TRUE(same(state.second_moment, expected.v)) << "block " << block.value;
  }
  // AdamW by one call a part, no executor, no pieces.
  void update_directly(BlockId block, Copy& to, const std::vector<float>& values, double learning_rate,
                       int64_t number, float scale) {
    for (const BlockLayout::Part& part : store_.layout(block).parts()) {
      cpu_optim::AdamOptions group = options().groups[static_cast<size_t>(part.group)];
      group.learning_rate *= learning_rate;
      cpu_optim::update(to.span().subrange(part.span_begin, part.element_count()),
                        cpu_optim::FloatView(values).subrange(part.span_begin, part.element_count()),
                        cpu_optim::make_adam_step(group, number, scale, options().seed));
    }
  }

  test::TestDevice host_{{.thread_count = 3, .delay_seed = 9}};
  TrickyExecutor executor_{host_.pool()};
  TierBudget budget_{Tier::host};
  TensorStore store_{model(format()), host_.device(), budget_, true};
  std::unique_ptr<gpu::Stream> arrivals_ = host_.device().make_stream(gpu::StreamKind::cpu, "arrivals");
};

TEST_P(OptimizerTest, NormIsThatOfTheDirectComputation) {
  const auto optimizer = make(options());
  std::vector<std::pair<BlockId, std::vector<float>>> gradients;
  for (const BlockId block : {kMixed, kTableEnd, kBig, kTableBegin}) {
    gradients.emplace_back(block, gradient(block, 3));
    offer(*optimizer, block, gradients.back().second);
  }
  optimizer->begin_update(1e-3, kAll);
  const UpdateReport report = optimizer->report();
  EXPECT_EQ(report.gradient_norm, direct_norm(gradients)) << "to the last bit";
  EXPECT_FALSE(report.skipped);
  // The next step has fewer gradients: the others must not count.
  offer(*optimizer, kMixed, gradients[0].second);
  optimizer->begin_update(1e-3, kAll);
  EXPECT_EQ(optimizer->report().gradient_norm, direct_norm({gradients[0]}));
  // And one without any.
  optimizer->begin_update(1e-3, kAll);
  EXPECT_EQ(optimizer->report().gradient_norm, 0.0);
  optimizer->wait();
}

TEST_P(OptimizerTest, StepsEqualAdamWByHandOverGroupsAndSteps) {
  const auto optimizer = make(options());
  std::vector<Copy> expected;
  for (const BlockId block : kAll) expected.push_back(copy(block));
  for (int64_t step = 1; step <= 3; ++step) {
    const double learning_rate = 1e-2 / static_cast<double>(step);
    offer_all(*optimizer, static_cast<uint32_t>(step));
    optimizer->begin_update(learning_rate, kAll);
    for (size_t i = 0; i < kAll.size(); ++i) {
      update_directly(kAll[i], expected[i], gradient(kAll[i], static_cast<uint32_t>(step)), learning_rate,
                      step, 1);
    }
    (void)optimizer->report();
    EXPECT_EQ(optimizer->applied_steps(), step);
  }
  optimizer->wait();
  for (size_t i = 0; i < kAll.size(); ++i) expect_equal(kAll[i], expected[i]);
  // The parts are padded: nothing is written there.
  EXPECT_EQ(numbers(kMixed, 300).m, 0.0F);
  EXPECT_EQ(store_.state(kMixed).high[511].bits, 0);
}

TEST_P(OptimizerTest, ClipsByTheNormOfAllBlocks) {
  const auto optimizer = make(options(0.5));
  std::vector<Copy> expected;
  for (const BlockId block : kAll) expected.push_back(copy(block));
  offer_all(*optimizer, 1);
  optimizer->begin_update(1e-2, kAll);
  const double norm = optimizer->report().gradient_norm;
  ASSERT_GT(norm, 0.5) << "reported before clipping";
  for (size_t i = 0; i < kAll.size(); ++i) {
    update_directly(kAll[i], expected[i], gradient(kAll[i], 1), 1e-2, 1,
                    static_cast<float>(0.5 / (norm + 1e-6)));
  }
  optimizer->wait();
  for (size_t i = 0; i < kAll.size(); ++i) expect_equal(kAll[i], expected[i]);
}

TEST_P(OptimizerTest, ANormThatIsNotFiniteLeavesEveryByte) {
  for (const double max_norm : {0.0, 1.0}) {
    const auto optimizer = make(options(max_norm));
    int64_t applied = 0;
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      for (const BlockId where : {kBig, kTableEnd}) {
        optimizer->wait();
        const uint64_t before = store_.hash();
        for (const BlockId block : kAll) {
          std::vector<float> values = gradient(block, 1);
          if (block == where) values[values.size() / 3] = bad;
          offer(*optimizer, block, values);
        }
        optimizer->begin_update(1e-2, kAll);
        const UpdateReport report = optimizer->report();
        EXPECT_TRUE(report.skipped);
        EXPECT_FALSE(std::isfinite(report.gradient_norm));
        optimizer->wait();
        EXPECT_EQ(store_.hash(), before);
        EXPECT_EQ(optimizer->applied_steps(), applied) << "a skipped step does not count";
        // And the next one is a step like any other.
        offer_all(*optimizer, 2);
        optimizer->begin_update(1e-2, kAll);
        EXPECT_FALSE(optimizer->report().skipped);
        EXPECT_EQ(optimizer->applied_steps(), ++applied);
        optimizer->wait();
        EXPECT_NE(store_.hash(), before);
      }
    }
  }
}

TEST_P(OptimizerTest, TheLargestFiniteGradientsAreNotSkipped) {
  const auto optimizer = make(options(1));
  std::vector<float> values = gradient(kMixed, 1);
  values[0] = 3e38F;
  if (dtype() == DType::bf16) values[0] = to_float(to_bfloat16(values[0]));
  offer(*optimizer, kMixed, values);
  optimizer->begin_update(1e-2, kAll);
  const UpdateReport report = optimizer->report();
  EXPECT_FALSE(report.skipped);
  EXPECT_NEAR(report.gradient_norm, 3e38, 1e36) << "squares are summed in double";
  optimizer->wait();
  EXPECT_TRUE(std::isfinite(numbers(kMixed, 0).v));
}

TEST_P(OptimizerTest, BlocksWithoutAGradientKeepTheirState) {
  const auto optimizer = make(options());
  const Copy big = copy(kBig), end = copy(kTableEnd);
  offer(*optimizer, kMixed, gradient(kMixed, 1));
  offer(*optimizer, kTableBegin, gradient(kTableBegin, 1));
  optimizer->begin_update(1e-2, kAll);
  optimizer->wait();
  expect_equal(kBig, big);
  expect_equal(kTableEnd, end);
  EXPECT_EQ(store_.version(kBig), 0u);
  EXPECT_EQ(store_.version(kMixed), 1u);
  EXPECT_EQ(store_.version(kFrozen), 0u);
}

TEST_P(OptimizerTest, OrderOfUpdatesDoesNotMatter) {
  const uint64_t start = store_.hash();
  std::vector<Copy> saved;
  for (const BlockId block : kAll) saved.push_back(copy(block));
  std::vector<BlockId> order = kAll;
  std::vector<uint64_t> hashes;
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t i = 0; i < kAll.size(); ++i) {
      const BlockState state = store_.state(kAll[i]);
      std::ranges::copy(saved[i].high, state.high.begin());
      std::ranges::copy(saved[i].low, state.low.begin());
      std::ranges::copy(saved[i].m, state.first_moment.begin());
      std::ranges::copy(saved[i].v, state.second_moment.begin());
    }
    ASSERT_EQ(store_.hash(), start);
    const auto optimizer = make(options(1));
    for (int step = 0; step < 2; ++step) {
      for (const BlockId block : order)
        offer(*optimizer, block, gradient(block, static_cast<uint32_t>(step)));
      std::ranges::reverse(order);
      optimizer->begin_update(1e-2, order);
    }
    optimizer->wait();
    hashes.push_back(store_.hash());
    std::ranges::next_permutation(order);
  }
  EXPECT_EQ(hashes[1], hashes[0]);
  EXPECT_EQ(hashes[2], hashes[0]);
}

TEST_P(OptimizerTest, RowsAreAddedToWhatWaits) {
  const auto optimizer = make(options(), DType::f32);
  const std::vector<float> begin = gradient(kTableBegin, 1);
  const std::vector<int32_t> rows{0, 7, 39, 40, 99};
  std::vector<float> values(rows.size() * 16);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.001F * static_cast<float>(i + 1);
  for (int step = 0; step < 2; ++step) {  // the second time, too, the end starts at zero
    optimizer->offer_before_rows(kTableBegin, arrive(*optimizer, kTableBegin, begin));
    optimizer->offer_rows(kTable, rows, values.data(), arrivals_->record(), dtype());
    optimizer->begin_update(1e-2, kAll);
    (void)optimizer->report();
    std::vector<std::pair<BlockId, std::vector<float>>> expected{
        {kTableBegin, begin},
        {kTableEnd, std::vector<float>(static_cast<size_t>(store_.layout(kTableEnd).logical_elements()))}};
    for (size_t i = 0; i < rows.size(); ++i) {
      auto& [block, sums] = expected[rows[i] < 40 ? 0 : 1];
      for (size_t col = 0; col < 16; ++col) {
        sums[static_cast<size_t>(rows[i] < 40 ? rows[i] : rows[i] - 40) * 16 + col] += values[i * 16 + col];
      }
    }
    for (auto& [block, sums] : expected) {
      if (dtype() == DType::bf16) {
        for (float& sum : sums) sum = to_float(to_bfloat16(sum));
      }
      const float* waits = reinterpret_cast<const float*>(optimizer->waiting_gradient(block));
      EXPECT_TRUE(std::equal(sums.begin(), sums.end(), waits)) << "block " << block.value;
    }
    EXPECT_EQ(optimizer->report().gradient_norm, direct_norm(expected));
    optimizer->wait();
    EXPECT_EQ(store_.version(kTableBegin), static_cast<uint64_t>(step + 1));
    EXPECT_EQ(store_.version(kTableEnd), static_cast<uint64_t>(step + 1));
  }
}

TEST_P(OptimizerTest, NoRowsAtAllIsAGradientToo) {
  const auto optimizer = make(options(), DType::f32);
  optimizer->offer_rows(kTable, {}, nullptr, arrivals_->record(), dtype());
  optimizer->begin_update(1e-2, kAll);
  EXPECT_EQ(optimizer->report().gradient_norm, 0.0);
  optimizer->wait();
  EXPECT_EQ(store_.version(kTableEnd), 1u) << "decays";
}

// From outside: either dtype, at once, and the same bits as from the device.
TEST_P(OptimizerTest, OfferedCopiesCountLikeAnyOther) {
  const auto optimizer = make(options());
  const std::vector<float> values = gradient(kMixed, 5);
  Copy expected = copy(kMixed);
  for (int step = 1; step <= 2; ++step) {
    if (store_.version_ready(kMixed)) store_.version_ready(kMixed)->wait();
    std::vector<float> from = values;
    from[300] = 1e9F;  // padding
    from[511] = std::numeric_limits<float>::quiet_NaN();
    if (step == 1) {
      optimizer->offer_copy(kMixed, from);
    } else {
      std::vector<BFloat16> halves;
      for (const float value : from) halves.push_back(to_bfloat16(value));
      optimizer->offer_copy(kMixed, halves);
    }
    std::ranges::fill(from, -1.0F);  // copied before the call returned
    optimizer->begin_update(1e-2, kAll);
    std::vector<float> counted = values;
    if (step == 2) {
      for (float& value : counted) value = to_float(to_bfloat16(value));
    }
    EXPECT_EQ(optimizer->report().gradient_norm, direct_norm({{kMixed, counted}}));
    update_directly(kMixed, expected, counted, 1e-2, step, 1);
  }
  optimizer->wait();
  expect_equal(kMixed, expected);
}

TEST_P(OptimizerTest, ReportDoesNotWaitForUpdates) {
  const auto optimizer = make(options());
  offer(*optimizer, kMixed, gradient(kMixed, 1));
  executor_.hold_from = 1;  // the norm passes, the updates are held
  optimizer->begin_update(1e-2, kAll);
  EXPECT_GT(optimizer->report().gradient_norm, 0.0);
  EXPECT_FALSE(store_.version_ready(kMixed)->done());
  executor_.open = true;
  executor_.open.notify_all();
  optimizer->wait();
  EXPECT_TRUE(store_.version_ready(kMixed)->done());
}

TEST_P(OptimizerTest, AnUpdatesErrorShowsInTheNextReportAndStopsAllThatFollows) {
  const auto optimizer = make(options());
  offer(*optimizer, kMixed, gradient(kMixed, 1));
  optimizer->begin_update(1e-2, kAll);
  (void)optimizer->report();
  optimizer->wait();
  const Copy begin = copy(kTableBegin);
  const Copy mixed = copy(kMixed);
  executor_.fail_at = executor_.loop_count + 2;  // two norms, then the first update
  offer(*optimizer, kMixed, gradient(kMixed, 2));
  offer(*optimizer, kTableBegin, gradient(kTableBegin, 2));
  optimizer->begin_update(1e-2, kAll);
  EXPECT_FALSE(optimizer->report().skipped) << "the norm was fine";
  const std::vector<std::string> texts{"'mixed'", "step 2", "no threads left"};
  test::expect_error(ErrorKind::resource, texts, [&] { optimizer->wait(); });
  test::expect_error(ErrorKind::resource, texts, [&] { store_.version_ready(kTableBegin)->wait(); });
  expect_equal(kTableBegin, begin);
  expect_equal(kMixed, mixed);
  offer(*optimizer, kBig, gradient(kBig, 2));
  const Copy big = copy(kBig);
  optimizer->begin_update(1e-2, kAll);
  test::expect_error(ErrorKind::resource, texts, [&] { (void)optimizer->report(); });
  expect_equal(kBig, big);
}

TEST_P(OptimizerTest, AGradientThatDidNotArriveIsAnError) {
  const auto optimizer = make(options());
  const uint64_t before = store_.hash();
  arrivals_->run({"arrive", {}, [] { throw Error(ErrorKind::runtime, "the copy of block 1 failed"); }});
  optimizer->offer(kMixed, arrivals_->record());
  optimizer->begin_update(1e-2, kAll);
  test::expect_error(ErrorKind::runtime, {"the copy of block 1 failed"}, [&] { (void)optimizer->report(); });
  EXPECT_EQ(store_.hash(), before);
}

TEST_P(OptimizerTest, AWrongLearningRateIsAnError) {
  const auto optimizer = make(options());
  const uint64_t before = store_.hash();
  offer(*optimizer, kMixed, gradient(kMixed, 1));
  optimizer->begin_update(-1, kAll);
  test::expect_error(ErrorKind::usage, {}, [&] { (void)optimizer->report(); });
  EXPECT_EQ(store_.hash(), before);
}

TEST_P(OptimizerTest, UpdateAfterHoldsTheUpdates) {
  const auto optimizer = make(options());
  std::atomic<bool> open = false;
  arrivals_->run({"hold", {}, [&] { open.wait(false); }});
  const gpu::Event still_read = arrivals_->record();
  const std::vector<float> values = gradient(kMixed, 1);
  optimizer->offer_copy(kMixed, values);
  optimizer->update_after(still_read);
  optimizer->begin_update(1e-2, kAll);
  EXPECT_FALSE(store_.version_ready(kMixed)->done());
  open = true;
  open.notify_all();
  optimizer->wait();
}

TEST_P(OptimizerTest, WaitingMemoryIsCounted) {
  const size_t before = budget_.used_bytes();
  const auto optimizer = make(options(), DType::f32);
  const size_t bytes = size_bytes(dtype());
  EXPECT_EQ(optimizer->waiting_bytes(kBig), 601088 * bytes);  // 601000 in spans of 256
  EXPECT_EQ(optimizer->waiting_bytes(kTableEnd), 1024u * 4);
  EXPECT_EQ(optimizer->waiting_bytes(kFrozen), 0u);
  const std::vector<DType> dtypes{dtype(), dtype(), DType::f32, DType::f32, dtype()};
  EXPECT_EQ(budget_.used_bytes() - before, Optimizer::waiting_arena_bytes(store_, dtypes));
}

const auto kNameOf = [](const auto& parameters) {
  return std::string(name(std::get<0>(parameters.param))) + "_" +
         std::string(cpu_optim::name(std::get<1>(parameters.param)));
};

INSTANTIATE_TEST_SUITE_P(All, OptimizerTest,
                         testing::Values(std::tuple{DType::f32, StateFormat::split},
                                         std::tuple{DType::bf16, StateFormat::split},
                                         std::tuple{DType::bf16, StateFormat::split_bf16},
                                         std::tuple{DType::f32, StateFormat::bf16},
                                         std::tuple{DType::bf16, StateFormat::int8},
                                         std::tuple{DType::f32, StateFormat::fp32}),
                         kNameOf);

using OptimizerDeathTest = OptimizerTest;

TEST_P(OptimizerDeathTest, StepsAreWhole) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::vector<BlockId> big_only{kBig};
  EXPECT_DEATH(
      {
        const auto optimizer = make(options());
        offer(*optimizer, kMixed, gradient(kMixed, 1));
        offer(*optimizer, kMixed, gradient(kMixed, 1));
      },
      "mixed");
  EXPECT_DEATH(
      {
        const auto optimizer = make(options());
        offer(*optimizer, kMixed, gradient(kMixed, 1));
        optimizer->begin_update(1e-2, big_only);
      },
      "missing from the update order");
  EXPECT_DEATH(
      {
        const auto optimizer = make(options(), DType::f32);
        optimizer->offer_before_rows(kTableBegin, arrive(*optimizer, kTableBegin, gradient(kTableBegin, 1)));
        optimizer->begin_update(1e-2, kAll);
      },
      "without offer_rows");
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerDeathTest, testing::Values(std::tuple{DType::f32, StateFormat::split}),
                         kNameOf);

}  // namespace
}  // namespace sluice
