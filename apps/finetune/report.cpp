#include "apps/finetune/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "engine/base/math.h"

namespace sluice::finetune {
namespace {

constexpr size_t kShownTokens = 400;

// 1234567 -> "1,234,567", as Python's {:,}.
std::string with_commas(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string indented(const std::string& text) {
  std::string result = "    ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "    ";
  }
  return result;
}

}  // namespace

std::string training_banner(const TrainOptions& options, const TrainingFacts& facts) {
  const int64_t epochs = divide_up(facts.total_steps, std::max<int64_t>(1, facts.steps_per_epoch));
  const auto line = [](const char* name, int64_t value) {
    return "  " + std::string(name) + " = " + with_commas(value) + "\n";
  };
  return "***** Running training *****\n" + line("Num examples", facts.example_count) +
         line("Num Epochs", epochs) +
         line("Instantaneous batch size per device", options.per_device_train_batch_size) +
         line("Total train batch size (w. parallel, distributed & accumulation)",
              options.per_device_train_batch_size * options.gradient_accumulation_steps) +
         line("Gradient Accumulation steps", options.gradient_accumulation_steps) +
         line("Total optimization steps", facts.total_steps) +
         line("Number of trainable parameters", facts.trainable_parameters);
}

std::string example_text(const Dataset& data, int64_t row, const Tokenizer& tokenizer) {
  const DatasetRow example = data.row(row);
  const auto labelled = [&](size_t t) { return t > 0 && example.labelled[t] != 0; };
  int64_t label_count = 0;
  for (size_t t = 0; t < example.ids.size(); ++t) label_count += labelled(t) ? 1 : 0;
  const size_t shown = std::min(example.ids.size(), kShownTokens);
  std::string text;
  for (size_t begin = 0; begin < shown;) {
    size_t end = begin + 1;
    while (end < shown && labelled(end) == labelled(begin)) ++end;
    const std::string part = tokenizer.decode(example.ids.subspan(begin, end - begin));
    if (!labelled(begin)) text += "[[";
    text += part;
    if (!labelled(begin)) text += "]]";
    begin = end;
  }
  if (shown < example.ids.size())
    text += " ... (" + std::to_string(example.ids.size() - shown) + " more tokens)";
  std::ostringstream out;
  out << "First example (" << data.source(row) << ", " << example.ids.size() << " tokens, " << label_count
      << " to learn; [[ ]] is context only)\n"
      << indented(text) << "\n";
  return out.str();
}

std::string export_warning(const ExportReport& exported) {
  if (2 * exported.unshown <= exported.moved || exported.moved == 0) return "";
  const double share = 100 * static_cast<double>(exported.unshown) / static_cast<double>(exported.moved);
  char percent[16];
  std::snprintf(percent, sizeof percent, "%.0f", std::floor(share));
  return std::string(percent) +
         " % of the weights that moved, moved by less than the exported dtype can show, so the exported "
         "folder's loss may be worse than the run's. Use --export_dtype fp32.";
}

std::string duration_text(double seconds) {
  char text[48];
  const int64_t whole = std::llround(seconds);
  if (seconds < 60) {
    std::snprintf(text, sizeof text, "%.1f s", seconds);
  } else if (whole < 3600) {
    std::snprintf(text, sizeof text, "%lld min %02lld s", static_cast<long long>(whole / 60),
                  static_cast<long long>(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%lld h %02lld min", static_cast<long long>(whole / 3600),
                  static_cast<long long>(whole % 3600 / 60));
  }
  return text;
}

}  // namespace sluice::finetune
