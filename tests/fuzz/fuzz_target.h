#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// What the fuzzers (tests/fuzz.sh) and fuzz_replay_test drive: the readers of files that come from outside.
namespace sluice::test {

enum class Verdict { accepted, refused };

// Thrown where a reader breaks a promise: the fuzzer takes it for a crash, the test for a failure.
class BrokenPromise : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void promise(bool kept, const char* what) {
  if (!kept) throw BrokenPromise(what);
}

// One reader. Everything about an input that is not `refused` has been compared with what the reader's header
// promises.
struct FuzzTarget {
  std::string_view name;  // the program is fuzz_NAME, regression inputs are in tests/data/fuzz/NAME
  Verdict (*check)(std::string_view bytes);
  // Sound inputs, each accepted, that are small enough to be changed thousands of times a second.
  std::vector<std::string> (*seeds)();
};

const std::vector<FuzzTarget>& fuzz_targets();

// Runs `read`: refused where it throws an Error of kind data. Any other exception goes on to the caller.
Verdict verdict_of(const std::function<void()>& read);

// Bytes that a reader of files opens by name, in memory alone.
class InputFile {
 public:
  explicit InputFile(std::string_view bytes);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();
  std::string path() const;

 private:
  int descriptor_;
};

Verdict check_safetensors(std::string_view bytes);
std::vector<std::string> safetensors_seeds();
Verdict check_gguf(std::string_view bytes);
std::vector<std::string> gguf_seeds();
// tokenizer.json, a zero byte, and the text to encode.
Verdict check_tokenizer(std::string_view bytes);
std::vector<std::string> tokenizer_seeds();
Verdict check_config(std::string_view bytes);
std::vector<std::string> config_seeds();
Verdict check_manifest(std::string_view bytes);
std::vector<std::string> manifest_seeds();
Verdict check_run_record(std::string_view bytes);
std::vector<std::string> run_record_seeds();
Verdict check_data_rows(std::string_view bytes);
std::vector<std::string> data_rows_seeds();

}  // namespace sluice::test
