#include "apps/finetune/data/batcher.h"

#include <fstream>
#include <gtest/gtest.h>
#include <set>

#include "tests/apps/finetune/data/tokenizer_fixtures.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

// `count` rows of different lengths.
Dataset dataset(int count) {
  const test::TemporaryFolder folder;
  const auto path = folder / "data.jsonl";
  std::ofstream file(path);
  for (int i = 0; i < count; ++i) {
    file << "{\"prompt\": \"row " << i << "\", \"completion\": \" is";
    for (int k = 0; k <= i % 9; ++k) file << " long";
    file << "\"}\n";
  }
  file.close();
  Tokenizer tokenizer(
      (test::fixtures_folder() / "tokenizers" / "small" / "gpt2_trim_offsets" / "tokenizer.json").string());
  DatasetOptions options;
  options.eos_token_id = 1000;
  return Dataset::read(path.string(), tokenizer, options);
}

// A micro-batch says exactly what its rows say.
void expect_faithful(const finetune::MicroBatch& batch, const Dataset& data) {
  ASSERT_EQ(batch.document_offsets.size(), batch.rows.size() + 1);
  ASSERT_EQ(batch.padded_token_count() % finetune::kTokenPadding, 0);
  ASSERT_LT(batch.padded_token_count() - batch.token_count(), finetune::kTokenPadding);
  ASSERT_EQ(batch.document_offsets[0], 0);
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    const DatasetRow row = data.row(batch.rows[r]);
    const auto begin = static_cast<size_t>(batch.document_offsets[r]);
    ASSERT_EQ(static_cast<size_t>(batch.document_offsets[r + 1]) - begin, row.ids.size());
    for (size_t t = 0; t < row.ids.size(); ++t) {
      ASSERT_EQ(batch.tokens[begin + t], row.ids[t]);
      ASSERT_EQ(batch.positions[begin + t], static_cast<int32_t>(t));
      const bool target = t + 1 < row.ids.size() && row.labelled[t + 1] != 0;
      ASSERT_EQ(batch.targets[begin + t], target ? row.ids[t + 1] : -1);
      ASSERT_EQ(batch.weights[begin + t], target ? 1.0f : 0.0f);
    }
  }
  for (auto t = static_cast<size_t>(batch.token_count()); t < batch.tokens.size(); ++t) {
    ASSERT_EQ(batch.targets[t], -1);
    ASSERT_EQ(batch.weights[t], 0.0f);
    ASSERT_EQ(batch.tokens[t], 0);
  }
}

TEST(Batcher, EveryRowOnceAnEpoch) {
  const Dataset data = dataset(23);
  const Batcher batcher(data, 42, {.per_device_train_batch_size = 3, .gradient_accumulation_steps = 2});
  EXPECT_EQ(batcher.steps_per_epoch(), 4);
  DataCursor cursor;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::multiset<int64_t> seen;
    int64_t targets = 0;
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(cursor.epoch, epoch);
      const StepWindow window = batcher.window(cursor);
      EXPECT_EQ(window.micro_batches.size(), 2u);
      for (const finetune::MicroBatch& batch : window.micro_batches) {
        expect_faithful(batch, data);
        EXPECT_LE(batch.padded_token_count(), batcher.most_padded_tokens());
        EXPECT_EQ(batch.rows.size(), step == 3 && &batch == &window.micro_batches[1] ? 2u : 3u);
        seen.insert(batch.rows.begin(), batch.rows.end());
        targets += batch.target_count();
      }
      cursor = window.next;
    }
    EXPECT_EQ(seen.size(), 23u);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 23u);
    EXPECT_EQ(targets, data.report().label_count);
  }
  EXPECT_EQ(cursor, (DataCursor{2, 0}));
}

TEST(Batcher, LastWindowMayHaveFewerMicroBatches) {
  const Dataset data = dataset(7);
  const Batcher batcher(data, 1, {.per_device_train_batch_size = 2, .gradient_accumulation_steps = 3});
  const StepWindow first = batcher.window({});
  EXPECT_EQ(first.micro_batches.size(), 3u);
  const StepWindow last = batcher.window(first.next);
  EXPECT_EQ(last.micro_batches.size(), 1u);
  EXPECT_EQ(last.micro_batches[0].rows.size(), 1u);
  EXPECT_EQ(last.weight(), static_cast<double>(last.micro_batches[0].target_count()));
  EXPECT_EQ(last.tokens(), data.row_length(last.micro_batches[0].rows[0]));
}

// A step depends on its cursor alone: what a resumed run gets is what the first one would have got.
TEST(Batcher, WindowsDependOnTheCursorAlone) {
  const Dataset data = dataset(23);
  const BatcherOptions options{.per_device_train_batch_size = 2, .gradient_accumulation_steps = 2};
  const Batcher batcher(data, 42, options);
  DataCursor cursor;
  for (int step = 0; step < 15; ++step) {
    const StepWindow window = batcher.window(cursor);
    const StepWindow again = Batcher(data, 42, options).window(cursor);
    ASSERT_EQ(window.micro_batches.size(), again.micro_batches.size());
    for (size_t i = 0; i < window.micro_batches.size(); ++i)
      EXPECT_EQ(window.micro_batches[i].rows, again.micro_batches[i].rows);
    EXPECT_EQ(window.next, again.next);
    cursor = window.next;
  }
}

TEST(Batcher, TheLargestMicroBatchIsKnown) {
  const Dataset data = dataset(30);
  for (const int64_t rows : {1, 2, 7, 29, 30, 31}) {
    const Batcher batcher(data, 5, {.per_device_train_batch_size = rows});
    int64_t longest = 0;
    for (DataCursor cursor; cursor.epoch < 20;) {
      const StepWindow window = batcher.window(cursor);
      longest = std::max(longest, window.micro_batches[0].padded_token_count());
      cursor = window.next;
    }
    EXPECT_LE(longest, batcher.most_padded_tokens());
    if (rows == 1 || rows >= 30) {
      EXPECT_EQ(longest, batcher.most_padded_tokens());
    }
  }
}

TEST(Batcher, SequentialKeepsFileOrder) {
  const Dataset data = dataset(5);
  const Batcher batcher(data, 1, {.per_device_train_batch_size = 2});
  EXPECT_EQ(batcher.sequential(0).rows, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(batcher.sequential(4).rows, (std::vector<int64_t>{4}));
  EXPECT_TRUE(batcher.sequential(5).rows.empty());
  EXPECT_EQ(batcher.sequential(5).padded_token_count(), 0);
  expect_faithful(batcher.sequential(2), data);
}

TEST(Batcher, RefusesZeroRows) {
  const Dataset data = dataset(3);
  test::expect_error(ErrorKind::usage, {"per_device_train_batch_size"},
                     [&] { const Batcher batcher(data, 1, {.per_device_train_batch_size = 0}); });
}

}  // namespace
}  // namespace sluice
