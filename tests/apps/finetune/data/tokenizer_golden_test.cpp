// Every vector of every tokenizer: what Hugging Face's `tokenizers` made of the same strings
// (shared/fixtures/tokenizers/README.md).

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/finetune/data/tokenizer.h"
#include "engine/base/error.h"
#include "tests/apps/finetune/data/tokenizer_fixtures.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/xz.h"

namespace sluice {
namespace {

using nlohmann::json;

template <class Span>
json pairs(const std::vector<Span>& spans) {
  json result = json::array();
  for (const Span& span : spans) result.push_back({span.begin, span.end});
  return result;
}

// All differences of one vector, empty when there are none.
std::string differences(Tokenizer& tokenizer, const json& vector) {
  const std::string text = vector["text"];
  const Encoding plain = tokenizer.encode(text, SpecialTokens::omit);
  const std::vector<int32_t> special = tokenizer.encode_ids(text, SpecialTokens::add);
  std::ostringstream out;
  const auto compare = [&](const char* what, const json& is, const json& wanted) {
    if (is == wanted) return;
    const auto shown = [](const json& v) { return v.dump(-1, ' ', true).substr(0, 600); };
    out << "  " << what << "\n    is     " << shown(is) << "\n    wanted " << shown(wanted) << "\n";
  };
  compare("ids", plain.ids, vector["ids"]);
  compare("ids_special", special, vector["ids_special"]);
  compare("encode with special tokens", tokenizer.encode(text, SpecialTokens::add).ids,
          vector["ids_special"]);
  compare("offsets", pairs(plain.code_points), vector["offsets"]);
  compare("byte_offsets", pairs(plain.bytes), vector["byte_offsets"]);
  compare("decoded", tokenizer.decode(plain.ids), vector["decoded"]);
  compare("decoded_skip", tokenizer.decode(plain.ids, Tokenizer::Skip::special), vector["decoded_skip"]);
  compare("decoded_special", tokenizer.decode(special), vector["decoded_special"]);
  return out.str();
}

void check(const std::string& tokenizer_path, const std::string& vectors) {
  Tokenizer tokenizer(tokenizer_path);
  std::istringstream lines(vectors);
  int count = 0;
  int wrong = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json vector = json::parse(line);
    const std::string found = differences(tokenizer, vector);
    if (found.empty()) continue;
    if (++wrong <= 5)
      ADD_FAILURE() << "vector " << count << " (" << vector["kind"] << ") "
                    << vector["text"].dump(-1, ' ', true).substr(0, 300) << "\n"
                    << found;
  }
  EXPECT_EQ(wrong, 0) << "of " << count;
  EXPECT_GE(count, 100);
}

class SmallTokenizer : public testing::TestWithParam<std::string> {};

TEST_P(SmallTokenizer, AgreesWithTheReference) {
  const auto folder = test::fixtures_folder() / "tokenizers" / "small" / GetParam();
  check((folder / "tokenizer.json").string(), test::read_all(folder / "vectors.jsonl"));
}

INSTANTIATE_TEST_SUITE_P(
    All, SmallTokenizer,
    testing::ValuesIn(test::folders_with(test::fixtures_folder() / "tokenizers" / "small", "vectors.jsonl")),
    [](const auto& name) { return name.param; });

class RealTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(RealTokenizer, AgreesWithTheReference) {
  const std::string name = GetParam();
  const auto packed = test::real_tokenizer(name);
  const auto vectors = test::fixtures_folder() / "tokenizers" / (name + ".jsonl.xz");
  if (!std::filesystem::exists(packed) || !std::filesystem::exists(vectors))
    GTEST_SKIP() << packed << " or " << vectors << " is missing; set SLUICE_FIXTURES to shared/fixtures";
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "tokenizer.json";
  std::ofstream(path, std::ios::binary) << test::read_xz(packed.string());
  check(path.string(), test::read_xz(vectors.string()));
}

INSTANTIATE_TEST_SUITE_P(All, RealTokenizer,
                         testing::Values("smollm2", "llama3", "qwen3", "deepseek_v3", "gptoss", "mistral",
                                         "gemma3"),
                         [](const auto& name) { return std::string(name.param); });

class RefusedTokenizer : public testing::TestWithParam<std::string> {};

TEST_P(RefusedTokenizer, IsRefusedByName) {
  const auto folder = test::fixtures_folder() / "tokenizers" / "small" / "refused" / GetParam();
  const std::string path = (folder / "tokenizer.json").string();
  const json expected = json::parse(test::read_all(folder / "expected.json"));
  try {
    const Tokenizer tokenizer(path);
    FAIL() << "was read";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 3);
    const std::string message = error.what();
    EXPECT_NE(message.find(path), std::string::npos) << message;
    for (const std::string name : expected["names"])
      EXPECT_NE(message.find(name), std::string::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RefusedTokenizer,
                         testing::ValuesIn(test::folders_with(
                             test::fixtures_folder() / "tokenizers" / "small" / "refused", "expected.json")),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace sluice
