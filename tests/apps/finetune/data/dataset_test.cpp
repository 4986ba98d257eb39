#include "apps/finetune/data/dataset.h"

#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/finetune/data/line_reader.h"
#include "tests/apps/finetune/data/tokenizer_fixtures.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using nlohmann::json;

Tokenizer tokenizer(const std::string& name = "gpt2_trim_offsets") {
  return Tokenizer((test::fixtures_folder() / "tokenizers" / "small" / name / "tokenizer.json").string());
}

// `text` as a data file, read with the given options.
struct Reading {
  test::TemporaryFolder folder;
  DatasetOptions options;
  std::string path(const std::string& text, const std::string& name = "data.jsonl") const {
    const auto file = folder / name;
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }
  Dataset read(const std::string& text, const std::string& name = "data.jsonl",
               const std::string& tokenizer_name = "gpt2_trim_offsets") const {
    Tokenizer t = tokenizer(tokenizer_name);
    return Dataset::read(path(text, name), t, options);
  }
};

std::string decoded(const DatasetRow& row, Tokenizer::Skip skip = Tokenizer::Skip::nothing) {
  return tokenizer().decode(row.ids, skip);
}

std::string learnt(const DatasetRow& row) {
  std::vector<int32_t> ids;
  for (size_t t = 0; t < row.ids.size(); ++t) {
    if (row.labelled[t] != 0) ids.push_back(row.ids[t]);
  }
  return tokenizer().decode(ids);
}

// Rows and dropped rows of a shared file are those its expected.json lists (rows of messages, which are not
// read yet, apart).
void check_fixture(const std::string& name) {
  const auto path = test::fixtures_folder() / "data" / name;
  const json expected = json::parse(test::read_all(path.string() + ".expected.json"));
  Tokenizer t = tokenizer();
  DatasetOptions options;
  options.on_bad_row = OnBadRow::skip;
  options.eos_token_id = 1000;  // so that a text of one token has something to learn
  options.end_token = EndToken::after_all;
  const Dataset data = Dataset::read(path.string(), t, options);
  EXPECT_EQ(std::string(sluice::name(data.report().format)), expected["format"]);
  std::vector<std::pair<int64_t, std::string>> rows, wanted_rows, bad, wanted_bad;
  for (int64_t i = 0; i < data.size(); ++i)
    rows.emplace_back(data.row(i).line, decoded(data.row(i), Tokenizer::Skip::special));
  for (const auto& row : expected["rows"]) {
    if (row.contains("messages")) {
      wanted_bad.emplace_back(row["line"], "chat");
    } else {
      wanted_rows.emplace_back(
          row["line"], row.contains("text") ? std::string(row["text"])
                                            : std::string(row["prompt"]) + std::string(row["completion"]));
    }
  }
  for (const auto& row : expected["dropped"]) wanted_bad.emplace_back(row["line"], row["reason"]);
  for (const auto& notice : data.report().notices) {
    if (notice.label != "no_label" && notice.label != "cut") bad.emplace_back(notice.line, notice.label);
  }
  std::sort(wanted_bad.begin(), wanted_bad.end());
  EXPECT_EQ(rows, wanted_rows);
  EXPECT_EQ(bad, wanted_bad);
}

TEST(Dataset, ReadsTheSharedFiles) {
  check_fixture("text.jsonl");
  check_fixture("prompt_completion.jsonl");
  check_fixture("mixed.jsonl");
  check_fixture("notes.txt");
}

TEST(Dataset, RefusesOtherKindsByName) {
  const auto refuses = [](const std::string& name, const std::vector<std::string>& texts) {
    const std::string path = (test::fixtures_folder() / "data" / name).string();
    std::vector<std::string> all = texts;
    all.push_back(path);
    Tokenizer t = tokenizer();
    test::expect_error(ErrorKind::data, all, [&] { (void)Dataset::read(path, t, {}); });
  };
  refuses("messages.jsonl", {":1", "chat data", "prompt"});
  refuses("alpaca.jsonl", {":1", "instruction"});
  refuses("preference.jsonl", {":1", "DPO"});
  refuses("empty.jsonl", {"no rows"});
  refuses("no_such.jsonl", {"no data file"});
  const Reading reading;
  test::expect_error(ErrorKind::data, {"array"},
                     [&] { reading.read("[\n {\"text\": \"a\"}\n]\n", "data.json"); });
  test::expect_error(ErrorKind::data, {".csv"}, [&] { reading.read("a,b\n", "data.csv"); });
  test::expect_error(ErrorKind::data, {"no rows"}, [&] { reading.read(" \n\t\n\n"); });
  test::expect_error(ErrorKind::data, {"no rows"}, [&] { reading.read("\n\n", "notes.txt"); });
}

