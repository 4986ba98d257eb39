#include "engine/api/engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "cpu_optim/adamw.h"
#include "engine/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/forwarding_device.h"
#include "tests/support/test_device.h"

namespace sluice {
namespace {

// A layer that has everything: a stacked matmul weight, plain parts, frozen parts of both dtypes; and a table
// in two blocks, whose rows are gathered.
constexpr BlockId kTableEnd{0}, kLayer{1}, kTableBegin{2};
constexpr TensorId kTable{0}, kWq{1}, kWk{2}, kNorm{3}, kFrozenBias{4}, kFrozenMatrix{5}, kFrozenMatrix32{6};
constexpr int64_t kWidth = 8, kTableRows = 20;

ModelSpec model() {
  return {.tensors =
              {{.name = "table", .rows = kTableRows, .cols = kWidth},
               {.name = "wq", .rows = 16, .cols = kWidth},
               {.name = "wk", .rows = 5, .cols = kWidth},
               {.name = "norm", .rows = 1, .cols = kWidth, .group = 1},
               {.name = "frozen bias", .rows = 1, .cols = 3, .storage_dtype = DType::f32, .trainable = false},
               {.name = "frozen matrix", .rows = 4, .cols = kWidth, .trainable = false},
               {.name = "frozen matrix 32",
                .rows = 4,
                .cols = kWidth,
                .storage_dtype = DType::f32,
                .trainable = false}},
          .blocks = {{.name = "table end", .parts = {{kTable, 12, kTableRows}}},
                     {.name = "layer",
                      .parts = {{kWq, 0, 16},
                                {kFrozenBias, 0, 1},
                                {kWk, 0, 5},
                                {kNorm, 0, 1},
                                {kFrozenMatrix, 0, 4},
                                {kFrozenMatrix32, 0, 4}},
                      .linears = {LinearUse{{0, 2}}, LinearUse{{4, 5}}}},
                     {.name = "table begin", .parts = {{kTable, 0, 12}}}}};
}

EngineOptions training(DType dtype = DType::f32) {
  return {.compute_dtype = dtype,
          .training = true,
          .optimizer = {.groups = {{.learning_rate = 1, .weight_decay = 0.1},
                                   {.learning_rate = 0.5, .weight_decay = 0}}}};
}

const LayoutSet kBoth{.forward = true, .backward = true};

// One forward and one backward lease of the layer.
WalkSpec walk() {
  return {.accesses = {{.block = kLayer, .layouts = {.forward = true}},
                       {.block = kLayer, .phase = Phase::backward, .layouts = kBoth}},
          .fixed_parts = {{"memory", Tier::device, size_t{1} << 16, 0}},
          .workspace_bytes = size_t{1} << 20,
          .row_gradient_tensors = {kTable},
          .max_fetched_rows = kTableRows,
          .max_row_cols = kWidth};
}

std::vector<float> numbers(TensorId tensor, uint32_t seed = 0) {
  const ModelSpec spec = model();
  std::mt19937 random(100 * seed + static_cast<uint32_t>(tensor.value));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(spec.tensor(tensor).rows * spec.tensor(tensor).cols));
  for (float& value : values) value = normal(random);
  return values;
}

void write_all(TensorStore& store) {
  for (int32_t tensor = 0; tensor < static_cast<int32_t>(store.model().tensors.size()); ++tensor) {
    const std::vector<float> values = numbers(TensorId{tensor});
    store.write_rows(TensorId{tensor}, 0, store.model().tensor(TensorId{tensor}).rows, values.data());
  }
}

std::vector<float> read_all(const TensorStore& store, TensorId tensor) {
  std::vector<float> values(numbers(tensor).size());
  store.read_rows(tensor, 0, store.model().tensor(tensor).rows, values.data());
  return values;
}

// Rows of the high halves, as bf16 compute sees them.
std::vector<float> high_halves(std::vector<float> values) {
  for (float& value : values) value = to_float(split(value).high);
  return values;
}
std::vector<float> rounded(std::vector<float> values) {
  for (float& value : values) value = to_float(to_bfloat16(value));
  return values;
}
std::vector<float> joined(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// What a stream sees of a view, as fp32.
std::vector<float> look(gpu::Device& device, gpu::Stream& stream, const gpu::View& view) {
  std::vector<std::byte> bytes(view.span_bytes());
  device.copy_to_host(stream, bytes.data(), view.data, bytes.size());
  stream.record().wait();
  std::vector<float> values;
  for (int64_t i = 0; i < view.element_count(); ++i) {
    if (view.dtype == DType::f32) {
      values.push_back(reinterpret_cast<const float*>(bytes.data())[i]);
    } else {
      values.push_back(to_float(reinterpret_cast<const BFloat16*>(bytes.data())[i]));
    }
  }
  return values;
}

class EngineTest : public testing::Test {
 protected:
  void make(EngineOptions options, WalkSpec spec = walk()) {
    make_on(host_.device(), host_.pool(), options, spec);
  }
  void make_on(gpu::Device& device, Executor& pool, const EngineOptions& options,
               const WalkSpec& spec = walk()) {
    engine_ = std::make_unique<Engine>(device, pool, model(), spec, options);
    write_all(engine_->store());
  }

  // Room in "memory" for a matrix.
  gpu::View carve(int64_t rows, int64_t cols, DType dtype) {
    const gpu::View view(engine_->device_part("memory") + carved_, dtype, rows, cols);
    carved_ += (view.span_bytes() + 511) / 512 * 512;
    EXPECT_LE(carved_, engine_->plan().part("memory").size_bytes);
    return view;
  }
  // W^T of a prepared weight, by a product with the identity: exact in every dtype.
  std::vector<float> weight_of(const Lease& lease, int linear, gpu::Stream* stream = nullptr) {
    const DType dtype = engine_->options().compute_dtype;
    const gpu::PackedWeight& weight = lease->forward(linear);
    const gpu::View identity = carve(weight.cols, weight.cols, dtype);
    const gpu::View y = carve(weight.cols, weight.rows, dtype);
    const std::byte one32[4] = {std::byte{0}, std::byte{0}, std::byte{0x80}, std::byte{0x3f}};
    std::vector<std::byte> bytes(identity.span_bytes());
    for (int64_t i = 0; i < weight.cols; ++i) {
      const size_t at = static_cast<size_t>(i * (weight.cols + 1)) * size_bytes(dtype);
      if (dtype == DType::f32) {
        std::copy_n(one32, 4, bytes.begin() + static_cast<ptrdiff_t>(at));
      } else {
        std::copy_n(one32 + 2, 2, bytes.begin() + static_cast<ptrdiff_t>(at));
      }
    }
    engine_->upload(identity.data, bytes.data(), bytes.size());
    gpu::Stream& on = stream == nullptr ? engine_->compute() : *stream;
    if (stream == nullptr) {
      engine_->submit(gpu::LinearForward{identity, weight, {}, y});
    } else {
      on.wait(engine_->compute().record());  // the identity
      host_.device().ops().submit(on, gpu::LinearForward{identity, weight, {}, y}, own_workspace(on));
    }
    const std::vector<float> transposed = look(host_.device(), on, y);
    std::vector<float> values(transposed.size());
    for (size_t col = 0; col < static_cast<size_t>(weight.cols); ++col) {
      for (size_t row = 0; row < static_cast<size_t>(weight.rows); ++row) {
        values[row * static_cast<size_t>(weight.cols) + col] =
            transposed[col * static_cast<size_t>(weight.rows) + row];
      }
    }
    carved_ = 0;
    if (stream != nullptr) engine_->compute().wait(on.record());  // "memory" is used again there
    return values;
  }
  gpu::Workspace own_workspace(gpu::Stream&) {
    if (!workspace_) workspace_ = host_.device().allocate(size_t{1} << 20);
    return {workspace_->data(), workspace_->size_bytes()};
  }

  // Gradients of ones for the layer, through a whole walk and an update.
  void step(double learning_rate = 1e-2, float value = 1) {
    engine_->begin_walk();
    { const Lease lease = engine_->acquire(kLayer); }
    const Lease lease = engine_->acquire(kLayer);
    GradientLease gradients = engine_->gradients(kLayer);
    for (const int part : {0, 2, 3}) engine_->submit(gpu::Fill{gradients.contribute(part, 0).sum, value});
    engine_->offer(std::move(gradients));
    engine_->begin_update(learning_rate, std::array{kLayer});
  }

  test::TestDevice host_{{.delay_seed = 21}};
  std::unique_ptr<gpu::DeviceMemory> workspace_;
  std::unique_ptr<Engine> engine_;
  size_t carved_ = 0;
};

// ---- what a lease offers

TEST_F(EngineTest, Fp32ComputeSeesTheMasterAndBf16ItsHighHalves) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    make({.compute_dtype = dtype});
    engine_->begin_walk();
    for (int access = 0; access < 2; ++access) {
      const Lease lease = engine_->acquire(kLayer);
      const auto seen = [&](const std::vector<float>& master) {
        return dtype == DType::f32 ? master : high_halves(master);
      };
      const auto frozen = [&](const std::vector<float>& stored) {
        return dtype == DType::f32 ? stored : rounded(stored);
      };
      EXPECT_EQ(weight_of(lease, 0), seen(joined(numbers(kWq), numbers(kWk)))) << "stacked";
      EXPECT_EQ(weight_of(lease, 1),
                joined(rounded(numbers(kFrozenMatrix)), frozen(numbers(kFrozenMatrix32))));
      EXPECT_EQ(look(host_.device(), engine_->compute(), lease->plain(3)), seen(numbers(kNorm)));
      EXPECT_EQ(look(host_.device(), engine_->compute(), lease->plain(1)), frozen(numbers(kFrozenBias)));
      EXPECT_EQ(lease->plain(3).dtype, dtype);
    }
    EXPECT_EQ(engine_->counters().copied_in_bytes, engine_->store().layout(kLayer).fetch_bytes(dtype))
        << "once, as nothing is trained";
  }
}

