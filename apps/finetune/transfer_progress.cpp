#include "apps/finetune/transfer_progress.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <unistd.h>

#include "engine/memory/tier.h"

namespace sluice::finetune {
namespace {

std::function<void(uint64_t done_bytes, uint64_t total_bytes)> show_transfer(std::string what) {
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  auto shown = std::make_shared<int64_t>(-1);  // per cent
  return [what = std::move(what), terminal, shown](uint64_t done_bytes, uint64_t total_bytes) {
    if (*shown < 0) std::cerr << what << " (" << format_bytes(total_bytes) << ")" << (terminal ? "" : "\n");
    const int64_t percent = static_cast<int64_t>(100 * done_bytes / std::max<uint64_t>(1, total_bytes));
    if (terminal && percent != *shown)
      std::cerr << '\r' << what << " (" << format_bytes(total_bytes) << ") " << percent << " %"
                << (done_bytes == total_bytes ? "\n" : "") << std::flush;
    *shown = percent;
  };
}

}  // namespace

LongTransfer WatchedTransfers::transfer(const std::string& what) {
  return {.queue = queue_,
          .progress =
              [this, show = show_transfer(what)](uint64_t done_bytes, uint64_t total_bytes) {
                stop_ = watch_.signal_number() != 0;
                show(done_bytes, total_bytes);
              },
          .stop = &stop_};
}

}  // namespace sluice::finetune
