#include "apps/common/interrupt.h"

#include <atomic>
#include <csignal>
#include <unistd.h>

namespace sluice {
namespace {

// A signal handler has nothing but globals to write to.
std::atomic<int> received = 0;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void note_signal(int number) {
  if (received.exchange(number) != 0) ::_exit(interrupt_exit_code(number));
}

void set_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // system calls of the step at hand go on
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

InterruptWatch::InterruptWatch() {
  received = 0;
  set_handler(note_signal);
}

InterruptWatch::~InterruptWatch() {
  set_handler(SIG_DFL);
}

int InterruptWatch::signal_number() const {
  return received;
}

}  // namespace sluice