TEST(Dataset, BadRowsStopTheRunByDefault) {
  const Reading reading;
  const auto fails = [&](const std::string& text, const std::vector<std::string>& texts) {
    test::expect_error(ErrorKind::data, texts, [&] { reading.read(text); });
  };
  const std::string good = "{\"text\": \"fine words\"}\n";
  fails(good + "{\"text\": \"\xff\"}\n", {"data.jsonl:2:", "byte 10", "--on_bad_row skip"});
  fails(good + "\n\n{\"text\": 5}", {"data.jsonl:4:", "number", "string"});
  fails(good + "{\"text\": \"a\",}", {"data.jsonl:2:", "JSON"});
  fails(good + "{\"words\": \"a\"}", {"data.jsonl:2:", "\"text\" is missing", "\"words\""});
  fails(good + "{\"messages\": []}", {"data.jsonl:2:", "looks like messages"});
  fails("{\"words\": \"a\"}", {"data.jsonl:1:", "neither", "\"words\""});
  fails(good + "{\"text\": null}", {"data.jsonl:2:", "null"});
  fails(good + "[1, 2]", {"data.jsonl:2:", "array"});
  fails("{\"prompt\": \"a\", \"completion\": \" \\n\"}", {"data.jsonl:1:", "completion", "empty"});
}

TEST(Dataset, AllKindsOfLineEndsReadAlike) {
  const Reading reading;
  const Dataset data = reading.read(
      "\xef\xbb\xbf{\"text\": \"one row\"}\r\n\r\n{\"text\": \"two \u2028 rows\"}\r{\"text\": \"three "
      "rows\"}\n \t\n{\"text\": \"four rows\"}");
  ASSERT_EQ(data.size(), 4);
  EXPECT_EQ(decoded(data.row(0)), "one row");
  EXPECT_EQ(decoded(data.row(1)), "two \u2028 rows");
  EXPECT_EQ(data.row(1).line, 3);
  EXPECT_EQ(data.row(2).line, 4);
  EXPECT_EQ(decoded(data.row(3)), "four rows");
  EXPECT_EQ(data.row(3).line, 6);
  EXPECT_EQ(data.source(3), data.path() + ":6");
}

// A CRLF that falls on the edge of the reader's buffer is one end of a line.
TEST(Dataset, LineEndsMayMeetTheBuffersEdge) {
  const test::TemporaryFolder folder;
  for (size_t length = (1 << 18) - 3; length <= (1 << 18) + 1; ++length) {
    const auto path = folder / "lines.txt";
    std::ofstream(path, std::ios::binary) << std::string(length, 'x') << "\r\nsecond\r\n\r\nfourth";
    LineReader reader(path.string());
    std::string line;
    ASSERT_TRUE(reader.next(line));
    EXPECT_EQ(line.size(), length);
    ASSERT_TRUE(reader.next(line));
    EXPECT_EQ(line, "second");
    EXPECT_EQ(reader.line_number(), 2);
    ASSERT_TRUE(reader.next(line));
    EXPECT_EQ(line, "");
    ASSERT_TRUE(reader.next(line));
    EXPECT_EQ(line, "fourth");
    EXPECT_FALSE(reader.ended_in_line_end());
    EXPECT_FALSE(reader.next(line));
  }
}

TEST(Dataset, LastOfEqualKeysCounts) {
  const Reading reading;
  const Dataset data = reading.read("{\"text\": \"first\", \"text\": \"second one\"}\n");
  EXPECT_EQ(decoded(data.row(0)), "second one");
  ASSERT_EQ(data.report().notices.size(), 1u);
  EXPECT_EQ(data.report().notices[0].label, "duplicate_key");
  EXPECT_EQ(data.report().notices[0].line, 1);
}

TEST(Dataset, OnlyCompletionAndEndAreLearnt) {
  Reading reading;
  reading.options.eos_token_id = 1000;  // <|endoftext|>
  const Dataset data = reading.read(
      "{\"prompt\": \"The answer is\", \"completion\": \" forty-two\"}\n"
      "{\"prompt\": \"\", \"completion\": \"all of it\"}\n"
      "{\"prompt\": \"x = \", \"completion\": \"7<|endoftext|>\"}\n");
  EXPECT_EQ(decoded(data.row(0)), "The answer is forty-two<|endoftext|>");
  EXPECT_EQ(learnt(data.row(0)), " forty-two<|endoftext|>");
  EXPECT_EQ(learnt(data.row(1)), "all of it<|endoftext|>");
  EXPECT_EQ(learnt(data.row(2)), "7<|endoftext|>") << "an end token that is there is not put again";
}

