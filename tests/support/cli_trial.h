#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"

namespace sluice::test {

// The program `finetune` with a tiny model and a few rows, in a folder of its own.
class CliTrial : public ::testing::Test {
 protected:
  using Arguments = std::vector<std::string>;
  explicit CliTrial(std::string_view rows);

  static Arguments joined(Arguments first, const Arguments& more);
  static Arguments command(Arguments arguments);  // with the program's path
  static Outcome run(const Arguments& arguments, const std::string& input = "");

  const TemporaryFolder folder_;
  const std::filesystem::path model_ = folder_ / "model";
  const std::filesystem::path data_ = folder_ / "data.jsonl";
  const std::filesystem::path output_ = folder_ / "out";
};

std::vector<nlohmann::json> read_events(const std::filesystem::path& output);

}  // namespace sluice::test
