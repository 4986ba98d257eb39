#include "apps/finetune/data/decoder.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "apps/finetune/data/byte_alphabet.h"
#include "apps/finetune/data/json_fields.h"
#include "apps/finetune/data/metaspace.h"
#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

using Tokens = std::vector<std::string>;

void fuse(Tokens& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, std::move(all));
}

// The characters back to bytes; a token with any other character, such as most added ones, stands for its own
// UTF-8.
void byte_level(Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const size_t before = bytes.size();
    for (size_t at = 0; at < token.size();) {
      const int byte = byte_alphabet::byte(utf8::next(token, at));
      if (byte < 0) {
        bytes.resize(before);
        bytes += token;
        break;
      }
      bytes.push_back(static_cast<char>(static_cast<uint8_t>(byte)));
    }
  }
  tokens.assign(1, utf8::lossy(bytes));
}

// <0xNN>, in either case of the digits.
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const std::string digits = token.substr(3, 2);
  if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return std::nullopt;
  return static_cast<char>(static_cast<uint8_t>(std::stoi(digits, nullptr, 16)));
}

// Runs of byte tokens become text where they are well-formed, else one U+FFFD a byte.
void byte_fallback(Tokens& tokens) {
  Tokens result;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (utf8::first_invalid(bytes) == utf8::kValid) {
      result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), "\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const std::optional<char> byte = byte_of(token)) {
      bytes.push_back(*byte);
      continue;
    }
    flush();
    result.push_back(std::move(token));
  }
  flush();
  tokens = std::move(result);
}

void replace(Tokens& tokens, const std::string& pattern, const std::string& content) {
  for (std::string& token : tokens) {
    std::string result;
    size_t done = 0;
    for (size_t at = token.find(pattern); at != std::string::npos; at = token.find(pattern, done)) {
      result.append(token, done, at - done);
      result += content;
      done = at + pattern.size();
    }
    if (done > 0) token = result.append(token, done, std::string::npos);
  }
}

// Up to `start` of the character from the front of each token, up to `stop` from the back.
void strip(Tokens& tokens, const std::string& content, uint64_t start, uint64_t stop) {
  for (std::string& token : tokens) {
    std::string_view view = token;
    for (uint64_t i = 0; i < start && view.starts_with(content); ++i) view.remove_prefix(content.size());
    for (uint64_t i = 0; i < stop && view.ends_with(content); ++i) view.remove_suffix(content.size());
    token = std::string(view);
  }
}

// Marks become spaces; in the first token they vanish, unless nothing was ever put there.
void metaspace(Tokens& tokens, const Metaspace& options) {
  if (tokens.empty()) return;
  Tokens first(1, std::move(tokens[0]));
  replace(first, options.replacement, options.prepend == Metaspace::Prepend::never ? " " : "");
  replace(tokens, options.replacement, " ");
  tokens[0] = std::move(first[0]);
}

uint64_t count_field(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = field(object, key, "decoder Strip");
  if (!value.is_number_unsigned())
    throw Error(ErrorKind::data, std::string("decoder Strip: \"") + key + "\" is not a count");
  return value.get<uint64_t>();
}

}  // namespace

Decoder::Decoder(const nlohmann::json& decoder) : joins_by_spaces_(decoder.is_null()) {
  if (!decoder.is_null()) add(decoder);
}

void Decoder::add(const nlohmann::json& decoder) {
  const std::string type = string_field(decoder, "type", "decoder");
  if (type == "Sequence") {
    for (const nlohmann::json& inner : array_field(decoder, "decoders", "decoder Sequence")) add(inner);
  } else if (type == "ByteLevel") {
    steps_.emplace_back(byte_level);
  } else if (type == "ByteFallback") {
    steps_.emplace_back(byte_fallback);
  } else if (type == "Fuse") {
    steps_.emplace_back(fuse);
  } else if (type == "Replace") {
    const nlohmann::json& pattern = field(decoder, "pattern", "decoder Replace");
    if (!pattern.is_object() || !pattern.contains("String"))
      throw Error(ErrorKind::data, "the decoder Replace is supported for strings only");
    steps_.emplace_back([from = string_field(pattern, "String", "decoder Replace"),
                         to = string_field(decoder, "content", "decoder Replace")](Tokens& tokens) {
      if (!from.empty()) replace(tokens, from, to);
    });
  } else if (type == "Strip") {
    const std::string content = string_field(decoder, "content", "decoder Strip");
    if (content.empty()) throw Error(ErrorKind::data, "decoder Strip: \"content\" is empty");
    steps_.emplace_back([content, start = count_field(decoder, "start"), stop = count_field(decoder, "stop")](
                            Tokens& tokens) { strip(tokens, content, start, stop); });
  } else if (type == "Metaspace") {
    steps_.emplace_back([options = metaspace_from_json(decoder, "decoder Metaspace")](Tokens& tokens) {
      metaspace(tokens, options);
    });
  } else {
    throw Error(ErrorKind::data, "the decoder " + type + " is not supported");
  }
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) step(tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (joins_by_spaces_ && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace sluice
