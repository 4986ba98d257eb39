#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "apps/finetune/data/byte_alphabet.h"
#include "apps/finetune/data/tokenizer.h"
#include "apps/finetune/data/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice::test {
namespace {

using nlohmann::json;

// Whether any text comes back from its tokens: every byte has a token, and nothing but merges and plain added
// tokens changes the text. It is told by the file alone, so that a fault of the tokenizer cannot hide it.
bool claims_round_trip(const json& file) {
  const auto is = [&](const char* key, const json& value) {
    return file.contains(key) && file[key] == value;
  };
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  if (!is("normalizer", nullptr) || !is("pre_tokenizer", byte_level) || !is("post_processor", nullptr))
    return false;
  const auto decoder = file.find("decoder");
  if (decoder == file.end() || !decoder->is_object() || decoder->value("type", json()) != "ByteLevel")
    return false;
  const json& model = file["model"];
  for (const char* key : {"byte_fallback", "ignore_merges", "fuse_unk"})
    if (model.value(key, json()) != false) return false;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    std::string token;
    utf8::append(token, byte_alphabet::character(static_cast<uint8_t>(byte)));
    if (!model["vocab"].contains(token)) return false;
  }
  // Other flags take spaces or letters, and a content outside ASCII is read as letters of the byte alphabet.
  const auto plain = [](const json& token) {
    for (const char* key : {"lstrip", "rstrip", "normalized"})
      if (token.value(key, json()) != false) return false;
    const std::string content = token["content"];
    return std::ranges::all_of(content, [](char byte) { return byte > ' ' && byte <= '~'; });
  };
  return !file.contains("added_tokens") || std::ranges::all_of(file["added_tokens"], plain);
}

void check_encoding(Tokenizer& tokenizer, std::string_view text, SpecialTokens special) {
  const Encoding encoding = tokenizer.encode(text, special);
  promise(encoding.ids == tokenizer.encode_ids(text, special), "offsets change no token");
  promise(encoding.bytes.size() == encoding.ids.size() && encoding.code_points.size() == encoding.ids.size(),
          "every token has its span");
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const ByteSpan& span = encoding.bytes[i];
    promise(span.begin <= span.end && span.end <= text.size(), "spans lie inside the text");
    const CodePointSpan& points = encoding.code_points[i];
    promise(points.begin <= points.end && points.end <= text.size(), "code points lie inside the text");
    promise(points.end - points.begin <= span.end - span.begin, "a code point has a byte at least");
    for (const uint32_t at : {span.begin, span.end})
      promise(at == text.size() || !utf8::is_continuation(text[at]), "spans do not cut characters");
  }
  Tokenizer copy(tokenizer);
  promise(copy.encode_ids(text, special) == encoding.ids, "a copy does the same");
  const auto decoded = tokenizer.decode(encoding.ids);
  promise(utf8::first_invalid(decoded) == utf8::kValid, "what is decoded is UTF-8");
}

void check_tokens(const Tokenizer& tokenizer) {
  const int32_t end = std::min(tokenizer.id_end(), 2000);
  promise(!tokenizer.id_to_token(tokenizer.id_end()), "no token is behind the last");
  std::vector<int32_t> all = {-1, INT32_MIN, INT32_MAX};
  for (int32_t id = 0; id < end; ++id) all.push_back(id);
  for (const auto skip : {Tokenizer::Skip::nothing, Tokenizer::Skip::special}) tokenizer.decode(all, skip);
}

}  // namespace

Verdict check_tokenizer(std::string_view bytes) {
  const size_t zero = bytes.find('\0');
  const std::string_view file = bytes.substr(0, zero);
  const std::string_view text = zero == std::string_view::npos ? "" : bytes.substr(zero + 1);
  const InputFile input(file);
  std::optional<Tokenizer> tokenizer;
  if (verdict_of([&] { tokenizer.emplace(input.path()); }) == Verdict::refused) return Verdict::refused;
  check_tokens(*tokenizer);
  return verdict_of([&] {
    for (const SpecialTokens special : {SpecialTokens::omit, SpecialTokens::add})
      check_encoding(*tokenizer, text, special);
    if (claims_round_trip(json::parse(file))) {
      promise(tokenizer->decode(tokenizer->encode_ids(text, SpecialTokens::omit)) == text,
              "a text comes back from its tokens");
    }
  });
}

namespace {

// A fixture with a few merges instead of hundreds, and of the vocabulary what they need, all characters and
// the added tokens.
std::string reduced(json file) {
  constexpr size_t kMergesKept = 6;
  json& model = file["model"];
  json merges = json::array();
  std::unordered_set<std::string> needed;
  for (const json& merge : model["merges"]) {
    if (merges.size() == kMergesKept) break;
    merges.push_back(merge);
    std::string joined;
    if (merge.is_string()) {
      joined = merge;
      joined.erase(joined.find(' '), 1);
    } else {
      joined = merge[0].get<std::string>() + merge[1].get<std::string>();
    }
    needed.insert(joined);
  }
  for (const json& token : file["added_tokens"]) needed.insert(token["content"]);
  json vocabulary = json::object();
  for (const auto& [token, id] : model["vocab"].items()) {
    const bool is_byte = token.starts_with("<0x") && token.size() == 6;
    if (token.size() <= 1 || utf8::length(token[0]) == token.size() || is_byte || needed.contains(token))
      vocabulary[token] = id;
  }
  // Added tokens that the vocabulary lacks are numbered behind it, as added_tokens.cpp wants it.
  int64_t greatest = -1;
  const auto size = static_cast<int64_t>(vocabulary.size());
  for (json& token : file["added_tokens"]) {
    const std::string content = token["content"];
    if (!vocabulary.contains(content)) token["id"] = greatest >= size ? greatest + 1 : size;
    greatest = std::max(greatest, vocabulary.value(content, token["id"].get<int64_t>()));
  }
  model["merges"] = merges;
  model["vocab"] = vocabulary;
  return file.dump();
}

}  // namespace

std::vector<std::string> tokenizer_seeds() {
  using namespace std::literals;
  const std::string text = "\0It's a <mask>  \xc4\xa0 \xe2\x96\x81 12 \xf0\x9f\x98\x80\ne\xcc\x81<s>"s;
  const auto folder = source_folder() / "tests" / "data" / "tokenizers";
  std::vector<std::string> seeds = {read_all(folder / "bytes_264" / "tokenizer.json") + text};
  for (const std::string& name : list_all(folder / "small")) {
    const auto file = folder / "small" / name / "tokenizer.json";
    if (std::filesystem::exists(file)) seeds.push_back(reduced(json::parse(read_all(file))) + text);
  }
  const std::string tiny = R"({"added_tokens":[{"id":3,"content":"<s>","special":true}],)"
                           R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},)";
  for (const char* rest :
       {R"("decoder":null})", R"("normalizer":{"type":"Replace","pattern":{"String":" "},"content":"_"}})",
        R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"b+"},"behavior":"Isolated"}})",
        R"("decoder":{"type":"Strip","content":"a","start":1,"stop":0}})"})
    seeds.push_back(tiny + rest + "\0ab<s> ba"s);
  return seeds;
}

}  // namespace sluice::test
