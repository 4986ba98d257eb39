#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Whether an encoding gets what the post-processor adds, such as BOS. Chat templates print it themselves:
// then `omit`.
enum class SpecialTokens { add, omit };

struct CodePointSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool operator==(const CodePointSpan&) const = default;
};

// Tokens before their offsets are turned into bytes. `spans` and `texts` stay empty where nobody wants
// offsets.
struct EncodedTokens {
  std::vector<int32_t> ids;
  std::vector<CodePointSpan> spans;
  std::vector<std::string_view> texts;  // as in the vocabulary; of added tokens, as in the text
};

// The `post_processor` of a tokenizer.json: ByteLevel (trims offsets), TemplateProcessing (adds tokens),
// Sequence; null does nothing. Immutable, safe from any thread.
class PostProcessor {
 public:
  // Throws Error(data) naming what is not supported.
  explicit PostProcessor(const nlohmann::json& post_processor);

  void apply(EncodedTokens& tokens, SpecialTokens special) const;

  // What it puts before and behind one text.
  const std::vector<int32_t>& prefix() const { return prefix_; }
  const std::vector<int32_t>& suffix() const { return suffix_; }

 private:
  struct Step {
    enum class Kind { trim, surround } kind;
    bool add_prefix_space = false;
    std::vector<int32_t> before, behind;
    std::vector<std::string> before_texts, behind_texts;
  };
  void add(const nlohmann::json& part);
  void add_template(const nlohmann::json& part);
  static void trim(EncodedTokens& tokens, bool add_prefix_space);
  static void surround(EncodedTokens& tokens, const Step& step);

  std::vector<Step> steps_;
  std::vector<int32_t> prefix_;
  std::vector<int32_t> suffix_;
};

}  // namespace sluice