TEST_F(EngineTest, MastersThatNoBf16HoldsComeInWhole) {
  make({});
  std::vector<float> wq;
  for (uint32_t i = 0; i < 16 * kWidth; ++i)
    wq.push_back(std::bit_cast<float>(0x3f800000u + 0x1235u * i + 1));
  engine_->store().write_rows(kWq, 0, 16, wq.data());
  engine_->begin_walk();
  {
    const Lease lease = engine_->acquire(kLayer);
    EXPECT_EQ(weight_of(lease, 0), joined(wq, numbers(kWk)));
  }
  { const Lease lease = engine_->acquire(kLayer); }
}

// Without training there is no tape and no state; walks repeat, and what is kept is copied once.
TEST_F(EngineTest, ReadOnlyWalks) {
  for (const bool streams : {false, true}) {
    EngineOptions options;
    if (streams) {
      const Plan everything = Engine::plan_for(host_.device(), model(), walk(), options);
      EXPECT_GT(everything.part(plan_part::kKept).size_bytes, 0u);
      for (size_t limit = everything.peak_bytes(Tier::device) - 1;;) {
        options.device_limit_bytes = limit;
        if (Engine::plan_for(host_.device(), model(), walk(), options).part(plan_part::kKept).size_bytes == 0)
          break;
        limit -= 4096;
      }
    }
    make(options);
    EXPECT_TRUE(engine_->store().state(kLayer).first_moment.empty());
    for (int walk_number = 0; walk_number < 3; ++walk_number) {
      engine_->begin_walk();
      for (int access = 0; access < 2; ++access) {
        const Lease lease = engine_->acquire(kLayer);
        EXPECT_EQ(weight_of(lease, 0), joined(numbers(kWq), numbers(kWk)));
      }
    }
    const size_t once = engine_->store().layout(kLayer).fetch_bytes(DType::f32);
    EXPECT_EQ(engine_->counters().copied_in_bytes, streams ? 6 * once : once);
    EXPECT_EQ(engine_->counters().copied_out_bytes, 0u);
    EXPECT_EQ(engine_->applied_steps(), 0);
  }
}

