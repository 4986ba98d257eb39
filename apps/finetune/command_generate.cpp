#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/finetune/commands.h"
#include "apps/finetune/forward_pass.h"
#include "apps/finetune/run_setup.h"
#include "apps/finetune/weights.h"
#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

// With what the tokenizer puts before a text (BOS), unless the prompt brings it; nothing behind it, as it
// goes on.
std::vector<int32_t> encode_prompt(Tokenizer& tokenizer, const std::string& prompt,
                                   const ModelConfig& config) {
  std::vector<int32_t> ids = tokenizer.encode_ids(prompt, SpecialTokens::omit);
  const std::vector<int32_t>& prefix = tokenizer.prefix();
  if (!std::equal(prefix.begin(), prefix.end(), ids.begin(),
                  ids.begin() + std::min(std::ssize(prefix), std::ssize(ids)))) {
    ids.insert(ids.begin(), prefix.begin(), prefix.end());
  }
  if (ids.empty())
    throw Error(ErrorKind::usage, "--prompt: an empty prompt leaves the model nothing to start from.");
  check_ids(ids, config, "--prompt");
  return ids;
}

void warn_of_length(const std::vector<std::vector<int32_t>>& prompts, int64_t max_new_tokens,
                    const ModelConfig& config) {
  int64_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, std::ssize(prompt));
  if (longest + max_new_tokens > config.max_position_embeddings) {
    std::cerr << "warning: prompt and answer may reach " << longest + max_new_tokens
              << " tokens, the model was made for " << config.max_position_embeddings
              << " (max_position_embeddings)\n";
  }
}

void print(const GenerateOptions& options, const Tokenizer& tokenizer,
           const std::vector<std::vector<int32_t>>& prompts,
           const std::vector<std::vector<int32_t>>& answers) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::string text = tokenizer.decode(answers[i], Tokenizer::Skip::special);
    results.push_back(
        {{"prompt", options.prompts[i]}, {"prompt_ids", prompts[i]}, {"ids", answers[i]}, {"text", text}});
    if (options.json) continue;
    if (answers.size() > 1) std::cout << (i > 0 ? "\n" : "") << "==> prompt " << i + 1 << " <==\n";
    std::cout << text << "\n";
  }
  if (options.json) {
    std::cout << nlohmann::ordered_json{{"results", results}}.dump(-1, ' ', false,
                                                                   nlohmann::json::error_handler_t::replace)
              << "\n";
  }
}

}  // namespace

int run_command(const GenerateOptions& options) {
  const OpenModel model = open_model(options.model);
  Tokenizer tokenizer = open_tokenizer(model);
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& prompt : options.prompts)
    prompts.push_back(encode_prompt(tokenizer, prompt, model.config));
  warn_of_length(prompts, options.max_new_tokens, model.config);
  const Runtime runtime = open_runtime(options.engine);
  Generator generator(*runtime.device, *runtime.pool, model.config, prompts, options.max_new_tokens,
                      {.compute_dtype = compute_dtype(options.engine),
                       .prefetch_distance = static_cast<int>(options.engine.prefetch_distance),
                       .device_limit_bytes = device_limit(options.engine),
                       .host_parts = {process_base()}});
  load_weights(model.folder, generator.engine().store());
  print(options, tokenizer, prompts,
        generator.generate(generation_end_tokens(model.folder.path(), model.config)));
  return 0;
}

}  // namespace sluice::finetune
