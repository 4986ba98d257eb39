#include "engine/memory/tier.h"

#include <algorithm>
#include <cstdio>

#include "engine/base/error.h"

namespace sluice {

std::string format_bytes(size_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text,
                unit == 0    ? "%.0f %s"
                : value < 10 ? "%.2f %s"
                             : "%.1f %s",
                value, kUnits[unit]);
  return text;
}

Reservation::~Reservation() {
  if (budget_ != nullptr) budget_->give_back(size_bytes_);
}

Reservation TierBudget::reserve(size_t size_bytes, std::string_view what) {
  MutexLock lock(mutex_);
  if (limit_bytes_ && size_bytes > *limit_bytes_ - std::min(*limit_bytes_, used_bytes_)) {
    throw Error(ErrorKind::resource, "the " + std::string(name(tier_)) + " tier has no room for " +
                                         std::string(what) + ": " + format_bytes(size_bytes) + " asked, " +
                                         format_bytes(used_bytes_) + " in use, the limit is " +
                                         format_bytes(*limit_bytes_) +
                                         ". Raise the limit, or use fewer or shorter rows a micro-batch.");
  }
  used_bytes_ += size_bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return Reservation(this, size_bytes);
}

size_t TierBudget::used_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_;
}

size_t TierBudget::peak_bytes() const {
  MutexLock lock(mutex_);
  return peak_bytes_;
}

void TierBudget::give_back(size_t size_bytes) {
  MutexLock lock(mutex_);
  used_bytes_ -= size_bytes;
}

}  // namespace sluice