TEST_F(EngineTest, LeasesGoFromStreamToStream) {
  make(training());
  const auto second = host_.device().make_stream(gpu::StreamKind::compute, "second");
  const std::vector<float> expected = joined(numbers(kWq), numbers(kWk));
  for (int walk_number = 0; walk_number < 3; ++walk_number) {
    engine_->begin_walk();
    for (int access = 0; access < 2; ++access) {
      Lease lease = engine_->acquire(kLayer);
      lease.on(*second);
      EXPECT_EQ(weight_of(lease, 0, second.get()), expected);
      lease.on(engine_->compute());
      lease.on(*second);
    }
  }
  second->record().wait();
  engine_.reset();
}

// The block stays on the device from lease to lease, is updated between walks, and was read by a stream that
// the last lease of the walk knows nothing of.
TEST_F(EngineTest, KeptBlocksAreOverwrittenAfterEveryStreamThatReadThem) {
  test::TestDevice gpu_like({.delay_seed = 22, .shares_host_memory = false});
  gpu::Device& device = gpu_like.device();
  {
    Engine engine(device, gpu_like.pool(), model(), walk(), training());
    write_all(engine.store());
    ASSERT_GT(engine.plan().part(plan_part::kKept).size_bytes, 0u);
    const auto second = device.make_stream(gpu::StreamKind::compute, "second");
    const auto memory = device.allocate(4096);
    std::vector<std::vector<float>> seen(3, std::vector<float>(kWidth));
    for (size_t walk_number = 0; walk_number < 3; ++walk_number) {
      engine.begin_walk();
      {
        Lease lease = engine.acquire(kLayer);
        lease.on(*second);
        device.copy_to_host(*second, seen[walk_number].data(), lease->plain(3).data, kWidth * 4);
      }
      {
        const Lease lease = engine.acquire(kLayer);
        GradientLease gradients = engine.gradients(kLayer);
        engine.submit(gpu::Fill{gradients.contribute(3, 0).sum, 1});
        engine.offer(std::move(gradients));
      }
      engine.begin_update(1e-2, std::array{kLayer});
    }
    second->record().wait();
    engine.wait();
    EXPECT_EQ(seen[0], numbers(kNorm));
    EXPECT_NE(seen[1], seen[0]);
    EXPECT_NE(seen[2], seen[1]);
    EXPECT_EQ(engine.counters().copied_in_bytes, 3 * engine.plan().copy_in_bytes_per_walk);
  }
}

