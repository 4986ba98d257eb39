#include "tests/fuzz/fuzz_target.h"

#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/error.h"

namespace sluice::test {

const std::vector<FuzzTarget>& fuzz_targets() {
  static const std::vector<FuzzTarget> targets = {
      {"safetensors", check_safetensors, safetensors_seeds},
      {"gguf", check_gguf, gguf_seeds},
      {"tokenizer", check_tokenizer, tokenizer_seeds},
      {"config", check_config, config_seeds},
      {"manifest", check_manifest, manifest_seeds},
      {"run_record", check_run_record, run_record_seeds},
      {"data_rows", check_data_rows, data_rows_seeds},
  };
  return targets;
}

Verdict verdict_of(const std::function<void()>& read) {
  try {
    read();
    return Verdict::accepted;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    promise(*error.what() != '\0', "a refusal says why");
    return Verdict::refused;
  }
}

InputFile::InputFile(std::string_view bytes) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  SLUICE_CHECK(descriptor_ >= 0);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    SLUICE_CHECK(count > 0);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

std::string InputFile::path() const {
  return "/proc/self/fd/" + std::to_string(descriptor_);
}

}  // namespace sluice::test
