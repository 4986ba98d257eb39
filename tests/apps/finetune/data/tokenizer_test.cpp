#include "apps/finetune/data/tokenizer.h"

#include <chrono>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/apps/finetune/data/tokenizer_fixtures.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using nlohmann::json;

std::string small(const std::string& name) {
  return (test::fixtures_folder() / "tokenizers" / "small" / name / "tokenizer.json").string();
}

// Writes `text` as a tokenizer.json and expects that it is refused.
void refuses(const std::string& text, const std::vector<std::string>& names) {
  const test::TemporaryFolder folder;
  const auto path = folder / "tokenizer.json";
  std::ofstream(path, std::ios::binary) << text;
  std::vector<std::string> all = names;
  all.push_back(path.string());
  test::expect_error(ErrorKind::data, all, [&] { const Tokenizer tokenizer(path.string()); });
}

json tiny() {
  return json::parse(R"({"added_tokens": [{"id": 3, "content": "<s>", "special": true}], "normalizer": null,
    "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

TEST(Tokenizer, TinyFileWorks) {
  const test::TemporaryFolder folder;
  const auto path = folder / "tokenizer.json";
  std::ofstream(path) << tiny().dump();
  Tokenizer tokenizer(path.string());
  EXPECT_EQ(tokenizer.encode_ids("ab<s>ba", SpecialTokens::omit), (std::vector<int32_t>{2, 3, 1, 0}));
  EXPECT_EQ(tokenizer.id_end(), 4);
  EXPECT_EQ(tokenizer.token_to_id("<s>"), 3);
  EXPECT_EQ(tokenizer.token_to_id("nothing"), -1);
  EXPECT_EQ(tokenizer.id_to_token(2), "ab");
  EXPECT_EQ(tokenizer.id_to_token(99), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(3));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{2, 99, -1, 0}), "ab a");
}

