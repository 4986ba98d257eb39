#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice {

// Makes text of tokens: a chain of steps over the list of token texts, then everything joined. Safe from any
// thread, as the steps keep nothing.
class Decoder {
 public:
  // The `decoder` of a tokenizer.json: ByteLevel, Replace (strings), ByteFallback, Fuse, Strip, Metaspace,
  // Sequence; null joins tokens by spaces, as Hugging Face does. Throws Error(data) naming what is not
  // supported.
  explicit Decoder(const nlohmann::json& decoder);

  std::string decode(std::vector<std::string> tokens) const;

 private:
  using Step = std::function<void(std::vector<std::string>&)>;
  void add(const nlohmann::json& decoder);

  std::vector<Step> steps_;
  bool joins_by_spaces_ = false;
};

}  // namespace sluice
