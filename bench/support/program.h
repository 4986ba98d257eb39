#pragma once

#include <functional>
#include <string>

#include "apps/common/option_table.h"

namespace sluice::bench {

// A bench from its command line to its exit code. Every bench takes --full: longer.
class Program {
 public:
  Program(const std::string& name, std::string summary);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void add(OptionRow row) { table_.add("Bench", std::move(row)); }
  bool full() const { return full_; }
  // Reads the options, then the exit code of `run`; what it throws is printed, and an option that is not
  // known refused.
  int main(int count, char** values, const std::function<int()>& run);

 private:
  std::string name_;
  OptionTable table_;
  bool full_ = false;
};

}  // namespace sluice::bench
