#include "tests/support/xz.h"

#include <array>
#include <fstream>
#include <iterator>
#include <lzma.h>
#include <stdexcept>

namespace sluice::test {

std::string read_xz(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be opened");
  const std::string packed{std::istreambuf_iterator<char>(file), {}};
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, UINT64_MAX, LZMA_CONCATENATED) != LZMA_OK) throw std::bad_alloc();
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::string result;
  std::array<char, 65536> buffer;
  lzma_ret status = LZMA_OK;
  while (status == LZMA_OK) {
    stream.next_out = reinterpret_cast<uint8_t*>(buffer.data());
    stream.avail_out = buffer.size();
    status = lzma_code(&stream, LZMA_FINISH);
    result.append(buffer.data(), buffer.size() - stream.avail_out);
  }
  lzma_end(&stream);
  if (status != LZMA_STREAM_END)
    throw std::runtime_error(path + ": damaged, lzma error " + std::to_string(status));
  return result;
}

}  // namespace sluice::test
