#include "engine/base/error.h"
#include "io/uring_queue.h"

namespace sluice {

std::string uring_unavailable_reason() {
  return "io_uring was left out of this build (no liburing when it was configured)";
}

std::unique_ptr<IoQueue> make_uring_queue(const IoQueueOptions& /*options*/, std::string* /*note*/) {
  throw Error(ErrorKind::resource, uring_unavailable_reason());
}

}  // namespace sluice
