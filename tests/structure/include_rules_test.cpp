#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/source_tree.h"

// Who may include whom (docs/architecture.md, "The tree"), held by reading every #include of the tree.
//
//   engine/base <- io, cpu_optim, gpu <- engine/{memory,store,schedule,train,api} <- apps <- tests, bench

namespace {

using Strings = std::vector<std::string_view>;

// "dir/" is all that lies under dir, "dir/*" only the files directly in it, anything else one file.
bool matches(std::string_view pattern, std::string_view path) {
  if (pattern.ends_with("/*")) {
    pattern.remove_suffix(1);
    return path.starts_with(pattern) && path.find('/', pattern.size()) == std::string_view::npos;
  }
  return pattern.ends_with('/') ? path.starts_with(pattern) : path == pattern;
}

bool matches_any(const Strings& patterns, std::string_view path) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view p) { return matches(p, path); });
}

// What the files under `folder` may include of this tree. The longest folder that fits a file decides.
struct Rule {
  std::string_view folder;
  Strings allowed;
  Strings except = {};
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> kRules = {
      {"engine/base/", {"engine/base/"}},
      {"io/", {"engine/base/", "io/"}},
      {"cpu_optim/", {"engine/base/", "cpu_optim/"}},
      {"gpu/", {"engine/base/", "gpu/*", "gpu/ops/"}},
      {"gpu/reference/", {"engine/base/", "gpu/*", "gpu/ops/", "gpu/reference/"}},
      {"gpu/host/", {"engine/base/", "gpu/*", "gpu/ops/", "gpu/reference/", "gpu/host/"}},
      {"gpu/timed/", {"engine/base/", "gpu/*", "gpu/ops/", "gpu/timed/"}},
      {"gpu/cuda/", {"engine/base/", "gpu/*", "gpu/ops/", "gpu/cuda/"}},
      // The engine sees interfaces only.
      {"engine/", {"engine/", "io/*", "cpu_optim/*", "gpu/*", "gpu/ops/"}, {"io/uring_queue.h"}},
      {"apps/", {"engine/", "io/", "cpu_optim/", "gpu/", "apps/"}},
      // The engine's first embedder, which keeps its API honest.
      {"apps/finetune/model/",
       {"apps/finetune/model/", "engine/api/", "engine/base/", "io/", "gpu/ops/", "gpu/view.h",
        "gpu/stream.h"}},
      {"tests/", {"engine/", "io/", "cpu_optim/", "gpu/", "apps/", "tests/"}},
      {"bench/", {"engine/", "io/", "cpu_optim/", "gpu/", "apps/", "tests/support/", "bench/"}},
  };
  return kRules;
}

const Rule* rule_of(std::string_view path) {
  const Rule* longest = nullptr;
  for (const Rule& rule : rules()) {
    if (matches(rule.folder, path) && (longest == nullptr || rule.folder.size() > longest->folder.size())) {
      longest = &rule;
    }
  }
  return longest;
}

// Headers of other libraries that only some folders may see.
struct ForeignRule {
  std::string_view what;
  Strings prefixes;
  Strings folders;
};

const std::vector<ForeignRule>& foreign_rules() {
  static const std::vector<ForeignRule> kRules = {
      {"CUDA headers",
       {"cuda", "cublas", "cudnn", "nccl", "nvtx3/", "nvml", "cub/", "thrust/", "cooperative_groups",
        "curand", "cufile", "device_launch_parameters"},
       {"gpu/cuda/"}},
      {"oneDNN headers", {"dnnl", "oneapi/dnnl/"}, {"gpu/host/", "bench/", "tests/"}},
      {"Eigen headers", {"Eigen/"}, {"gpu/host/", "bench/", "tests/"}},
      {"oneTBB headers (the pool is injected)", {"tbb/", "oneapi/tbb"}, {"apps/", "bench/", "tests/"}},
      {"io_uring headers", {"liburing", "linux/io_uring"}, {"io/uring_queue.cpp"}},
      {"command-line options", {"cxxopts"}, {"apps/"}},
  };
  return kRules;
}

constexpr std::array<std::string_view, 7> kFolders = {"engine", "io",    "cpu_optim", "gpu",
                                                      "apps",   "tests", "bench"};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  return text;
}

// "include", "ifdef" ... and what follows it, of a preprocessor line.
struct Directive {
  std::string_view name;
  std::string_view rest;
};

std::optional<Directive> directive(std::string_view line) {
  line = trimmed(line);
  if (line.empty() || line.front() != '#') return std::nullopt;
  line = trimmed(line.substr(1));
  size_t end = 0;
  while (end < line.size() && std::isalpha(static_cast<unsigned char>(line[end]))) ++end;
  return Directive{line.substr(0, end), trimmed(line.substr(end))};
}

bool is_ours(std::string_view included) {
  const std::string_view top = included.substr(0, included.find('/'));
  return std::find(kFolders.begin(), kFolders.end(), top) != kFolders.end();
}

