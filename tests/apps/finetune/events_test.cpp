#include "apps/finetune/events.h"

#include <gtest/gtest.h>
#include <limits>
#include <sstream>

#include "apps/common/version.h"
#include "apps/finetune/progress.h"
#include "apps/finetune/report.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice::finetune {
namespace {

TEST(EventLogTest, EachLineIsInTheFileWhenWriteReturns) {
  const test::TemporaryFolder folder;
  test::write_all(folder / "events.jsonl", "of an older run, and longer than what comes\n");
  EventLog log(folder / "events.jsonl");
  log.write({{"event", "start"}, {"steps", 2}});
  EXPECT_EQ(test::read_all(folder / "events.jsonl"), "{\"event\":\"start\",\"steps\":2}\n");
  log.write({{"event", "end"}});
  EXPECT_EQ(test::read_all(folder / "events.jsonl"),
            "{\"event\":\"start\",\"steps\":2}\n{\"event\":\"end\"}\n");
}

TEST(EventLogTest, LinesStayJsonWhateverTheValues) {
  const test::TemporaryFolder folder;
  EventLog log(folder / "events.jsonl");
  log.write({{"loss", std::numeric_limits<double>::quiet_NaN()}, {"text", "a\nb \xff"}});
  const std::string text = test::read_all(folder / "events.jsonl");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const nlohmann::json line = nlohmann::json::parse(text);
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_EQ(line["text"], "a\nb \xef\xbf\xbd");
}

TEST(EventLogTest, AFullDiskSilencesTheLogOnly) {
  testing::internal::CaptureStderr();
  EventLog log("/dev/full");
  log.write({{"event", "start"}});
  log.write({{"event", "end"}});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("No space left"), std::string::npos) << said;
  EXPECT_EQ(said.find("No space left"), said.rfind("No space left")) << "said once: " << said;
}

TEST(ProgressTest, PlainLinesEveryFewStepsTheFirstTheLastAndSkippedOnes) {
  std::ostringstream out;
  Progress progress(out, Progress::Style::lines, 7, 3);
  for (int64_t step = 1; step <= 7; ++step) progress.show({.step = step, .loss = 2.5, .skipped = step == 5});
  progress.finish();
  std::vector<std::string> steps;
  std::istringstream lines(out.str());
  for (std::string word, count; lines >> word >> count && std::getline(lines, word);) steps.push_back(count);
  EXPECT_EQ(steps, (std::vector<std::string>{"1/7", "3/7", "5/7", "6/7", "7/7"}));
  EXPECT_NE(out.str().find("SKIPPED"), std::string::npos);
  EXPECT_EQ(out.str().find('\r'), std::string::npos);
}

TEST(ProgressTest, ABarIsDrawnOverItself) {
  std::ostringstream out;
  Progress progress(out, Progress::Style::bar, 2, 100);
  progress.show({.step = 1, .loss = 12345678.0, .tokens_per_second = 1});
  progress.show({.step = 2, .loss = 1, .tokens_per_second = 1});
  progress.finish();
  const std::string text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const size_t second = text.rfind('\r');
  EXPECT_NE(text.find("[######......] 1/2 loss "), std::string::npos) << text;
  // The shorter line covers the longer one.
  EXPECT_GE(text.size() - second - 1, second - 1) << text;
}

TEST(ReportTest, DurationsReadWell) {
  EXPECT_EQ(duration_text(4.25), "4.2 s");
  EXPECT_EQ(duration_text(200), "3 min 20 s");
  EXPECT_EQ(duration_text(7500), "2 h 05 min");
}

TEST(ReportTest, TheBannerSpeaksHuggingFacesWords) {
  TrainOptions options;
  options.per_device_train_batch_size = 2;
  options.gradient_accumulation_steps = 4;
  const std::string text = training_banner(
      options,
      {.example_count = 1234, .total_steps = 5, .steps_per_epoch = 2, .trainable_parameters = 134515008});
  EXPECT_EQ(text,
            "***** Running training *****\n"
            "  Num examples = 1,234\n"
            "  Num Epochs = 3\n"
            "  Instantaneous batch size per device = 2\n"
            "  Total train batch size (w. parallel, distributed & accumulation) = 8\n"
            "  Gradient Accumulation steps = 4\n"
            "  Total optimization steps = 5\n"
            "  Number of trainable parameters = 134,515,008\n");
}

TEST(VersionTest, IsThatOfTheBuild) {
  const std::string cmake = test::read_all(test::source_folder() / "CMakeLists.txt");
  EXPECT_NE(cmake.find("project(sluice VERSION " + std::string(kVersion)), std::string::npos);
}

}  // namespace
}  // namespace sluice::finetune