// ---- rows

TEST_F(EngineTest, RowsComeFromAllBlocksInTheComputeDtype) {
  const std::vector<int32_t> rows{0, 3, 11, 12, 19};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    make({.compute_dtype = dtype});
    const std::vector<float> table = dtype == DType::f32 ? numbers(kTable) : high_halves(numbers(kTable));
    engine_->begin_walk();
    const gpu::View out(engine_->device_part("memory"), dtype, static_cast<int64_t>(rows.size()), kWidth);
    for (int round = 0; round < 3; ++round) {
      engine_->fetch_rows(kTable, rows, out.data);
      const std::vector<float> got = look(host_.device(), engine_->compute(), out);
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_TRUE(std::equal(got.begin() + static_cast<ptrdiff_t>(i) * kWidth,
                               got.begin() + static_cast<ptrdiff_t>(i + 1) * kWidth,
                               table.begin() + rows[i] * kWidth))
            << "row " << rows[i];
      }
    }
    engine_->fetch_rows(kTable, {}, out.data);
    for (int access = 0; access < 2; ++access) const Lease lease = engine_->acquire(kLayer);
  }
}

// A tied table: part of its gradient as a block, the rest as rows; and the next walk's rows are the updated
// ones.
TEST_F(EngineTest, RowsAreUpdatedBeforeTheyAreFetchedAgain) {
  WalkSpec spec = walk();
  spec.accesses.insert(spec.accesses.begin(), {.block = kTableBegin, .layouts = kBoth});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    make(training(dtype), spec);
    const std::vector<int32_t> rows{1, 11, 15};
    const std::vector<float> before = read_all(engine_->store(), kTable);
    for (int walk_number = 0; walk_number < 3; ++walk_number) {
      engine_->begin_walk();
      const gpu::View fetched(engine_->device_part("memory"), dtype, 3, kWidth);
      engine_->fetch_rows(kTable, rows, fetched.data);
      {
        const Lease head = engine_->acquire(kTableBegin);
        GradientLease gradients = engine_->gradients(kTableBegin);
        engine_->submit(gpu::Fill{gradients.contribute(0, 0).sum, 0.25F});
        engine_->offer(std::move(gradients), true);
      }
      for (int access = 0; access < 2; ++access) const Lease lease = engine_->acquire(kLayer);
      const gpu::View row_gradients(engine_->device_part("memory") + 4096, DType::f32, 3, kWidth);
      engine_->submit(gpu::Fill{row_gradients, 1.5F});
      engine_->offer_rows(kTable, rows, row_gradients.data);
      std::vector<float> seen = look(host_.device(), engine_->compute(), fetched);
      engine_->begin_update(1e-2, std::array{kTableEnd, kTableBegin});
      (void)engine_->update_report();
      std::vector<float> gradient(static_cast<size_t>(kTableRows * kWidth));
      engine_->read_gradient(kTable, 0, kTableRows, gradient.data());
      for (int32_t row = 0; row < kTableRows; ++row) {
        const float expected = (row < 12 ? 0.25F : 0) + (std::ranges::count(rows, row) > 0 ? 1.5F : 0);
        EXPECT_EQ(gradient[static_cast<size_t>(row * kWidth)], expected) << "row " << row;
      }
      engine_->wait();
      const std::vector<float> after = read_all(engine_->store(), kTable);
      EXPECT_NE(after, before);
      engine_->begin_walk();
      engine_->fetch_rows(kTable, rows, fetched.data);
      seen = look(host_.device(), engine_->compute(), fetched);
      const std::vector<float> expected = dtype == DType::f32 ? after : high_halves(after);
      for (size_t i = 0; i < rows.size(); ++i)
        EXPECT_EQ(seen[i * kWidth], expected[static_cast<size_t>(rows[i] * kWidth)]);
      { const Lease head = engine_->acquire(kTableBegin); }
      for (int access = 0; access < 2; ++access) const Lease lease = engine_->acquire(kLayer);
    }
  }
}

TEST_F(EngineTest, WhatIsUploadedComesBack) {
  make({});
  const std::vector<float> sent = numbers(kWq);
  std::vector<float> got(sent.size());
  const size_t bytes = sent.size() * 4;
  engine_->upload(engine_->device_part("memory"), sent.data(), bytes);
  engine_->submit(gpu::Scale{gpu::View(engine_->device_part("memory"), DType::f32, 16, kWidth), 2});
  engine_->upload(engine_->device_part("memory") + bytes, sent.data(), 0);
  const gpu::Event there = engine_->download(got.data(), engine_->device_part("memory"), bytes);
  engine_->wait();
  EXPECT_TRUE(there.done()) << "wait() waits for copies, too";
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(got[i], 2 * sent[i]);
}

