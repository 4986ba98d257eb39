#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/finetune/data/piece_text.h"
#include "apps/finetune/data/post_processor.h"

namespace sluice {

// Token ids, and for each the part of the text it stands for, in bytes and in code points. What the
// post-processor adds stands for the empty span at 0. As in Hugging Face's tokenizers a token may stand for
// less than its characters (trim_offsets), and several tokens for one character.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<ByteSpan> bytes;
  std::vector<CodePointSpan> code_points;
};

// A tokenizer.json, id for id what Hugging Face's `tokenizers` makes of it (truncation and padding in the
// file are ignored, as transformers does). Kinds: byte-pair encoding, byte-level or SentencePiece-like.
// Whatever else a file asks for is refused by name when it is read.
//
// One thread at a time: it keeps a cache of words. Copies share the tables and have caches of their own, so
// each thread takes a copy. Encoding a text needs memory in proportion to it; texts are under 2 GB.
class Tokenizer {
 public:
  // Throws Error(data) with the path.
  explicit Tokenizer(const std::string& tokenizer_json_path);
  Tokenizer(const Tokenizer& other);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer other) noexcept;
  ~Tokenizer();

  // Both throw Error(data) naming the byte where `text` is not UTF-8.
  Encoding encode(std::string_view text, SpecialTokens special);
  // Without offsets: faster.
  std::vector<int32_t> encode_ids(std::string_view text, SpecialTokens special);

  enum class Skip { nothing, special };
  // Ids that no token has are passed over. Bytes that are no UTF-8 become U+FFFD.
  std::string decode(std::span<const int32_t> ids, Skip skip = Skip::nothing) const;

  // -1 when there is no such token.
  int32_t token_to_id(std::string_view token) const;
  // The token as written in the file (byte-level tokens in their alphabet).
  std::optional<std::string> id_to_token(int32_t id) const;
  bool is_special(int32_t id) const;
  // One above the greatest id.
  int32_t id_end() const;

  // What SpecialTokens::add puts before and behind a text.
  const std::vector<int32_t>& prefix() const;
  const std::vector<int32_t>& suffix() const;

 private:
  struct Shared;
  struct Scratch;
  void cut(std::string_view text);
  void collect(EncodedTokens& out);
  void collect_spans(EncodedTokens& out) const;

  std::shared_ptr<const Shared> shared_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace sluice
