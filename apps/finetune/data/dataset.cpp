#include "apps/finetune/data/dataset.h"

#include <algorithm>
#include <filesystem>

#include "apps/finetune/data/line_reader.h"
#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {

class DatasetReader {
 public:
  DatasetReader(const std::string& path, Tokenizer& tokenizer, const DatasetOptions& options)
      : tokenizer_(tokenizer), options_(options) {
    if (options.max_seq_length < 2)
      throw Error(ErrorKind::usage, "max_seq_length is " + std::to_string(options.max_seq_length) +
                                        "; a row needs two tokens at least, one to predict the other");
    out_.path_ = path;
  }

  Dataset read() {
    if (!std::filesystem::exists(out_.path_))
      throw Error(ErrorKind::data, "there is no data file " + out_.path_ + ". Is the path right?");
    std::string extension = std::filesystem::path(out_.path_).extension().string();
    std::transform(extension.begin(), extension.end(), extension.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (extension == ".txt") {
      read_plain();
    } else if (extension == ".jsonl" || extension == ".json" || extension == ".ndjson") {
      read_rows();
    } else {
      throw Error(ErrorKind::data, out_.path_ + ": the kind of file " +
                                       (extension.empty() ? "without extension" : extension) +
                                       " is not supported. Use .jsonl or .txt");
    }
    check_result();
    return std::move(out_);
  }

 private:
  struct Tokens {
    std::vector<int32_t> ids;
    std::vector<uint8_t> labelled;
  };

  std::string place(int64_t line) const { return out_.path_ + ":" + std::to_string(line); }

  void notice(int64_t line, std::string label, std::string message) {
    if (out_.report_.notices.size() < DatasetReport::kNoticeMost)
      out_.report_.notices.push_back({line, std::move(label), std::move(message)});
  }

  void bad_row(int64_t line, const RowFault& fault) {
    if (options_.on_bad_row == OnBadRow::fail)
      throw Error(ErrorKind::data, place(line) + ": " + fault.message +
                                       ". Correct the row, or leave such rows out with --on_bad_row skip");
    ++out_.report_.bad_count;
    notice(line, fault.label, fault.message);
  }

  void read_rows() {
    LineReader reader(out_.path_);
    std::string line;
    while (reader.next(line)) {
      if (line.find_first_not_of(" \t\f\v") == std::string::npos) continue;
      const int64_t number = reader.line_number();
      auto row = parse(line, number);
      if (const auto* fault = std::get_if<RowFault>(&row)) {
        bad_row(number, *fault);
        continue;
      }
      const auto& sound = std::get<DataRow>(row);
      if (!sound.warning.empty()) notice(number, "duplicate_key", sound.warning);
      add_row(tokenise(sound), number);
    }
  }

  std::variant<DataRow, RowFault> parse(const std::string& line, int64_t number) {
    try {
      return parse_data_row(line, out_.report_.format);
    } catch (const Error& error) {
      throw Error(error.kind(), place(number) + ": " + error.what());
    }
  }

  Tokens tokenise(const DataRow& row) {
    const bool pair = out_.report_.format == DataFormat::prompt_completion;
    Tokens tokens = encode(row.prompt + row.completion, pair ? static_cast<uint32_t>(row.prompt.size()) : 0);
    const bool wants_end = pair || options_.end_token == EndToken::after_all;
    if (wants_end && options_.eos_token_id >= 0 &&
        (tokens.ids.empty() || tokens.ids.back() != options_.eos_token_id)) {
      tokens.ids.push_back(options_.eos_token_id);
      tokens.labelled.push_back(1);
    }
    return tokens;
  }

  // Labelled from the first token on that reaches behind `prompt_bytes`; what the post-processor puts in
  // front is never.
  Tokens encode(const std::string& text, uint32_t prompt_bytes) {
    const Encoding encoding = tokenizer_.encode(text, SpecialTokens::add);
    size_t first = tokenizer_.prefix().size();
    const size_t last = encoding.ids.size() - tokenizer_.suffix().size();
    while (first < last && prompt_bytes > 0 && encoding.bytes[first].end <= prompt_bytes) ++first;
    Tokens tokens{encoding.ids, std::vector<uint8_t>(encoding.ids.size(), 0)};
    std::fill(tokens.labelled.begin() + static_cast<ptrdiff_t>(first), tokens.labelled.end(), uint8_t{1});
    drop_second_bos(tokens);
    return tokens;
  }

  // A text rendered by a chat template brings its own BOS.
  void drop_second_bos(Tokens& tokens) {
    const std::vector<int32_t>& prefix = tokenizer_.prefix();
    if (prefix.empty() || tokens.ids.size() <= prefix.size() || tokens.ids[prefix.size()] != prefix.back())
      return;
    tokens.ids.erase(tokens.ids.begin());
    tokens.labelled.erase(tokens.labelled.begin());
    tokens.labelled[prefix.size() - 1] = 0;
    ++out_.report_.double_bos_count;
  }

  void add_row(Tokens tokens, int64_t line) {
    const auto most = static_cast<size_t>(options_.max_seq_length);
    const size_t whole = tokens.ids.size();
    if (whole > most) {
      tokens.ids.resize(most);
      tokens.labelled.resize(most);
    }
    const int64_t labels =
        whole < 2 ? 0 : std::count(tokens.labelled.begin() + 1, tokens.labelled.end(), uint8_t{1});
    if (labels == 0) {
      ++out_.report_.unlabelled_count;
      notice(line, "no_label",
             "dropped: no token to learn is left in the first " + std::to_string(tokens.ids.size()) + " of " +
                 std::to_string(whole) + " tokens");
      return;
    }
    if (whole > most) {
      ++out_.report_.cut_count;
      notice(line, "cut", "cut from " + std::to_string(whole) + " to " + std::to_string(most) + " tokens");
    }
    append(tokens.ids, tokens.labelled, line, labels);
  }

  void append(std::span<const int32_t> ids, std::span<const uint8_t> labelled, int64_t line, int64_t labels) {
    if (line > INT32_MAX) throw Error(ErrorKind::data, out_.path_ + ": more than 2147483647 lines");
    out_.ids_.insert(out_.ids_.end(), ids.begin(), ids.end());
    out_.labelled_.insert(out_.labelled_.end(), labelled.begin(), labelled.end());
    out_.ends_.push_back(static_cast<int64_t>(out_.ids_.size()));
    out_.lines_.push_back(static_cast<int32_t>(line));
    ++out_.report_.row_count;
    out_.report_.token_count += static_cast<int64_t>(ids.size());
    out_.report_.label_count += labels;
  }

  // The whole file is one document; every end of a line becomes LF.
  void read_plain() {
    out_.report_.format = DataFormat::plain;
    LineReader reader(out_.path_);
    std::string text;
    for (std::string line; reader.next(line);) {
      if (const size_t bad = utf8::first_invalid(line); bad != utf8::kValid)
        throw Error(ErrorKind::data, place(reader.line_number()) + ": not UTF-8 at byte " +
                                         std::to_string(bad) + " of the line. Convert the file to UTF-8");
      text += line;
      text += '\n';
    }
    if (!reader.ended_in_line_end() && !text.empty()) text.pop_back();
    if (text.find_first_not_of(" \t\n") == std::string::npos) return;
    cut_into_rows(text);
  }

  void cut_into_rows(const std::string& text) {
    const Encoding encoding = tokenizer_.encode(text, SpecialTokens::add);
    std::vector<int32_t> ids = encoding.ids;
    if (options_.end_token == EndToken::after_all && options_.eos_token_id >= 0)
      ids.push_back(options_.eos_token_id);
    const auto most = static_cast<size_t>(options_.max_seq_length);
    const std::vector<uint8_t> labelled(std::min(most, ids.size()), 1);
    int64_t line = 1;
    size_t counted = 0;  // bytes whose line ends are in `line`
    for (size_t begin = 0; begin < ids.size(); begin += most) {
      const size_t count = std::min(most, ids.size() - begin);
      if (count < 2) break;  // a last token alone has nothing that predicts it
      const size_t start = begin < encoding.bytes.size() ? encoding.bytes[begin].begin : counted;
      if (start > counted) {
        line += std::count(text.begin() + static_cast<ptrdiff_t>(counted),
                           text.begin() + static_cast<ptrdiff_t>(start), '\n');
        counted = start;
      }
      append(std::span(ids).subspan(begin, count), std::span(labelled).first(count), line,
             static_cast<int64_t>(count) - 1);
    }
  }

  void check_result() const {
    const DatasetReport& report = out_.report_;
    if (report.row_count > 0) return;
    if (report.unlabelled_count > 0)
      throw Error(ErrorKind::diverged, out_.path_ + ": none of its " +
                                           std::to_string(report.unlabelled_count) +
                                           " rows has a token to learn (all labels masked), first " +
                                           place(report.notices[0].line) + ": " + report.notices[0].message +
                                           ". Raise max_seq_length, or shorten the prompts");
    if (report.bad_count > 0)
      throw Error(ErrorKind::data, out_.path_ + ": all of its " + std::to_string(report.bad_count) +
                                       " rows are faulty, first " + place(report.notices[0].line) + ": " +
                                       report.notices[0].message);
    throw Error(ErrorKind::data, out_.path_ + ": no rows to train on; the file is empty");
  }

  Tokenizer& tokenizer_;
  DatasetOptions options_;
  Dataset out_;
};

Dataset Dataset::read(const std::string& path, Tokenizer& tokenizer, const DatasetOptions& options) {
  return DatasetReader(path, tokenizer, options).read();
}

DatasetRow Dataset::row(int64_t index) const {
  SLUICE_CHECK(index >= 0 && index < size());
  const auto at = static_cast<size_t>(index);
  const auto begin = static_cast<size_t>(at == 0 ? 0 : ends_[at - 1]);
  const auto count = static_cast<size_t>(ends_[at]) - begin;
  return {std::span(ids_).subspan(begin, count), std::span(labelled_).subspan(begin, count), lines_[at]};
}

std::string Dataset::source(int64_t index) const {
  return path_ + ":" + std::to_string(row(index).line);
}

int64_t Dataset::row_length(int64_t index) const {
  return static_cast<int64_t>(row(index).ids.size());
}

}  // namespace sluice
