#include <filesystem>
#include <iostream>
#include <string>

#include "apps/finetune/commands.h"
#include "apps/finetune/data/tokenizer.h"
#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

// With the special tokens that the tokenizer puts around a text, as Hugging Face's tokenizer(text) does.
std::string ids_of(Tokenizer& tokenizer, const std::string& line, int64_t line_number) {
  std::string text;
  try {
    for (const int32_t id : tokenizer.encode_ids(line, SpecialTokens::add)) {
      if (!text.empty()) text += ' ';
      text += std::to_string(id);
    }
  } catch (const Error& error) {
    throw Error(error.kind(), "standard input, line " + std::to_string(line_number) + ": " + error.what());
  }
  return text;
}

}  // namespace

int run_command(const TokenizeOptions& options) {
  Tokenizer tokenizer((std::filesystem::path(options.model) / "tokenizer.json").string());
  int64_t line_number = 0;
  // A line ends at LF; a CR before it is part of the text.
  for (std::string line; std::getline(std::cin, line);)
    std::cout << ids_of(tokenizer, line, ++line_number) << '\n';
  return 0;
}

}  // namespace sluice::finetune
