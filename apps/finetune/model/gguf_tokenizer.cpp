#include "apps/finetune/model/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/base/error.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// `enum llama_token_type` of llama.cpp.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// What the name in tokenizer.ggml.pre stands for (llama.cpp, `llama_vocab::impl::load`).
struct PreTokenizer {
  std::string_view name;
  std::string_view pattern;  // of a Split before ByteLevel; empty: ByteLevel's own, which is GPT-2's
  bool ignore_merges;
  bool default_add_bos;  // where tokenizer.ggml.add_bos_token is absent
};

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// smollm: the model's own tokenizer also splits digits first. transformers' conversion, which all golden
// numbers come from, does not, and no merge joins digits; they differ only in how spaces before a digit are
// grouped.
constexpr std::array<PreTokenizer, 4> kPreTokenizers = {{
    {"smollm", "", false, false},
    {"llama-bpe", kLlama3Pattern, true, true},
    {"llama3", kLlama3Pattern, true, true},
    {"llama-v3", kLlama3Pattern, true, true},
}};

struct Vocabulary {
  const std::vector<std::string>& tokens;
  std::vector<int64_t> types;
};

const PreTokenizer& find_pre_tokenizer(const GgufMetadata& metadata) {
  const std::string model = metadata.required_text("tokenizer.ggml.model");
  if (model != "gpt2") {
    metadata.refuse("tokenizer.ggml.model",
                    "is " + model + ", which is not supported yet; gpt2 (byte-level BPE) is");
  }
  const std::string pre = metadata.text("tokenizer.ggml.pre").value_or("default");
  for (const PreTokenizer& known : kPreTokenizers) {
    if (known.name == pre) return known;
  }
  metadata.refuse("tokenizer.ggml.pre",
                  "is " + pre + ", which is not supported yet; smollm and llama-bpe are");
}

Vocabulary read_vocabulary(const GgufMetadata& metadata) {
  Vocabulary vocabulary{metadata.required_texts("tokenizer.ggml.tokens"),
                        metadata.integers("tokenizer.ggml.token_type")};
  if (vocabulary.types.empty()) vocabulary.types.assign(vocabulary.tokens.size(), kNormal);
  if (vocabulary.types.size() != vocabulary.tokens.size()) {
    metadata.refuse("tokenizer.ggml.token_type", "has " + std::to_string(vocabulary.types.size()) +
                                                     " entries for " +
                                                     std::to_string(vocabulary.tokens.size()) + " tokens");
  }
  return vocabulary;
}

// The content of the token that a key names; empty where the key is absent.
std::string special_token(const GgufMetadata& metadata, const Vocabulary& vocabulary, std::string_view key) {
  const std::optional<int64_t> id = metadata.integer(key);
  if (!id) return "";
  if (*id < 0 || *id >= static_cast<int64_t>(vocabulary.tokens.size())) {
    metadata.refuse(key, "is " + std::to_string(*id) + ", but there are " +
                             std::to_string(vocabulary.tokens.size()) + " tokens");
  }
  return vocabulary.tokens[static_cast<size_t>(*id)];
}

std::string quoted(const GgufMetadata& metadata, std::string_view key, const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const nlohmann::json::exception&) {
    metadata.refuse(key, "holds a text that is no valid UTF-8");
  }
}

Json added_tokens(const Vocabulary& vocabulary) {
  Json list = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int64_t type = vocabulary.types[id];
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    list.push_back({{"id", id},
                    {"content", vocabulary.tokens[id]},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", type != kUserDefined}});
  }
  return list;
}

Json byte_level(bool add_prefix_space, bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

Json pre_tokenizer_json(const PreTokenizer& pre) {
  if (pre.pattern.empty()) return byte_level(false, true, true);
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pre.pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false, true, false)})}};
}

Json sequence(std::string_view id, int type) {
  return {{"Sequence", {{"id", id}, {"type_id", type}}}};
}