std::string check_ours(std::string_view path, std::string_view included, const std::filesystem::path& root) {
  if (!root.empty() && !std::filesystem::exists(root / included)) return "no such file in the tree";
  const Rule* rule = rule_of(path);
  if (rule == nullptr) return "";
  if (matches_any(rule->allowed, included) && !matches_any(rule->except, included)) return "";
  std::string message = std::string(rule->folder) + " may include only";
  for (std::string_view allowed : rule->allowed) message += " " + std::string(allowed);
  for (std::string_view except : rule->except) message += ", never " + std::string(except);
  return message;
}

std::string check_foreign(std::string_view path, std::string_view included) {
  for (const ForeignRule& rule : foreign_rules()) {
    const bool is_it = std::any_of(rule.prefixes.begin(), rule.prefixes.end(),
                                   [&](std::string_view prefix) { return included.starts_with(prefix); });
    if (!is_it || matches_any(rule.folders, path)) continue;
    std::string message = std::string(rule.what) + " stand only in";
    for (std::string_view folder : rule.folders) message += " " + std::string(folder);
    return message;
  }
  const bool is_standard = included.find('/') == std::string_view::npos && !included.ends_with(".h");
  if (path.starts_with("engine/base/") && !is_standard) return "engine/base/ takes the standard library only";
  return "";
}

// The linker picks a backend, so no condition of the preprocessor may ask for one.
std::string check_condition(std::string_view path, const Directive& line) {
  constexpr std::array<std::string_view, 5> kConditions = {"if", "ifdef", "ifndef", "elif", "elifdef"};
  if (std::find(kConditions.begin(), kConditions.end(), line.name) == kConditions.end()) return "";
  for (std::string_view word : {"CUDA", "CUBLAS", "NCCL", "DNNL", "ONEDNN", "EIGEN", "TBB", "USE_MPI",
                                "HAVE_MPI", "URING", "NVCC", "cuda", "dnnl"}) {
    if (line.rest.find(word) == std::string_view::npos) continue;
    // Device code may ask which pass of nvcc reads it.
    if (path.starts_with("gpu/cuda/") && line.rest.find("__CUDA") != std::string_view::npos) continue;
    return "a condition about a backend (" + std::string(word) + "): let CMake choose a file";
  }
  return "";
}

// All that is wrong with one file, as "path:line: what". An empty root does not look for the included files.
std::vector<std::string> violations(const std::string& path, const std::string& text,
                                    const std::filesystem::path& root = {}) {
  std::vector<std::string> found;
  const bool is_device_code = path.ends_with(".cu") || path.ends_with(".cuh");
  if (is_device_code && !path.starts_with("gpu/cuda/"))
    found.push_back(path + ":1: device code stands only in gpu/cuda/");
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::optional<Directive> parsed = directive(line);
    if (!parsed) continue;
    std::string wrong = check_condition(path, *parsed);
    if (parsed->name == "include" && parsed->rest.size() > 1) {
      const bool is_quoted = parsed->rest[0] == '"';
      const std::string_view included =
          parsed->rest.substr(1, parsed->rest.find(is_quoted ? '"' : '>', 1) - 1);
      if (is_quoted && included.find('/') == std::string_view::npos) {
        wrong = "write it from the root, as \"folder/file.h\"";
      } else {
        wrong = is_ours(included) ? check_ours(path, included, root) : check_foreign(path, included);
      }
    }
    if (!wrong.empty()) found.push_back(path + ":" + std::to_string(number) + ": " + line + "   <- " + wrong);
  }
  return found;
}

bool is_source(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 6> kEndings = {".h", ".cpp", ".cu", ".cuh", ".hpp", ".cc"};
  return std::find(kEndings.begin(), kEndings.end(), path.extension().string()) != kEndings.end();
}

TEST(IncludeRules, HoldInTheWholeTree) {
  const std::filesystem::path root = sluice::test::source_folder();
  int file_count = 0;
  for (std::string_view folder : kFolders) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      ++file_count;
      std::ifstream file(entry.path());
      std::ostringstream text;
      text << file.rdbuf();
      const std::string path = std::filesystem::relative(entry.path(), root).generic_string();
      for (const std::string& wrong : violations(path, text.str(), root)) ADD_FAILURE() << wrong;
    }
  }
  EXPECT_GT(file_count, 20);  // the walk found the tree
}

// A violation in each of these, and none in its neighbour: the rule can fail.
struct Case {
  const char* path;
  const char* line;
  bool allowed;
};

class IncludeRuleCase : public ::testing::TestWithParam<Case> {};