// ---- gradients

TEST_F(EngineTest, ShardsAreSummedByTheTree) {
  // In fp32 these sums depend on their order.
  const std::vector<float> values{1e8F, 1.0F, -1e8F, 0.5F};
  for (const int shards : {1, 2, 3, 4}) {
    EngineOptions options = training();
    options.gradient_shards = shards;
    make(options);
    engine_->begin_walk();
    { const Lease lease = engine_->acquire(kLayer); }
    const Lease lease = engine_->acquire(kLayer);
    GradientLease gradients = engine_->gradients(kLayer);
    EXPECT_EQ(gradients.block(), kLayer);
    const gpu::View value(engine_->device_part("memory"), DType::f32, 1, kWidth);
    std::vector<float> sums(static_cast<size_t>(shards));
    for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
      const int shard = shard_of(micro_batch, 4, shards);
      const GradientLease::Target target = gradients.contribute(3, shard);
      EXPECT_EQ(target.accumulate, micro_batch > 0 && shard == shard_of(micro_batch - 1, 4, shards));
      engine_->submit(gpu::Fill{value, values[static_cast<size_t>(micro_batch)]});
      if (target.accumulate) {
        engine_->submit(gpu::Add{target.sum, value, target.sum});
      } else {
        engine_->submit(gpu::Cast{value, target.sum});
      }
      sums[static_cast<size_t>(shard)] += values[static_cast<size_t>(micro_batch)];
    }
    EXPECT_TRUE(gradients.contribute(1, 0).sum.empty()) << "frozen: nothing is wanted";
    engine_->offer(std::move(gradients));
    engine_->begin_update(0, std::array{kLayer});
    for_each_tree_step(shards, [&](int into, int from) {
      sums[static_cast<size_t>(into)] += sums[static_cast<size_t>(from)];
    });
    const double norm = engine_->update_report().gradient_norm;
    EXPECT_EQ(norm, std::sqrt(static_cast<double>(kWidth) * static_cast<double>(sums[0]) *
                              static_cast<double>(sums[0])))
        << "parts without a contribution are zero, and so is all padding";
    std::vector<float> gradient(static_cast<size_t>(16 * kWidth));
    engine_->read_gradient(kNorm, 0, 1, gradient.data());
    EXPECT_EQ(gradient[5], sums[0]) << shards << " shards";
    engine_->read_gradient(kWq, 0, 16, gradient.data());
    EXPECT_EQ(gradient, std::vector<float>(16 * kWidth, 0.0F));
  }
}

TEST_F(EngineTest, GradientsCrossInTheComputeDtype) {
  make(training(DType::bf16));
  const float third = 1.0F / 3;
  step(0, third);
  EXPECT_NEAR(engine_->update_report().gradient_norm,
              std::sqrt(static_cast<double>((16 + 5 + 1) * kWidth)) / 3, 1e-2);
  std::vector<float> gradient(5 * kWidth);
  engine_->read_gradient(kWk, 0, 5, gradient.data());
  EXPECT_EQ(gradient, std::vector<float>(5 * kWidth, to_float(to_bfloat16(third))));
  const size_t elements = static_cast<size_t>(engine_->store().layout(kLayer).logical_elements());
  EXPECT_EQ(engine_->counters().copied_out_bytes, 2 * elements);
}

TEST_F(EngineTest, SeveralGradientsAtATimeWherePlanned) {
  WalkSpec spec = walk();
  spec.accesses.push_back({.block = kTableBegin, .phase = Phase::backward, .layouts = kBoth});
  spec.row_gradient_tensors.clear();
  spec.concurrent_gradients = 2;
  make(training(DType::bf16), spec);
  for (int walk_number = 1; walk_number <= 4; ++walk_number) {
    engine_->begin_walk();
    for (int access = 0; access < 2; ++access) const Lease lease = engine_->acquire(kLayer);
    const Lease lease = engine_->acquire(kTableBegin);
    GradientLease layer = engine_->gradients(kLayer);
    GradientLease table = engine_->gradients(kTableBegin);
    engine_->submit(gpu::Fill{layer.contribute(3, 0).sum, static_cast<float>(walk_number)});
    engine_->submit(gpu::Fill{table.contribute(0, 0).sum, static_cast<float>(-walk_number)});
    engine_->offer(std::move(table));
    engine_->offer(std::move(layer));
    engine_->begin_update(0, std::array{kLayer, kTableBegin});
    EXPECT_EQ(engine_->update_report().gradient_norm,
              std::sqrt(static_cast<double>((1 + 12) * kWidth * walk_number * walk_number)));
    float first = 0;
    std::vector<float> row(kWidth);
    engine_->read_gradient(kNorm, 0, 1, row.data());
    first = row[7];
    engine_->read_gradient(kTable, 11, 1, row.data());
    EXPECT_EQ(first, walk_number);
    EXPECT_EQ(row[7], -walk_number);
  }
}

