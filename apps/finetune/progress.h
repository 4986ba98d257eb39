#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace sluice::finetune {

struct ProgressLine {
  int64_t step = 0;  // from 1
  double epoch = 0;
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  bool skipped = false;
};

// Where training stands, for people: a bar that redraws itself on a terminal, else a plain line every
// `logging_steps`. Used by one thread.
class Progress {
 public:
  enum class Style { bar, lines };
  // `out` must outlive this object. `first_step` is the first one that will be shown: of a run that goes on,
  // not 1.
  Progress(std::ostream& out, Style style, int64_t total_steps, int64_t logging_steps,
           int64_t first_step = 1);

  void show(const ProgressLine& line);
  // Ends a bar, so that what is printed next starts on a line of its own.
  void finish();

 private:
  std::string bar(const ProgressLine& line) const;

  std::ostream& out_;
  const Style style_;
  const int64_t total_steps_;
  const int64_t logging_steps_;
  const int64_t first_step_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  size_t drawn_ = 0;  // characters of the bar on the screen
};

// Bar if standard error is a terminal.
Progress::Style progress_style();

}  // namespace sluice::finetune
