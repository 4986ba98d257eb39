#include "apps/finetune/progress.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include "apps/finetune/report.h"

namespace sluice::finetune {
namespace {

constexpr int64_t kBarWidth = 12;  // so that the line fits 80 columns, and does not wrap

// As Hugging Face's Trainer prints a step.
std::string plain(const ProgressLine& line, int64_t total_steps) {
  char text[256];
  std::snprintf(text, sizeof text,
                "step %lld/%lld  loss %.4f  grad_norm %.4g  learning_rate %.4g  epoch %.2f  tokens/s %.1f%s",
                static_cast<long long>(line.step), static_cast<long long>(total_steps), line.loss,
                line.gradient_norm, line.learning_rate, line.epoch, line.tokens_per_second,
                line.skipped ? "  SKIPPED: the gradient norm is not finite" : "");
  return text;
}

}  // namespace

Progress::Progress(std::ostream& out, Style style, int64_t total_steps, int64_t logging_steps,
                   int64_t first_step)
    : out_(out),
      style_(style),
      total_steps_(total_steps),
      logging_steps_(logging_steps),
      first_step_(first_step) {}

std::string Progress::bar(const ProgressLine& line) const {
  const int64_t filled = kBarWidth * line.step / std::max<int64_t>(1, total_steps_);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const double left = seconds / static_cast<double>(line.step - first_step_ + 1) *
                      static_cast<double>(total_steps_ - line.step);
  std::string text = "[";
  text.append(static_cast<size_t>(filled), '#').append(static_cast<size_t>(kBarWidth - filled), '.');
  char rest[160];
  std::snprintf(rest, sizeof rest, "] %lld/%lld loss %.4f norm %.3g lr %.2e %.0f tok/s%s ",
                static_cast<long long>(line.step), static_cast<long long>(total_steps_), line.loss,
                line.gradient_norm, line.learning_rate, line.tokens_per_second,
                line.skipped ? " SKIPPED" : "");
  return text + rest + duration_text(left);
}

void Progress::show(const ProgressLine& line) {
  if (style_ == Style::bar) {
    const std::string text = bar(line);
    out_ << '\r' << text << std::string(drawn_ > text.size() ? drawn_ - text.size() : 0, ' ') << std::flush;
    drawn_ = text.size();
    if (line.skipped) finish();  // it stays to be seen
  } else if (line.step % logging_steps_ == 0 || line.step == total_steps_ || line.step == first_step_ ||
             line.skipped) {
    out_ << plain(line, total_steps_) << '\n' << std::flush;
  }
}

void Progress::finish() {
  if (drawn_ > 0) out_ << '\n' << std::flush;
  drawn_ = 0;
}

Progress::Style progress_style() {
  return ::isatty(STDERR_FILENO) != 0 ? Progress::Style::bar : Progress::Style::lines;
}

}  // namespace sluice::finetune
