#include "apps/finetune/data/line_reader.h"

#include <cerrno>
#include <filesystem>

#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr size_t kBufferBytes = 1 << 18;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

LineReader::LineReader(std::string path) : path_(std::move(path)) {
  if (std::filesystem::is_directory(path_))
    throw Error(ErrorKind::data, path_ + ": is a folder. Name a data file");
  file_.open(path_, std::ios::binary);
  if (!file_) throw Error(ErrorKind::data, path_ + ": cannot be opened: " + errno_text(errno));
  if (fill() && buffer_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
}

bool LineReader::fill() {
  buffer_.resize(kBufferBytes);
  file_.read(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  if (file_.bad()) throw Error(ErrorKind::data, path_ + ": cannot be read: " + errno_text(errno));
  buffer_.resize(static_cast<size_t>(file_.gcount()));
  at_ = 0;
  return !buffer_.empty();
}

bool LineReader::next(std::string& line) {
  line.clear();
  bool any = false;
  while (at_ < buffer_.size() || fill()) {
    if (after_carriage_return_ && buffer_[at_] == '\n') ++at_;  // the second half of a CRLF
    after_carriage_return_ = false;
    if (at_ >= buffer_.size()) continue;
    any = true;
    ended_ = false;
    const size_t end = buffer_.find_first_of("\r\n", at_);
    line.append(buffer_, at_, (end == std::string::npos ? buffer_.size() : end) - at_);
    at_ = end == std::string::npos ? buffer_.size() : end + 1;
    if (end == std::string::npos) continue;
    after_carriage_return_ = buffer_[end] == '\r';
    ended_ = true;
    break;
  }
  if (any) ++line_number_;
  return any;
}

}  // namespace sluice
