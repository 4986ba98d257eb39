#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

// What a piece of work is: "forward layer 3" of step 7. For people: traces, and messages about transfers that
// are late. A value that owns nothing.
struct WorkLabel {
  std::string_view verb;     // a literal; empty: unknown
  std::string_view subject;  // a block's name, which outlives the work; may be empty
  int64_t step = 0;          // of the run, from 1; 0: before the first

  std::string text() const {
    std::string result(verb);
    if (!subject.empty()) (result += ' ') += subject;
    return result;
  }
};

// What the calling thread works on. Streams hand it on: work has the label that its submitter had.
inline WorkLabel& this_thread_label() {
  thread_local WorkLabel label;
  return label;
}

// The calling thread's label while it lives; the step stays.
class WorkScope {
 public:
  explicit WorkScope(std::string_view verb, std::string_view subject = {})
      : WorkScope(WorkLabel{verb, subject, this_thread_label().step}) {}
  explicit WorkScope(const WorkLabel& label) : before_(this_thread_label()) { this_thread_label() = label; }
  ~WorkScope() { this_thread_label() = before_; }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  const WorkLabel before_;
};

}  // namespace sluice
