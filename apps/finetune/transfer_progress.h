#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace sluice::finetune {

// Says on standard error that something long goes on: a line, and on a terminal how far it has come.
// For LongTransfer::progress.
std::function<void(uint64_t done_bytes, uint64_t total_bytes)> show_transfer(std::string what);

}  // namespace sluice::finetune
