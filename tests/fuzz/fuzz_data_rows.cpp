#include "apps/finetune/data/data_row.h"
#include "apps/finetune/data/line_reader.h"
#include "apps/finetune/data/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice::test {
namespace {

bool is_text(const std::string& text) {
  return utf8::first_invalid(text) == utf8::kValid;
}

// The lines that dataset.cpp gives to the parser.
void check_lines(const std::string& path) {
  LineReader reader(path);
  DataFormat format = DataFormat::unknown;
  std::string line;
  while (reader.next(line)) {
    if (line.find_first_not_of(" \t\f\v") == std::string::npos) continue;
    const DataFormat before = format;
    const auto row = parse_data_row(line, format);
    promise(before == DataFormat::unknown || before == format, "the first row decides for the file");
    if (const auto* fault = std::get_if<RowFault>(&row)) {
      promise(!fault->label.empty() && !fault->message.empty(), "a fault says what it is");
      continue;
    }
    const auto& sound = std::get<DataRow>(row);
    promise(!sound.completion.empty(), "a sound row has something to learn");
    promise(is_text(sound.prompt) && is_text(sound.completion), "a sound row is UTF-8");
    promise(format != DataFormat::text || sound.prompt.empty(), "text rows have no prompt");
  }
}

}  // namespace

Verdict check_data_rows(std::string_view bytes) {
  const InputFile input(bytes);
  return verdict_of([&] { check_lines(input.path()); });
}

std::vector<std::string> data_rows_seeds() {
  std::vector<std::string> seeds;
  for (const char* name : {"prompt_completion.jsonl", "text.jsonl", "mixed.jsonl", "notes.txt"})
    seeds.push_back(read_all(source_folder() / "tests" / "data" / "data" / name));
  seeds.push_back("\xef\xbb\xbf{\"text\": \"\\ud83d\\ude00\", \"text\": \"b\"}\r\n\r\n{\"text\": 1}\n");
  return seeds;
}

}  // namespace sluice::test
