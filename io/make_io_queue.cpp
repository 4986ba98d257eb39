#include "io/make_io_queue.h"

#include "engine/base/error.h"
#include "io/thread_queue.h"
#include "io/uring_queue.h"

namespace sluice {

std::unique_ptr<IoQueue> make_io_queue(const IoChoice& choice, std::string* note) {
  using Engine = IoChoice::Engine;
  if (choice.engine == Engine::threads) return std::make_unique<ThreadQueue>(choice.queue);
  std::string reason = uring_unavailable_reason();
  if (reason.empty()) {
    try {
      return make_uring_queue(choice.queue, note);
    } catch (const Error& error) {  // the trial's small ring went, this one does not
      reason = error.what();
    }
  }
  if (choice.engine == Engine::io_uring)
    throw Error(ErrorKind::resource, reason + ". Choose threads, or leave the choice to the program.");
  if (note != nullptr) *note += reason + ": using " + std::to_string(choice.queue.thread_count) + " threads.";
  return std::make_unique<ThreadQueue>(choice.queue);
}

}  // namespace sluice