// Puts the first token before each sequence where the file says so.
Json post_processor_json(const GgufMetadata& metadata, const PreTokenizer& pre, const std::string& bos) {
  const bool add_bos =
      metadata.boolean("tokenizer.ggml.add_bos_token").value_or(pre.default_add_bos) && !bos.empty();
  Json single = Json::array();
  Json pair = Json::array();
  Json special = Json::object();
  const auto add = [&](Json& list, std::string_view id, int type) {
    if (add_bos) list.push_back({{"SpecialToken", {{"id", bos}, {"type_id", type}}}});
    list.push_back(sequence(id, type));
  };
  add(single, "A", 0);
  add(pair, "A", 0);
  add(pair, "B", 1);
  if (add_bos) {
    const int64_t id = metadata.required_integer("tokenizer.ggml.bos_token_id");
    special[bos] = {{"id", bos}, {"ids", Json::array({id})}, {"tokens", Json::array({bos})}};
  }
  const Json result = {
      {"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
  if (pre.pattern.empty()) return result;
  // As the published Llama 3 files have it.
  return {{"type", "Sequence"}, {"processors", Json::array({byte_level(true, false, true), result})}};
}

// Written as text and not as a tree, which would take 100 MB for the vocabulary and merges of Llama 3.
std::string vocabulary_json(const GgufMetadata& metadata, const Vocabulary& vocabulary) {
  std::string text = "{";
  std::unordered_set<std::string_view> seen;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] == kUnused) continue;  // "[PAD7]": fills up rows of the embedding
    if (!seen.insert(vocabulary.tokens[id]).second) {
      metadata.refuse("tokenizer.ggml.tokens", "holds the token \"" + vocabulary.tokens[id] + "\" twice");
    }
    text += (seen.size() > 1 ? ",\n      " : "\n      ");
    text += quoted(metadata, "tokenizer.ggml.tokens", vocabulary.tokens[id]) + ": " + std::to_string(id);
  }
  return text + "\n    }";
}

std::string merges_json(const GgufMetadata& metadata, const Vocabulary& vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.merges";
  const std::unordered_set<std::string_view> tokens(vocabulary.tokens.begin(), vocabulary.tokens.end());
  std::string text = "[";
  for (const std::string& merge : metadata.required_texts(kKey)) {
    // No token of a byte-level vocabulary contains a space: it is written Ġ.
    const size_t space = merge.find(' ');
    const std::string left = merge.substr(0, space);
    const std::string right = space == std::string::npos ? "" : merge.substr(space + 1);
    if (!tokens.contains(left) || !tokens.contains(right) || !tokens.contains(left + right)) {
      metadata.refuse(kKey, "holds \"" + merge + "\", which does not join two tokens into a third");
    }
    text += (text.size() > 1 ? ",\n      [" : "\n      [");
    text += quoted(metadata, kKey, left) + ", " + quoted(metadata, kKey, right) + "]";
  }
  return text + "\n    ]";
}

std::string tokenizer_json(const GgufMetadata& metadata, const Vocabulary& vocabulary,
                           const PreTokenizer& pre, const std::string& bos) {
  const auto part = [](const Json& json) { return json.dump(2); };
  std::string text = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n";
  text += "  \"added_tokens\": " + part(added_tokens(vocabulary)) + ",\n  \"normalizer\": null,\n";
  text += "  \"pre_tokenizer\": " + part(pre_tokenizer_json(pre)) + ",\n";
  text += "  \"post_processor\": " + part(post_processor_json(metadata, pre, bos)) + ",\n";
  text += "  \"decoder\": " + part(byte_level(true, true, true)) + ",\n";
  text += "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n";
  text +=
      "    \"continuing_subword_prefix\": \"\",\n    \"end_of_word_suffix\": \"\",\n    \"fuse_unk\": "
      "false,\n";
  text += "    \"byte_fallback\": false,\n    \"ignore_merges\": ";
  text += pre.ignore_merges ? "true,\n" : "false,\n";
  text += "    \"vocab\": " + vocabulary_json(metadata, vocabulary) + ",\n";
  text += "    \"merges\": " + merges_json(metadata, vocabulary) + "\n  }\n}\n";
  return text;
}

}  // namespace

TokenizerFiles make_tokenizer_files(const GgufMetadata& metadata) {
  const PreTokenizer& pre = find_pre_tokenizer(metadata);
  const Vocabulary vocabulary = read_vocabulary(metadata);
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kSpecial = {{
      {"bos_token", "tokenizer.ggml.bos_token_id"},
      {"eos_token", "tokenizer.ggml.eos_token_id"},
      {"unk_token", "tokenizer.ggml.unknown_token_id"},
      {"pad_token", "tokenizer.ggml.padding_token_id"},
  }};
  Json special = Json::object();
  for (const auto& [name, key] : kSpecial) {
    const std::string token = special_token(metadata, vocabulary, key);
    if (!token.empty()) special[std::string(name)] = token;
  }
  Json config = special;
  config["clean_up_tokenization_spaces"] = false;
  config["model_max_length"] = metadata.required_integer("llama.context_length");
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (const auto chat = metadata.text("tokenizer.chat_template")) config["chat_template"] = *chat;
  const std::string bos = special.value("bos_token", "");
  try {
    return {tokenizer_json(metadata, vocabulary, pre, bos), config.dump(2) + "\n", special.dump(2) + "\n"};
  } catch (const nlohmann::json::exception&) {
    metadata.refuse("tokenizer.chat_template", "or a special token is no valid UTF-8");
  }
}

}  // namespace sluice