TEST(Tokenizer, RefusesWhatIsNotSupported) {
  const auto with = [](const char* pointer, const json& value) {
    json file = tiny();
    file[json::json_pointer(pointer)] = value;
    return file.dump();
  };
  refuses(with("/model/continuing_subword_prefix", "##"), {"continuing_subword_prefix", "##"});
  refuses(with("/model/end_of_word_suffix", "</w>"), {"end_of_word_suffix"});
  refuses(with("/model/dropout", 0.1), {"dropout"});
  refuses(with("/decoder", {{"type", "Mystery"}}), {"decoder", "Mystery"});
  refuses(with("/post_processor", {{"type", "BertProcessing"}}), {"post_processor", "BertProcessing"});
  refuses(
      with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Sideways"}}),
      {"Sideways"});
  refuses(with("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}}),
          {"Lowercase"});
}

TEST(Tokenizer, RefusesDamagedFiles) {
  const auto with = [](const char* pointer, const json& value) {
    json file = tiny();
    file[json::json_pointer(pointer)] = value;
    return file.dump();
  };
  refuses("", {"JSON"});
  refuses("[]", {"not a JSON object"});
  refuses(R"({"model": {"type": "BPE")", {"JSON", "byte"});
  refuses(R"({"model": {"type": "BPE", "vocab": {"a": {"b": 1}}}})", {"\"a\""});
  refuses(std::string(100, '[') + std::string(100, ']'), {"nested"});
  refuses(R"({"version": "1.0"})", {"model"});
  refuses(R"({"model": {"type": "BPE", "merges": []}})", {"vocab"});
  refuses(with("/model/vocab/a", -1), {"\"a\"", "-1"});
  refuses(with("/model/vocab/a", 4000000000u), {"\"a\"", "4000000000"});
  refuses(with("/model/vocab/a", 18446744073709551615u), {"\"a\""});
  refuses(with("/model/vocab/a", 0.5), {"\"a\"", "0.5"});
  refuses(with("/model/vocab/a", 2), {"has id 2", "\"ab\""});
  refuses(with("/model/merges", {"a b c"}), {"merge 0", "a b c"});
  refuses(with("/model/merges", {{"a", "b", "ab"}}), {"merge 0"});
  refuses(with("/model/merges", {"b a"}), {"\"ba\""});
  refuses(with("/added_tokens/0/id", 7), {"<s>", "7", "3"});
  refuses(with("/added_tokens/0/content", 7), {"content"});
  test::expect_error(ErrorKind::data, {"/no/such/tokenizer.json", "No such file"},
                     [] { const Tokenizer tokenizer("/no/such/tokenizer.json"); });
}

TEST(Tokenizer, InvalidTextNamesTheByte) {
  Tokenizer tokenizer(small("gpt2_trim_offsets"));
  test::expect_error(ErrorKind::data, {"byte 3"},
                     [&] { (void)tokenizer.encode("abc\xff", SpecialTokens::omit); });
  test::expect_error(ErrorKind::data, {"byte 0"},
                     [&] { (void)tokenizer.encode_ids("\xed\xa0\x80", SpecialTokens::omit); });
}

// Merging must not be quadratic: a megabyte of one letter, and of two in turn, in every arrangement. In words
// that are one long run the whole megabyte is one word. (A limit of 5 s: under a sanitizer on a busy machine;
// quadratic would be hours.)
TEST(Tokenizer, LongRunsAreFast) {
  for (const char* name :
       {"gpt2_trim_offsets", "qwen2_nfc", "llama2_legacy", "ignore_merges_true", "space_merges"}) {
    Tokenizer tokenizer(small(name));
    std::string two;
    while (two.size() < 1'000'000) two += "ab";
    for (const std::string& text : {std::string(1'000'000, 'a'), std::string(1'000'000, ' '), two}) {
      const auto start = std::chrono::steady_clock::now();
      const Encoding encoding = tokenizer.encode(text, SpecialTokens::omit);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      EXPECT_LT(seconds, 5) << name << " on a run of '" << text[0] << "'";
      EXPECT_EQ(encoding.bytes.back().end, text.size()) << name;
      EXPECT_EQ(tokenizer.encode_ids(text, SpecialTokens::omit), encoding.ids) << name;
    }
  }
}

// Copies share tables and nothing else.
TEST(Tokenizer, CopiesWorkInThreads) {
  Tokenizer tokenizer(small("qwen2_nfc"));
  std::string text;
  for (int i = 0; i < 300; ++i) text += "Line " + std::to_string(i) + " says cafe\u0301 and 中文!\n";
  const std::vector<int32_t> wanted = tokenizer.encode_ids(text, SpecialTokens::omit);
  std::vector<std::vector<int32_t>> found(3);
  std::vector<std::thread> threads;
  for (auto& ids : found)
    threads.emplace_back(
        [&ids, &text, copy = tokenizer]() mutable { ids = copy.encode_ids(text, SpecialTokens::omit); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& ids : found) EXPECT_EQ(ids, wanted);
}

// What a word's tokens are must not depend on what the cache holds.
TEST(Tokenizer, CacheChangesNothing) {
  Tokenizer used(small("added_tokens"));
  for (int i = 0; i < 40000; ++i) (void)used.encode_ids(" w" + std::to_string(i * 7919), SpecialTokens::omit);
  for (int i = 0; i < 200; ++i) {
    Tokenizer fresh(used);
    const std::string text = " w" + std::to_string(i * 7919) + " and on";
    ASSERT_EQ(used.encode_ids(text, SpecialTokens::omit), fresh.encode_ids(text, SpecialTokens::omit))
        << text;
  }
}

TEST(Tokenizer, SaysWhatItPutsAround) {
  const Tokenizer tokenizer(small("bos_and_eos"));
  EXPECT_EQ(tokenizer.prefix(), (std::vector<int32_t>{1000}));
  EXPECT_EQ(tokenizer.suffix(), (std::vector<int32_t>{1001}));
  EXPECT_TRUE(Tokenizer(small("qwen2_nfc")).prefix().empty());
}

}  // namespace
}  // namespace sluice
