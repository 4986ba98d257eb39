// Tokenizer throughput on one core: MB/s of English prose, each tokenizer verified first by decode(encode(x))
// == x. Prints `ratio tokenizer_vs_20MBps R`, the slowest real tokenizer over the 20 MB/s that feeding a
// trainer wants, beside what PCRE2 alone takes to cut the same text, as the limit.
//
//   SLUICE_FIXTURES=../shared/fixtures bin/bench_tokenizer

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/finetune/data/regex.h"
#include "apps/finetune/data/tokenizer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/xz.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 5;
constexpr size_t kTextBytes = 2'000'000;

const char* const kEmbedded =
    "It was a clear night, and the ship lay quiet at her anchor. The captain walked the deck with his hands "
    "behind him, "
    "counting the lamps along the harbour wall; there were thirty-one of them, he knew, and one had gone "
    "out. \"Mr. "
    "Hale,\" he said, \"what's the depth?\" \"Seven fathoms, sir, and falling,\" came the answer. Nobody "
    "spoke for a while. "
    "Below, the cook was frying onions, and the smell of it drifted up through the hatch, mixed with tar and "
    "wet rope.\n\n";

fs::path fixtures() {
  const char* const folder = std::getenv("SLUICE_FIXTURES");
  return folder != nullptr ? folder : "tests/data";
}

// English of several hands: the shared prose, the licence texts of the system, and a paragraph of our own.
std::string english() {
  std::string text = kEmbedded;
  std::ifstream prose(fixtures() / "tokenizers" / "prose.jsonl");
  for (std::string line; std::getline(prose, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    text += row.is_string() ? row.get<std::string>() : row.value("text", "");
    text += '\n';
  }
  const fs::path licences = "/usr/share/common-licenses";
  if (fs::is_directory(licences)) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(licences)) {
      if (!entry.is_symlink()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) text += test::read_all(file);
  }
  const std::string once = text;
  while (text.size() < kTextBytes) text += once;
  return text;
}

// Of this thread: the machine's other work must not count as ours.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <class Work>
double median_seconds(const Work& work) {
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    const double start = cpu_seconds();
    work();
    seconds.push_back(cpu_seconds() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// MB/s, or 0 where the round trip fails.
double measure(const std::string& name, const std::string& path, const std::string& text) {
  const double start = cpu_seconds();
  Tokenizer tokenizer(path);
  const double load = cpu_seconds() - start;
  std::vector<int32_t> ids = tokenizer.encode_ids(text, SpecialTokens::omit);
  const std::string decoded = tokenizer.decode(ids);
  if (decoded != text && decoded != " " + text) {
    std::printf("%-12s decode(encode(x)) differs from x\n", name.c_str());
    return 0;
  }
  const double plain = median_seconds([&] { ids = tokenizer.encode_ids(text, SpecialTokens::omit); });
  const double offsets = median_seconds([&] { ids = tokenizer.encode(text, SpecialTokens::omit).ids; });
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::printf("%-12s %6.1f MB/s (%5.1f with offsets), %.2f bytes a token, loaded in %.2f s\n", name.c_str(),
              megabytes / plain, megabytes / offsets,
              static_cast<double>(text.size()) / static_cast<double>(ids.size()), load);
  return megabytes / plain;
}

int run() {
  const std::string text = english();
  const Regex pattern(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  size_t words = 0;
  const double cutting = median_seconds([&] { pattern.for_each(text, [&](Regex::Match) { ++words; }); });
  std::printf("%.1f MB of English; PCRE2 cuts it at %.1f MB/s\n", static_cast<double>(text.size()) / 1e6,
              static_cast<double>(text.size()) / 1e6 / cutting);
  double slowest = 1e9;
  bool any = false;
  for (const std::string name :
       {"smollm2", "llama3", "qwen3", "gptoss", "deepseek_v3", "mistral", "gemma3"}) {
    const fs::path packed = fixtures() / ".." / "tokenizers" / name / "tokenizer.json.xz";
    if (!fs::exists(packed)) continue;
    const test::TemporaryFolder folder;
    const fs::path path = folder / "tokenizer.json";
    std::ofstream(path, std::ios::binary) << test::read_xz(packed.string());
    slowest = std::min(slowest, measure(name, path.string(), text));
    any = true;
  }
  if (!any) {
    const fs::path path = fixtures() / "tokenizers" / "small" / "gpt2_trim_offsets" / "tokenizer.json";
    std::printf("no real tokenizers at %s: set SLUICE_FIXTURES to shared/fixtures\n",
                (fixtures() / ".." / "tokenizers").c_str());
    slowest = measure("small", path.string(), text);
  }
  std::printf("ratio tokenizer_vs_20MBps %.2f\n", slowest / 20);
  return slowest > 0 ? 0 : 1;
}

}  // namespace
}  // namespace sluice

int main() {
  return sluice::run();
}
