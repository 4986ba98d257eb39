#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/finetune/data/data_row.h"
#include "apps/finetune/data/tokenizer.h"

namespace sluice {

enum class OnBadRow { fail, skip };

// After which rows the end token is put: what follows a completion is learnt always; documents are taken as
// they are by default, so that their loss is that of the text alone.
enum class EndToken { after_completions, after_all };

struct DatasetOptions {
  int32_t max_seq_length =
      1024;                   // tokens; longer rows are cut, plain text goes into as many rows as it takes
  int32_t eos_token_id = -1;  // -1: the model has none, nothing is put
  EndToken end_token = EndToken::after_completions;
  OnBadRow on_bad_row = OnBadRow::fail;
};

// One row of tokens. labelled[t] says that ids[t] itself is to be learnt: it is the target at position t - 1,
// so labelled[0] counts for nothing. (Batches hold targets shifted already, see batcher.h.) Views into the
// data set.
struct DatasetRow {
  std::span<const int32_t> ids;
  std::span<const uint8_t> labelled;
  int64_t line;  // where the row starts in the file, from 1
};

// What reading a file found, for the screen and the log.
struct DatasetReport {
  DataFormat format = DataFormat::unknown;
  int64_t row_count = 0;         // rows kept
  int64_t cut_count = 0;         // of these, cut at max_seq_length
  int64_t unlabelled_count = 0;  // dropped: no token with a label is left
  int64_t bad_count = 0;         // dropped: faulty
  int64_t double_bos_count = 0;  // the text brought its own BOS; one was taken away
  int64_t token_count = 0;
  int64_t label_count = 0;  // targets: labelled tokens that have one before them
  struct Notice {
    int64_t line;
    std::string label;  // a RowFault's, or "cut", "no_label", "duplicate_key"
    std::string message;
  };
  static constexpr size_t kNoticeMost = 100;
  std::vector<Notice> notices;  // the first ones, in file order
};

// The rows of one data file as tokens, in memory: 5 bytes a token and 12 a row. JSONL of {"text"} (everything
// is learnt) or
// {"prompt", "completion"} (the completion and the end token are): prompt and completion are tokenised as one
// text, and a token is labelled from the first one on that reaches into the completion. `.txt` is one
// document, cut into rows one after the other. BOS is put as the tokenizer's post-processor says, and never
// twice. Immutable once read; safe from any thread.
class Dataset {
 public:
  // Throws Error(data) with file and line for a bad row (OnBadRow::fail), a file without rows or of an
  // unsupported kind, and Error(diverged) when rows are there but none of them has a label.
  static Dataset read(const std::string& path, Tokenizer& tokenizer, const DatasetOptions& options);

  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  DatasetRow row(int64_t index) const;
  // "file:line" of a row, for messages.
  std::string source(int64_t index) const;
  int64_t row_length(int64_t index) const;

  const DatasetReport& report() const { return report_; }
  const std::string& path() const { return path_; }

 private:
  friend class DatasetReader;

  std::string path_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> labelled_;
  std::vector<int64_t> ends_;  // of each row in ids_
  std::vector<int32_t> lines_;
  DatasetReport report_;
};

}  // namespace sluice
