#pragma once

#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace sluice::test {

// How a program ended and what it said. A program that a signal killed has code -signal.
struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

// A program of the build, run with pipes on its three standard streams. The destructor kills what still runs.
class ChildProcess {
 public:
  // `arguments[0]` is a path. `before_exec` runs in the child (limits, namespaces); the child ends with 120
  // if it returns false.
  explicit ChildProcess(const std::vector<std::string>& arguments,
                        const std::function<bool()>& before_exec = {});
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  // Blocks until its standard error contains `text`; false if it ends before.
  bool wait_for_error_text(const std::string& text);
  void send_signal(int number);
  // Gives it `input` (less than a pipe holds: 64 KiB), closes that pipe, and waits for its end.
  Outcome finish(const std::string& input = "");

 private:
  bool read_some();

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::string out_text_, err_text_;
};

// The program `name` beside the one that runs.
std::string program_path(const std::string& name);

}  // namespace sluice::test
