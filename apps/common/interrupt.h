#pragma once

namespace sluice {

// While it lives, the first SIGINT or SIGTERM only leaves a note, so that the step at hand can end; the
// second one ends the process at once with 128 + its number. Before and after, signals do what they did. One
// at a time, made and destroyed by the main thread.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  // The signal that came, 0 if none has.
  int signal_number() const;
};

// What the process then returns: 130 for SIGINT, 143 for SIGTERM, as shells count.
constexpr int interrupt_exit_code(int signal_number) {
  return 128 + signal_number;
}

}  // namespace sluice