TEST_F(EngineTest, StackedContributionsAreOneMatrixWhereTheyLieTogether) {
  make(training());
  engine_->begin_walk();
  { const Lease lease = engine_->acquire(kLayer); }
  const Lease lease = engine_->acquire(kLayer);
  {
    GradientLease gradients = engine_->gradients(kLayer);
    // wq: 128 elements of a span of 256, so wk does not follow it.
    EXPECT_FALSE(gradients.contribute_stacked(std::array{0, 2}, 0));
    EXPECT_FALSE(gradients.contribute_stacked(std::array{4, 5}, 0)) << "frozen";
    const std::optional<GradientLease::Target> alone = gradients.contribute_stacked(std::array{0}, 0);
    ASSERT_TRUE(alone);
    EXPECT_EQ(alone->sum.rows, 16);
    EXPECT_FALSE(alone->accumulate);
    EXPECT_TRUE(gradients.contribute(0, 0).accumulate);
    EXPECT_FALSE(gradients.contribute(2, 0).accumulate) << "not counted where it was refused";
  }
}

// Gradients come from outside before anything was computed: the update must still not overtake the copies in.
TEST_F(EngineTest, GradientsFromOutsideDoNotOvertakeTheCopiesOfTheWeights) {
  WalkSpec spec = walk();
  spec.device_gradients = false;
  make(training(), spec);
  const std::vector<float> gradient(static_cast<size_t>(engine_->store().layout(kLayer).logical_elements()),
                                    0.5F);
  for (int walk_number = 0; walk_number < 5; ++walk_number) {
    engine_->begin_walk();
    { const Lease lease = engine_->acquire(kLayer); }
    { const Lease lease = engine_->acquire(kLayer); }
    engine_->offer_from_host(kLayer, gradient);
    engine_->begin_update(1e-2, std::array{kLayer});
  }
  // Of 176 elements in three spans of 256.
  EXPECT_EQ(engine_->update_report().gradient_norm, std::sqrt(0.25 * 22 * kWidth));
  engine_->wait();
  EXPECT_EQ(engine_->applied_steps(), 5);
  engine_.reset();
}

TEST_F(EngineTest, FrozenAndUnofferedPartsStay) {
  make(training());
  const std::vector<float> table = read_all(engine_->store(), kTable);
  const std::vector<float> bias = read_all(engine_->store(), kFrozenBias);
  const std::vector<float> matrix = read_all(engine_->store(), kFrozenMatrix);
  for (int i = 0; i < 3; ++i) step();
  engine_->wait();
  EXPECT_EQ(read_all(engine_->store(), kTable), table);
  EXPECT_EQ(read_all(engine_->store(), kFrozenBias), bias);
  EXPECT_EQ(read_all(engine_->store(), kFrozenMatrix), matrix);
  EXPECT_NE(read_all(engine_->store(), kWq), numbers(kWq));
  // Padding of the spans is as it was.
  const cpu_optim::StateSpan state = engine_->store().states(kLayer);
  const auto* const m = reinterpret_cast<const float*>(state.first_moment);
  const auto* const v = reinterpret_cast<const float*>(state.second_moment);
  EXPECT_EQ(m[16 * kWidth], 0.0F);
  EXPECT_EQ(v[255], 0.0F);
  EXPECT_EQ(state.weight[255].bits, 0);
  EXPECT_GT(v[16 * kWidth - 1], 0.0F);
}

TEST_F(EngineTest, EachWalkSeesTheUpdateBeforeIt) {
  make(training());
  std::vector<float> expected = joined(numbers(kWq), numbers(kWk));
  cpu_optim::AdamOptions group = training().optimizer.groups[0];
  group.learning_rate = 1e-2;
  std::vector<BFloat16> high(expected.size());
  std::vector<int16_t> low(expected.size());
  std::vector<float> m(expected.size()), v(expected.size());
  const std::vector<float> ones(expected.size(), 1.0F);
  for (size_t i = 0; i < expected.size(); ++i)
    high[i] = split(expected[i]).high, low[i] = split(expected[i]).low;
  const auto stream = [](auto& values) { return reinterpret_cast<std::byte*>(values.data()); };
  const cpu_optim::StateSpan state{.size = static_cast<int64_t>(high.size()),
                                   .weight = high.data(),
                                   .low = stream(low),
                                   .first_moment = stream(m),
                                   .second_moment = stream(v)};
  for (int64_t step_number = 1; step_number <= 4; ++step_number) {
    engine_->begin_walk();
    {
      const Lease lease = engine_->acquire(kLayer);
      EXPECT_EQ(weight_of(lease, 0), expected) << "step " << step_number;
    }
    const Lease lease = engine_->acquire(kLayer);
    GradientLease gradients = engine_->gradients(kLayer);
    for (const int part : {0, 2, 3}) engine_->submit(gpu::Fill{gradients.contribute(part, 0).sum, 1});
    engine_->offer(std::move(gradients));
    engine_->begin_update(1e-2, std::array{kLayer});
    cpu_optim::update(state, ones, cpu_optim::make_adam_step(group, step_number));
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = join(high[i], low[i]);
  }
}

