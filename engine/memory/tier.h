#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/thread_annotations.h"

namespace sluice {

// Where bytes live, fastest first. On the host device the device tier is RAM too, but accounted apart.
enum class Tier { device, host, disk };

constexpr std::string_view name(Tier tier) {
  constexpr std::array<std::string_view, 3> kNames{"device", "host", "disk"};
  return kNames[static_cast<size_t>(tier)];
}

// "1.50 GiB", "12.0 MiB", "512 B".
std::string format_bytes(size_t bytes);

class TierBudget;

// Bytes of a tier, given back by the destructor. Move-only.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { swap(other); }
  Reservation& operator=(Reservation&& other) noexcept {
    Reservation(std::move(other)).swap(*this);
    return *this;
  }
  ~Reservation();
  size_t size_bytes() const { return size_bytes_; }

 private:
  friend class TierBudget;
  Reservation(TierBudget* budget, size_t size_bytes) : budget_(budget), size_bytes_(size_bytes) {}
  void swap(Reservation& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(size_bytes_, other.size_bytes_);
  }

  TierBudget* budget_ = nullptr;
  size_t size_bytes_ = 0;
};

// What a tier may hold. Outlives its reservations. Thread-safe.
class TierBudget {
 public:
  // Without a limit it only counts.
  explicit TierBudget(Tier tier, std::optional<size_t> limit_bytes = {})
      : tier_(tier), limit_bytes_(limit_bytes) {}
  TierBudget(const TierBudget&) = delete;
  TierBudget& operator=(const TierBudget&) = delete;

  // `what` is named in the error: Error(resource) with the bytes asked, in use, and the limit.
  [[nodiscard]] Reservation reserve(size_t size_bytes, std::string_view what) EXCLUDES(mutex_);
  Tier tier() const { return tier_; }
  std::optional<size_t> limit_bytes() const { return limit_bytes_; }
  size_t used_bytes() const EXCLUDES(mutex_);
  size_t peak_bytes() const EXCLUDES(mutex_);

 private:
  friend class Reservation;
  void give_back(size_t size_bytes) EXCLUDES(mutex_);

  const Tier tier_;
  const std::optional<size_t> limit_bytes_;
  mutable Mutex mutex_;
  size_t used_bytes_ GUARDED_BY(mutex_) = 0;
  size_t peak_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
