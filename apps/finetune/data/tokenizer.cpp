#include "apps/finetune/data/tokenizer.h"

#include <nlohmann/json.hpp>

#include "apps/finetune/data/added_tokens.h"
#include "apps/finetune/data/bpe_encoder.h"
#include "apps/finetune/data/decoder.h"
#include "apps/finetune/data/json_fields.h"
#include "apps/finetune/data/normalizer.h"
#include "apps/finetune/data/pre_tokenizer.h"
#include "apps/finetune/data/tokenizer_json.h"
#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

using nlohmann::json;

const json& part(const json& rest, const char* key) {
  static const json none;
  const auto found = rest.find(key);
  return found == rest.end() ? none : *found;
}

// Refuses, by name, whatever would change ids and is not done here.
void check_model(const json& model, bool has_vocabulary) {
  if (!model.is_object()) throw Error(ErrorKind::data, "\"model\" is missing");
  const std::string type = model.contains("type") ? string_field(model, "type", "model") : "BPE";
  if (type != "BPE")
    throw Error(ErrorKind::data, "the tokenizer model " + type + " is not supported, only BPE is");
  if (!has_vocabulary) throw Error(ErrorKind::data, "model.vocab is missing");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = part(model, key);
    if (!value.is_null() && value != "")
      throw Error(ErrorKind::data,
                  std::string("the BPE option ") + key + " (" + value.dump() + ") is not supported");
  }
  const json& dropout = part(model, "dropout");
  if (!dropout.is_null() && dropout != 0)
    throw Error(ErrorKind::data, "the BPE option dropout (" + dropout.dump() + ") is not supported");
}

BpeOptions bpe_options(const json& model, Alphabet alphabet) {
  BpeOptions options;
  options.alphabet = alphabet;
  options.ignore_merges = bool_field(model, "ignore_merges", "model", false);
  options.fuse_unknown = bool_field(model, "fuse_unk", "model", false);
  options.byte_fallback = bool_field(model, "byte_fallback", "model", false);
  options.has_unknown = !part(model, "unk_token").is_null();
  if (options.has_unknown) options.unknown_token = string_field(model, "unk_token", "model");
  return options;
}

}  // namespace

// Everything that does not change and has no scratch memory.
struct Tokenizer::Shared {
  std::shared_ptr<const BpeModel> model;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;
};

// What one thread needs for itself.
struct Tokenizer::Scratch {
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  BpeEncoder encoder;
  PieceText text;
  TokenList tokens;
  std::vector<uint32_t> piece_ends;     // tokens before the end of each piece
  std::vector<uint32_t> code_point_at;  // by byte of the original; empty when it is ASCII
  std::vector<uint32_t> byte_at;        // by code point
};

Tokenizer::Tokenizer(const std::string& tokenizer_json_path) try {
  TokenizerJson file = read_tokenizer_json(tokenizer_json_path);
  const json& model = part(file.rest, "model");
  check_model(model, file.has_vocabulary);
  const json& pre_tokenizer = part(file.rest, "pre_tokenizer");
  // With a token for every byte the model can read bytes; otherwise offsets depend on the characters that
  // stand for them.
  const bool bytes = ends_in_byte_level(pre_tokenizer) && BpeModel::has_all_bytes(file.vocabulary) &&
                     !bool_field(model, "byte_fallback", "model", false);
  Normalizers normalizers = normalizers_from_json(part(file.rest, "normalizer"));
  PreTokenizers pre_tokenizers =
      pre_tokenizers_from_json(pre_tokenizer, bytes ? ByteMapping::in_model : ByteMapping::in_text);
  AddedTokens added(file.added_tokens, file.vocabulary, normalizers);
  auto bpe =
      std::make_shared<const BpeModel>(std::move(file.vocabulary), file.merges,
                                       bpe_options(model, bytes ? Alphabet::bytes : Alphabet::characters));
  shared_ = std::make_shared<const Shared>(Shared{bpe, std::move(added),
                                                  PostProcessor(part(file.rest, "post_processor")),
                                                  Decoder(part(file.rest, "decoder"))});
  scratch_ = std::make_unique<Scratch>(
      Scratch{std::move(normalizers), std::move(pre_tokenizers), BpeEncoder(bpe), {}, {}, {}, {}, {}});
} catch (const Error& error) {
  const std::string message = error.what();
  throw Error(error.kind(),
              message.starts_with(tokenizer_json_path) ? message : tokenizer_json_path + ": " + message);
}

