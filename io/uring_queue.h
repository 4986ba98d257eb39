#pragma once

#include <memory>
#include <string>

#include "io/io_queue.h"

namespace sluice {

// Why io_uring cannot be used here; empty where it can. Makes a small ring and really reads with it: a
// sandbox may refuse what the kernel has.
std::string uring_unavailable_reason();

// A queue on io_uring. Transfers of registered descriptors, and those that lie within one registered buffer,
// spare the kernel the look-up. Throws Error(resource) where no ring can be made. Where `buffers` or
// `descriptors` cannot be registered it works without, and appends a sentence each to `note` if there is one.
std::unique_ptr<IoQueue> make_uring_queue(const IoQueueOptions& options = {}, std::string* note = nullptr);

}  // namespace sluice
