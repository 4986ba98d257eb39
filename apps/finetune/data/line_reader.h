#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace sluice {

// A text file line by line, in memory of one line and a buffer. LF, CRLF and a lone CR end a line (U+2028
// does not); a byte order mark at the start is passed over; the last line needs no end. Bytes are not looked
// at otherwise.
class LineReader {
 public:
  // Throws Error(data) with path and errno, here and in next().
  explicit LineReader(std::string path);

  // False at the end of the file. `line` comes without its end.
  bool next(std::string& line);
  // Of the line that next() gave last, from 1.
  int64_t line_number() const { return line_number_; }
  // Whether the line that next() gave last had an end.
  bool ended_in_line_end() const { return ended_; }

 private:
  bool fill();

  std::string path_;
  std::ifstream file_;
  std::string buffer_;
  size_t at_ = 0;
  int64_t line_number_ = 0;
  bool after_carriage_return_ = false;
  bool ended_ = false;
};

}  // namespace sluice