Tokenizer::Tokenizer(const Tokenizer& other) : shared_(other.shared_) {
  Normalizers normalizers;
  for (const auto& step : other.scratch_->normalizers) normalizers.push_back(step->clone());
  PreTokenizers pre_tokenizers;
  for (const auto& step : other.scratch_->pre_tokenizers) pre_tokenizers.push_back(step->clone());
  scratch_ = std::make_unique<Scratch>(Scratch{
      std::move(normalizers), std::move(pre_tokenizers), BpeEncoder(shared_->model), {}, {}, {}, {}, {}});
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer& Tokenizer::operator=(Tokenizer other) noexcept {
  shared_ = std::move(other.shared_);
  scratch_ = std::move(other.scratch_);
  return *this;
}

// The text into pieces: added tokens, and words for the model.
void Tokenizer::cut(std::string_view text) {
  const size_t bad = utf8::first_invalid(text);
  if (bad != utf8::kValid)
    throw Error(ErrorKind::data, "not UTF-8 at byte " + std::to_string(bad) + " of the text");
  if (text.size() >= INT32_MAX)
    throw Error(ErrorKind::data,
                "a text of " + std::to_string(text.size()) +
                    " bytes cannot be tokenised in one go; the limit is 2 GiB. Split the file");
  PieceText& pieces = scratch_->text;
  pieces.reset(text);
  shared_->added.extract_raw(pieces);
  for (const auto& step : scratch_->normalizers) step->apply(pieces);
  shared_->added.extract_normalized(pieces);
  for (const auto& step : scratch_->pre_tokenizers) step->apply(pieces);
}

void Tokenizer::collect(EncodedTokens& out) {
  Scratch& scratch = *scratch_;
  scratch.tokens.clear();
  scratch.piece_ends.clear();
  for (const Piece& piece : scratch.text.pieces()) {
    if (piece.token >= 0) {
      scratch.tokens.ids.push_back(piece.token);
      scratch.tokens.lengths.push_back(piece.bytes.end - piece.bytes.begin);
    } else {
      scratch.encoder.encode(scratch.text.text(piece), scratch.tokens);
    }
    scratch.piece_ends.push_back(static_cast<uint32_t>(scratch.tokens.ids.size()));
  }
  out.ids = scratch.tokens.ids;
}

// Spans in code points of the original, and the texts that trimming looks at.
void Tokenizer::collect_spans(EncodedTokens& out) const {
  const Scratch& scratch = *scratch_;
  const auto code_point = [&](uint32_t byte) {
    return scratch.code_point_at.empty() ? byte : scratch.code_point_at[byte];
  };
  out.spans.reserve(out.ids.size());
  out.texts.reserve(out.ids.size());
  size_t token = 0;
  for (size_t i = 0; i < scratch.piece_ends.size(); ++i) {
    const Piece& piece = scratch.text.pieces()[i];
    uint32_t at = piece.bytes.begin;
    for (; token < scratch.piece_ends[i]; ++token) {
      const uint32_t end = at + scratch.tokens.lengths[token];
      const ByteSpan origin = scratch.text.original(at, end);
      out.spans.push_back({code_point(origin.begin), code_point(origin.end)});
      out.texts.push_back(piece.token >= 0 ? scratch.text.text(piece)
                                           : shared_->model->vocabulary().token(out.ids[token]));
      at = end;
    }
  }
}

Encoding Tokenizer::encode(std::string_view text, SpecialTokens special) {
  cut(text);
  EncodedTokens tokens;
  collect(tokens);
  Scratch& scratch = *scratch_;
  scratch.code_point_at.clear();
  scratch.byte_at.clear();
  bool ascii = true;
  for (const char c : text) ascii = ascii && static_cast<uint8_t>(c) < 0x80;
  if (!ascii) {
    for (size_t at = 0; at < text.size();) {
      const size_t length = utf8::length(text[at]);
      scratch.code_point_at.insert(scratch.code_point_at.end(), length,
                                   static_cast<uint32_t>(scratch.byte_at.size()));
      scratch.byte_at.push_back(static_cast<uint32_t>(at));
      at += length;
    }
    scratch.code_point_at.push_back(static_cast<uint32_t>(scratch.byte_at.size()));
    scratch.byte_at.push_back(static_cast<uint32_t>(text.size()));
  }
  collect_spans(tokens);
  shared_->post_processor.apply(tokens, special);
  Encoding result;
  result.bytes.reserve(tokens.spans.size());
  const auto byte = [&](uint32_t code_point) { return ascii ? code_point : scratch.byte_at[code_point]; };
  for (const CodePointSpan span : tokens.spans) result.bytes.push_back({byte(span.begin), byte(span.end)});
  result.ids = std::move(tokens.ids);
  result.code_points = std::move(tokens.spans);
  return result;
}

std::vector<int32_t> Tokenizer::encode_ids(std::string_view text, SpecialTokens special) {
  cut(text);
  EncodedTokens tokens;
  collect(tokens);
  shared_->post_processor.apply(tokens, special);
  return std::move(tokens.ids);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, Skip skip) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    std::optional<std::string> token = id_to_token(id);
    if (!token || (skip == Skip::special && shared_->added.is_special_text(*token))) continue;
    tokens.push_back(std::move(*token));
  }
  return shared_->decoder.decode(std::move(tokens));
}

int32_t Tokenizer::token_to_id(std::string_view token) const {
  const int32_t id = shared_->added.find(token);
  return id >= 0 ? id : shared_->model->vocabulary().find(token);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  if (const AddedToken* added = shared_->added.find(id)) return added->text;
  const Vocabulary& vocabulary = shared_->model->vocabulary();
  if (!vocabulary.has(id)) return std::nullopt;
  return std::string(vocabulary.token(id));
}

bool Tokenizer::is_special(int32_t id) const {
  const AddedToken* added = shared_->added.find(id);
  return added != nullptr && added->special;
}

int32_t Tokenizer::id_end() const {
  return std::max(shared_->model->vocabulary().id_end(), shared_->added.id_end());
}

const std::vector<int32_t>& Tokenizer::prefix() const {
  return shared_->post_processor.prefix();
}
const std::vector<int32_t>& Tokenizer::suffix() const {
  return shared_->post_processor.suffix();
}

}  // namespace sluice