// " 0" is one token of the whole text, though prompt and completion part it: it is learnt, and so is all
// behind it.
TEST(Dataset, TokensAreThoseOfTheWholeText) {
  Reading reading;
  Tokenizer t = tokenizer();
  const Dataset data = reading.read("{\"prompt\": \"go \", \"completion\": \"0 times\"}\n");
  const std::vector<int32_t> whole = t.encode_ids("go 0 times", SpecialTokens::omit);
  EXPECT_EQ(std::vector<int32_t>(data.row(0).ids.begin(), data.row(0).ids.end()), whole);
  EXPECT_EQ(learnt(data.row(0)), " 0 times");
}

TEST(Dataset, EverythingOfATextIsLearnt) {
  Reading reading;
  reading.options.eos_token_id = 1000;
  EXPECT_EQ(learnt(reading.read("{\"text\": \"some words\"}").row(0)), "some words");
  reading.options.end_token = EndToken::after_all;
  EXPECT_EQ(learnt(reading.read("{\"text\": \"some words\"}").row(0)), "some words<|endoftext|>");
}

TEST(Dataset, BeginAndEndComeOnce) {
  Reading reading;
  reading.options.eos_token_id = 1001;
  const Dataset data = reading.read(
      "{\"prompt\": \"a b\", \"completion\": \" c d\"}\n{\"prompt\": \"<s>a b\", \"completion\": \" c d\"}\n",
      "data.jsonl", "bos_and_eos");
  for (int64_t i = 0; i < 2; ++i) {
    const DatasetRow row = data.row(i);
    EXPECT_EQ(row.ids.front(), 1000);
    EXPECT_NE(row.ids[1], 1000);
    EXPECT_EQ(row.ids.back(), 1001);
    EXPECT_NE(row.ids[row.ids.size() - 2], 1001);
    EXPECT_EQ(row.labelled.front(), 0);
    EXPECT_EQ(row.labelled.back(), 1);
    EXPECT_EQ(std::vector<int32_t>(row.ids.begin(), row.ids.end()),
              std::vector<int32_t>(data.row(0).ids.begin(), data.row(0).ids.end()));
  }
  EXPECT_EQ(data.report().double_bos_count, 1);
}

TEST(Dataset, LongRowsAreCutAndCounted) {
  Reading reading;
  reading.options.max_seq_length = 4;
  reading.options.eos_token_id = 1000;
  const std::string good = "{\"prompt\": \"a\", \"completion\": \" b c d e f g h\"}\n";
  const std::string masked = "{\"prompt\": \"a b c d e f g h\", \"completion\": \" i\"}\n";
  const Dataset data = reading.read(good + masked);
  ASSERT_EQ(data.size(), 1);
  EXPECT_EQ(data.row_length(0), 4);
  EXPECT_EQ(data.report().cut_count, 1);
  EXPECT_EQ(data.report().unlabelled_count, 1);
  EXPECT_EQ(data.report().label_count, 3);
  EXPECT_EQ(data.report().token_count, 4);
  ASSERT_EQ(data.report().notices.size(), 2u);
  EXPECT_EQ(data.report().notices[1].label, "no_label");
  EXPECT_EQ(data.report().notices[1].line, 2);
  test::expect_error(ErrorKind::diverged, {"data.jsonl", "all labels masked", ":1"},
                     [&] { reading.read(masked); });
  reading.options.max_seq_length = 1;
  test::expect_error(ErrorKind::usage, {"max_seq_length"}, [&] { reading.read(good); });
}

TEST(Dataset, PlainTextIsCutIntoRowsWithoutLoss) {
  Reading reading;
  reading.options.max_seq_length = 5;
  std::string text;
  for (int i = 0; i < 40; ++i) text += "line " + std::to_string(i) + " of the text\n";
  const Dataset data = reading.read(text, "notes.TXT");
  std::vector<int32_t> all;
  for (int64_t i = 0; i < data.size(); ++i) {
    const DatasetRow row = data.row(i);
    all.insert(all.end(), row.ids.begin(), row.ids.end());
    EXPECT_EQ(row.ids.size(), i + 1 < data.size() ? 5u : row.ids.size());
    if (i > 0) {
      EXPECT_GE(row.line, data.row(i - 1).line);
    }
  }
  std::vector<int32_t> wanted = tokenizer().encode_ids(text, SpecialTokens::omit);
  if (wanted.size() % 5 == 1) wanted.pop_back();
  EXPECT_EQ(all, wanted);
  EXPECT_GE(data.row(data.size() - 1).line, 39);
  test::expect_error(ErrorKind::data, {"notes.txt:2:", "byte 1"},
                     [&] { reading.read("a\nb\xff\n", "notes.txt"); });
}

}  // namespace
}  // namespace sluice