// ---- memory

// Sums what is registered: the engine's host arenas.
class RegisteredBytes final : public test::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<gpu::HostRegistration> register_host_memory(void* data, size_t size_bytes) override {
    bytes += size_bytes;
    return ForwardingDevice::register_host_memory(data, size_bytes);
  }
  size_t bytes = 0;
};

TEST_F(EngineTest, BothTiersHoldWhatThePlanSays) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool trains : {true, false}) {
      RegisteredBytes device(host_.device());
      EngineOptions options = trains ? training(dtype) : EngineOptions{.compute_dtype = dtype};
      options.gradient_shards = 2;
      make_on(device, host_.pool(), options);
      EXPECT_EQ(host_.used_bytes(), engine_->plan().peak_bytes(Tier::device));
      EXPECT_EQ(device.bytes, engine_->plan().peak_bytes(Tier::host));
      const Plan plan = Engine::plan_for(device, model(), walk(), options);
      EXPECT_EQ(plan.peak_bytes(Tier::device), engine_->plan().peak_bytes(Tier::device));
      EXPECT_EQ(plan.peak_bytes(Tier::host), engine_->plan().peak_bytes(Tier::host));
      if (trains) {
        for (int i = 0; i < 2; ++i) step();
      }
      engine_->wait();
      EXPECT_EQ(host_.used_bytes(), engine_->plan().peak_bytes(Tier::device));
      engine_.reset();
      EXPECT_EQ(host_.used_bytes(), 0u);
    }
  }
}

TEST_F(EngineTest, RefusesWhatDoesNotFitBeforeAllocating) {
  RegisteredBytes device(host_.device());
  EngineOptions options = training();
  options.device_limit_bytes = 10'000;
  test::expect_error(ErrorKind::resource, {"9.77 KiB", "the least"},
                     [&] { const Engine engine(device, host_.pool(), model(), walk(), options); });
  EXPECT_EQ(device.bytes, 0u);
  EXPECT_EQ(host_.used_bytes(), 0u);
}

// The process's own limit of the device, below the plan's.
TEST_F(EngineTest, ADeviceThatIsTooSmallIsAnError) {
  class TooSmall final : public test::ForwardingDevice {
   public:
    using ForwardingDevice::ForwardingDevice;
    std::unique_ptr<gpu::DeviceMemory> allocate(size_t) override {
      throw Error(ErrorKind::resource, "device memory: 7 of 8 GiB are in use");
    }
  } device(host_.device());
  test::expect_error(ErrorKind::resource, {"7 of 8 GiB"},
                     [&] { const Engine engine(device, host_.pool(), model(), walk(), training()); });
}

// ---- errors

// Lets the n-th task of a name fail.
class FailingTasks final : public test::ForwardingDevice {
 public:
  FailingTasks(gpu::Device& inner, std::string task, int count)
      : ForwardingDevice(inner), task_(std::move(task)), left_(count) {}
  std::unique_ptr<gpu::Stream> make_stream(gpu::StreamKind kind, std::string name) override {
    std::unique_ptr<gpu::Stream> stream = ForwardingDevice::make_stream(kind, std::move(name));
    if (kind != gpu::StreamKind::cpu) return stream;
    return std::make_unique<FailingStream>(*this, std::move(stream));
  }

 private:
  class FailingStream final : public gpu::Stream {
   public:
    FailingStream(FailingTasks& device, std::unique_ptr<gpu::Stream> inner)
        : Stream(gpu::StreamKind::cpu, inner->name()), device_(device), inner_(std::move(inner)) {}
    gpu::Event record() override { return inner_->record(); }
    void wait(const gpu::Event& event) override { inner_->wait(event); }
    void run(gpu::Task task) override {
      if (task.name == device_.task_ && --device_.left_ == 0) {
        task.body = [] { throw Error(ErrorKind::runtime, "EIO at offset 4096 of slab.0"); };
      }
      inner_->run(std::move(task));
    }

   private:
    FailingTasks& device_;
    std::unique_ptr<gpu::Stream> inner_;
  };
  const std::string task_;
  std::atomic<int> left_;
};

