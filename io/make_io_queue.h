#pragma once

#include <memory>
#include <string>

#include "io/io_queue.h"

namespace sluice {

// How to transfer, as chosen by an option or measured by nvme_bench.
struct IoChoice {
  enum class Engine { automatic, io_uring, threads };
  Engine engine = Engine::automatic;
  IoQueueOptions queue;
};

// The queue for this machine: io_uring where a trial transfer works, else threads. Appends what did not work
// to `note` (may be null), a sentence each: "io_uring is not permitted here (EPERM): using 4 threads." Throws
// Error(resource) where Engine::io_uring was asked for and does not work.
std::unique_ptr<IoQueue> make_io_queue(const IoChoice& choice, std::string* note);

}  // namespace sluice