TEST_P(IncludeRuleCase, IsJudged) {
  const Case& the_case = GetParam();
  const std::vector<std::string> found = violations(the_case.path, std::string("\n") + the_case.line + "\n");
  if (the_case.allowed) {
    EXPECT_THAT(found, ::testing::IsEmpty());
  } else {
    ASSERT_THAT(found, ::testing::SizeIs(1));
    EXPECT_THAT(found[0], ::testing::StartsWith(std::string(the_case.path) + ":2: "));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, IncludeRuleCase,
    ::testing::Values(Case{"engine/base/log.h", "#include \"io/file.h\"", false},
                      Case{"engine/base/log.h", "#include \"engine/memory/lease.h\"", false},
                      Case{"engine/base/log.h", "#include \"engine/base/error.h\"", true},
                      Case{"engine/base/log.h", "#include <fmt/format.h>", false},
                      Case{"engine/base/log.h", "#include <vector>", true},
                      Case{"io/file.cpp", "#include \"cpu_optim/adamw.h\"", false},
                      Case{"io/file.cpp", "#include \"gpu/device.h\"", false},
                      Case{"io/file.cpp", "#include \"engine/memory/tier.h\"", false},
                      Case{"io/file.cpp", "  #  include \"engine/base/error.h\"", true},
                      Case{"io/thread_queue.cpp", "#include <liburing.h>", false},
                      Case{"io/uring_queue.cpp", "#include <liburing.h>", true},
                      Case{"cpu_optim/adamw.cpp", "#include \"io/file.h\"", false},
                      Case{"cpu_optim/adamw.cpp", "#include \"gpu/view.h\"", false},
                      Case{"gpu/device.h", "#include \"gpu/host/host_device.h\"", false},
                      Case{"gpu/device.h", "#include \"io/file.h\"", false},
                      Case{"gpu/host/host_device.cpp", "#include \"gpu/cuda/cuda_device.h\"", false},
                      Case{"gpu/host/host_device.cpp", "#include \"gpu/device.h\"", true},
                      Case{"gpu/timed/timed_device.cpp", "#include \"gpu/op_cost.h\"", true},
                      Case{"gpu/timed/timed_device.cpp", "#include \"gpu/host/host_device.h\"", false},
                      Case{"engine/train/step.cpp", "#include \"gpu/timed/timed_device.h\"", false},
                      Case{"gpu/host/linear.cpp", "#include <dnnl.hpp>", true},
                      Case{"gpu/reference/linear.cpp", "#include <dnnl.hpp>", false},
                      Case{"engine/train/step.cpp", "#include \"gpu/cuda/cuda_device.h\"", false},
                      Case{"engine/train/step.cpp", "#include \"gpu/host/host_device.h\"", false},
                      Case{"engine/train/step.cpp", "#include \"io/uring_queue.h\"", false},
                      Case{"engine/train/step.cpp", "#include \"io/io_queue.h\"", true},
                      Case{"engine/train/step.cpp", "#include \"apps/common/pool.h\"", false},
                      Case{"engine/train/step.cpp", "#include <oneapi/tbb/task_arena.h>", false},
                      Case{"engine/api/engine.cpp", "#include \"gpu/ops/ops.h\"", true},
                      Case{"apps/finetune/model/decoder.cpp", "#include \"engine/api/engine.h\"", true},
                      Case{"apps/finetune/model/decoder.cpp", "#include \"gpu/ops/ops.h\"", true},
                      Case{"apps/finetune/model/decoder.cpp", "#include \"engine/memory/lease.h\"", false},
                      Case{"apps/finetune/model/decoder.cpp", "#include \"gpu/host/host_device.h\"", false},
                      Case{"apps/finetune/model/decoder.cpp", "#include \"apps/finetune/options.h\"", false},
                      Case{"apps/finetune/main.cpp", "#include \"gpu/host/host_device.h\"", true},
                      Case{"apps/finetune/main.cpp", "#include \"tests/support/tolerance.h\"", false},
                      Case{"apps/finetune/main.cpp", "#include \"options.h\"", false},
                      Case{"apps/finetune/main.cpp", "#include <cuda_runtime.h>", false},
                      Case{"gpu/cuda/cuda_device.cpp", "#include <cuda_runtime.h>", true},
                      Case{"gpu/cuda/kernel.cu", "#if __CUDA_ARCH__ >= 800", true},
                      Case{"apps/finetune/main.cpp", "#ifdef SLUICE_CUDA", false},
                      Case{"gpu/device.h", "#if defined(SLUICE_USE_ONEDNN)", false},
                      Case{"gpu/device.h", "#if __has_include(<cuda_runtime.h>)", false},
                      Case{"engine/base/thread_annotations.h", "#if defined(__clang__)", true},
                      Case{"bench/gpu/bench_linear.cpp", "#include \"tests/support/tolerance.h\"", true},
                      Case{"tests/io/file_test.cpp", "#include \"bench/support.h\"", false}));

TEST(IncludeRules, DeviceCodeStandsInOneFolder) {
  EXPECT_THAT(violations("engine/train/step.cu", "\n"), ::testing::SizeIs(1));
  EXPECT_THAT(violations("gpu/cuda/step.cu", "\n"), ::testing::IsEmpty());
}

TEST(IncludeRules, IncludedFilesExist) {
  const std::string line = "#include \"engine/base/no_such_file.h\"\n";
  EXPECT_THAT(violations("io/file.cpp", line, sluice::test::source_folder()), ::testing::SizeIs(1));
}

}  // namespace
