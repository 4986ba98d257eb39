#include "apps/finetune/model_warnings.h"

#include <algorithm>
#include <cmath>

namespace sluice::finetune {
namespace {

constexpr float kAboutZero = 1e-6f;  // trained rows are of the order 1e-2
constexpr size_t kNamedMost = 8;     // tokens, rows
constexpr int64_t kPieceRows = 256;

std::string token_text(const Tokenizer& tokenizer, int64_t id) {
  const auto token = tokenizer.id_to_token(static_cast<int32_t>(id));
  return std::to_string(id) + (token ? " '" + *token + "'" : "");
}

std::vector<bool> used_tokens(const OpenModel& model, const Dataset& data) {
  std::vector<bool> used(static_cast<size_t>(model.config.vocab_size));
  for (int64_t row = 0; row < data.size(); ++row) {
    for (const int32_t id : data.row(row).ids) used[static_cast<size_t>(id)] = true;
  }
  return used;
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamedMost); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kNamedMost ? text + ", ..." : text;
}

std::string ids_text(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  std::vector<std::string> names;
  for (const int64_t id : ids) names.push_back(token_text(tokenizer, id));
  return names.empty() ? "none" : list(names);
}

}  // namespace

std::vector<std::string> untrained_token_warnings(const OpenModel& model, const Tokenizer& tokenizer,
                                                  const Dataset& data) {
  const ModelTensor* embedding = model.folder.find("model.embed_tokens.weight");
  if (embedding == nullptr) return {};
  const std::vector<bool> used = used_tokens(model, data);
  std::vector<std::string> names;
  std::vector<float> rows(static_cast<size_t>(kPieceRows * embedding->row_length()));
  for (int64_t begin = 0; begin < embedding->row_count(); begin += kPieceRows) {
    const int64_t end = std::min(begin + kPieceRows, embedding->row_count());
    if (std::find(used.begin() + begin, used.begin() + end, true) == used.begin() + end) continue;
    model.folder.read_rows(*embedding, begin, end, rows.data());
    for (int64_t id = begin; id < end; ++id) {
      const float* row = rows.data() + (id - begin) * embedding->row_length();
      const bool is_zero =
          std::all_of(row, row + embedding->row_length(), [](float x) { return std::abs(x) < kAboutZero; });
      if (is_zero && used[static_cast<size_t>(id)]) names.push_back(token_text(tokenizer, id));
    }
  }
  if (names.empty()) return {};
  return {"the data uses " + std::to_string(names.size()) +
          " token(s) whose embedding is about zero, so the model never learnt them: " + list(names) +
          ". Is this a base model with the chat template of another?"};
}

std::vector<std::string> end_token_warnings(const OpenModel& model, const Tokenizer& tokenizer) {
  const int32_t taught = end_token(model, tokenizer);
  const std::vector<int64_t> generation = generation_end_tokens(model.folder.path(), model.config);
  const std::vector<int64_t>& config = model.config.eos_token_ids;
  std::vector<std::string> warnings;
  if (taught < 0) {
    warnings.push_back(
        "the model names no end token: completions are learnt without one, and generation will not know "
        "where to stop.");
  } else if (!generation.empty() && std::ranges::count(generation, int64_t{taught}) == 0) {
    warnings.push_back(
        "end tokens differ: training puts " + token_text(tokenizer, taught) +
        " behind completions, generation stops at " + ids_text(tokenizer, generation) +
        ". Correct eos_token_id in generation_config.json, or eos_token in tokenizer_config.json.");
  } else if (!config.empty() && std::ranges::count(config, int64_t{taught}) == 0) {
    warnings.push_back("end tokens differ: training puts " + token_text(tokenizer, taught) +
                       " behind completions, config.json says " + ids_text(tokenizer, config) + ".");
  }
  return warnings;
}

std::vector<std::string> data_warnings(const OpenModel& model, const Dataset& data) {
  const DatasetReport& report = data.report();
  std::vector<std::string> warnings;
  const auto count = [&](int64_t rows, const std::string& what, const char* label) {
    if (rows == 0) return;
    std::vector<std::string> places;
    for (const auto& notice : report.notices) {
      if (notice.label == label) places.push_back(data.path() + ":" + std::to_string(notice.line));
    }
    warnings.push_back(std::to_string(rows) + " row(s) " + what +
                       (places.empty() ? "" : ": " + list(places)));
  };
  count(report.cut_count, "cut at --max_seq_length", "cut");
  count(report.unlabelled_count, "dropped: no token to learn is left", "no_label");
  count(report.double_bos_count, "brought a BOS of their own; one was taken away", "double_bos");
  count(report.bad_count, "left out as faulty", "");
  size_t shown = 0;
  for (const auto& notice : report.notices) {  // faulty rows, and keys that stand there twice
    if (notice.label == "cut" || notice.label == "no_label" || ++shown > kNamedMost) continue;
    warnings.push_back(data.path() + ":" + std::to_string(notice.line) + ": " + notice.message);
  }
  int64_t longest = 0;
  for (int64_t row = 0; row < data.size(); ++row) longest = std::max(longest, data.row_length(row));
  if (longest > model.config.max_position_embeddings) {
    warnings.push_back("the longest row has " + std::to_string(longest) + " tokens, the model was made for " +
                       std::to_string(model.config.max_position_embeddings) +
                       " (max_position_embeddings). Lower --max_seq_length.");
  }
  return warnings;
}

}  // namespace sluice::finetune