TEST_F(EngineTest, AFailedUpdateShowsInTheNextStep) {
  FailingTasks device(host_.device(), "adamw", 2);
  make_on(device, host_.pool(), training());
  step();
  (void)engine_->update_report();
  engine_->wait();
  const uint64_t before = engine_->store().hash();
  step();
  EXPECT_FALSE(engine_->update_report().skipped) << "its norm was fine";
  test::expect_error(ErrorKind::runtime, {"EIO at offset 4096 of slab.0"}, [&] { step(); });
  test::expect_error(ErrorKind::runtime, {"EIO at offset 4096 of slab.0"}, [&] { engine_->wait(); });
  EXPECT_EQ(engine_->store().hash(), before) << "nothing was written after the error";
  engine_.reset();
}

TEST_F(EngineTest, AFailedUpdateOfTheTableShowsWhereItsRowsAreFetched) {
  FailingTasks device(host_.device(), "adamw", 1);
  make_on(device, host_.pool(), training());
  engine_->begin_walk();
  for (int access = 0; access < 2; ++access) const Lease lease = engine_->acquire(kLayer);
  const gpu::View rows(engine_->device_part("memory"), DType::f32, 1, kWidth);
  engine_->submit(gpu::Fill{rows, 1});
  engine_->offer_rows(kTable, {3}, rows.data);
  engine_->begin_update(1e-2, std::array{kTableEnd, kTableBegin});
  engine_->begin_walk();
  test::expect_error(ErrorKind::runtime, {"EIO"}, [&] { engine_->fetch_rows(kTable, {3}, rows.data); });
  engine_.reset();
}

TEST_F(EngineTest, AFailedGatherIsAnErrorOfTheFetch) {
  FailingTasks device(host_.device(), "gather rows", 2);
  make_on(device, host_.pool(), training());
  engine_->begin_walk();
  engine_->fetch_rows(kTable, {3}, engine_->device_part("memory"));
  test::expect_error(ErrorKind::runtime, {"EIO"},
                     [&] { engine_->fetch_rows(kTable, {4}, engine_->device_part("memory")); });
  test::expect_error(ErrorKind::runtime, {"EIO"}, [&] {
    for (int access = 0; access < 2; ++access) const Lease lease = engine_->acquire(kLayer);
  });
  engine_.reset();
}

TEST_F(EngineTest, AFailedCopyOnTheMoversLaneIsAnErrorOfTheLease) {
  FailingTasks device(host_.device(), "enqueue copy in", 2);
  make_on(device, host_.pool(), training());
  engine_->begin_walk();
  { const Lease lease = engine_->acquire(kLayer); }
  test::expect_error(ErrorKind::runtime, {"EIO"}, [&] { const Lease lease = engine_->acquire(kLayer); });
  engine_.reset();
}

TEST_F(EngineTest, AFailedNormIsAnErrorOfItsOwnReport) {
  FailingTasks device(host_.device(), "sum of squares", 1);
  make_on(device, host_.pool(), training());
  const uint64_t before = engine_->store().hash();
  step();
  test::expect_error(ErrorKind::runtime, {"EIO"}, [&] { (void)engine_->update_report(); });
  EXPECT_EQ(engine_->store().hash(), before);
  engine_.reset();
}

// ---- misuse

using EngineDeathTest = EngineTest;

TEST_F(EngineDeathTest, MisuseIsCaught) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        make(training());
        engine_->begin_walk();
        const Lease lease = engine_->acquire(kTableBegin);
      },
      "follow the walk");
  EXPECT_DEATH(
      {
        make(training());
        engine_->begin_walk();
        const Lease first = engine_->acquire(kLayer);
        const Lease second = engine_->acquire(kLayer);
      },
      "concurrent_leases");
  EXPECT_DEATH(
      {
        make(training());
        engine_->begin_walk();
        { const Lease lease = engine_->acquire(kLayer); }
        engine_->begin_update(1e-2, {});
      },
      "within a walk");
  EXPECT_DEATH(
      {
        make(training());
        engine_->begin_walk();
        { const Lease lease = engine_->acquire(kLayer); }
        engine_->begin_walk();
      },
      "before its last access");
  EXPECT_DEATH(
      {
        make({});
        (void)engine_->gradients(kLayer);
      },
      "training engine");
}

TEST_F(EngineTest, SeveralLeasesAtATimeWherePlanned) {
  WalkSpec spec = walk();
  spec.concurrent_leases = 2;
  make(training(), spec);
  for (int walk_number = 0; walk_number < 3; ++walk_number) {
    engine_->begin_walk();
    const Lease first = engine_->acquire(kLayer);
    const Lease second = engine_->acquire(kLayer);
    EXPECT_EQ(weight_of(first, 0), weight_of(second, 0));
  }
}

}  // namespace
}  // namespace sluice
