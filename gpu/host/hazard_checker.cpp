#include "gpu/host/hazard_checker.h"

#include <cstdio>
#include <sstream>

namespace sluice::gpu {
namespace {

constexpr int kHost = -2;  // not a stream's id; -1 is "no access"

std::string describe(const AccessConflict& conflict, std::string_view later_name,
                     const std::string& later_stream, const std::string& earlier_stream) {
  std::ostringstream text;
  text << later_name << " on '" << later_stream << "' " << (conflict.access.write ? "writes" : "reads")
       << " [" << static_cast<const void*>(conflict.access.begin) << ", +" << conflict.access.size_bytes
       << ") " << (conflict.earlier_writes ? "written" : "read") << " by " << conflict.earlier.name << " on '"
       << earlier_stream << "' without a wait between";
  return text.str();
}

}  // namespace

std::vector<Violation> HazardChecker::violations() const {
  MutexLock lock(mutex_);
  return violations_;
}

size_t HazardChecker::violation_count() const {
  MutexLock lock(mutex_);
  return violation_count_;
}

size_t HazardChecker::range_count() const {
  MutexLock lock(mutex_);
  return history_.range_count();
}

int HazardChecker::add_stream(const std::string& name) {
  MutexLock lock(mutex_);
  stream_names_.push_back(name);
  stream_clocks_.emplace_back();
  return static_cast<int>(stream_names_.size()) - 1;
}

void HazardChecker::remove_stream(int stream) {
  MutexLock lock(mutex_);
  host_clock().join(stream_clocks_[static_cast<size_t>(stream)]);
}

Order HazardChecker::on_submit(int stream, const Task& task) {
  MutexLock lock(mutex_);
  VectorClock& clock = submitting_clock(stream);
  const AccessStamp stamp{stream, clock.tick(stream), task.name};
  std::vector<AccessConflict> conflicts;
  for (const MemoryAccess& access : task.accesses) history_.add(access, stamp, clock, conflicts);
  for (const AccessConflict& conflict : conflicts) {
    report(conflict, task.name, stream_names_[static_cast<size_t>(stream)]);
  }
  return std::make_shared<const VectorClock>(clock);
}

Order HazardChecker::on_record(int stream) {
  MutexLock lock(mutex_);
  return std::make_shared<const VectorClock>(submitting_clock(stream));
}

void HazardChecker::on_wait(int stream, const Order& order) {
  MutexLock lock(mutex_);
  VectorClock& clock = submitting_clock(stream);
  if (order) clock.join(*static_cast<const VectorClock*>(order.get()));
}

void HazardChecker::on_host_wait(const Order& order) {
  MutexLock lock(mutex_);
  if (order) host_clock().join(*static_cast<const VectorClock*>(order.get()));
}

void HazardChecker::on_task_begin(const Order& order) {
  if (host_order_ == HostOrder::per_thread) on_host_wait(order);
}

void HazardChecker::on_allocate(const void* begin, size_t size_bytes) {
  MutexLock lock(mutex_);
  history_.forget(static_cast<const std::byte*>(begin), size_bytes);
}

void HazardChecker::on_free(const void* begin, size_t size_bytes) {
  MutexLock lock(mutex_);
  std::vector<AccessConflict> conflicts;
  history_.add(writes(begin, size_bytes), {kHost, 0, "free"}, host_clock(), conflicts);
  for (const AccessConflict& conflict : conflicts) report(conflict, "free", "host");
  history_.forget(static_cast<const std::byte*>(begin), size_bytes);
}

VectorClock& HazardChecker::host_clock() {
  return host_clocks_[host_order_ == HostOrder::shared ? std::thread::id() : std::this_thread::get_id()];
}

VectorClock& HazardChecker::submitting_clock(int stream) {
  VectorClock& clock = stream_clocks_[static_cast<size_t>(stream)];
  clock.join(host_clock());
  return clock;
}

void HazardChecker::report(const AccessConflict& conflict, std::string_view later_name,
                           const std::string& later_stream) {
  const std::string& earlier_stream = stream_names_[static_cast<size_t>(conflict.earlier.stream)];
  Violation violation{.text = describe(conflict, later_name, later_stream, earlier_stream),
                      .later_name = std::string(later_name),
                      .later_stream = later_stream,
                      .earlier_name = std::string(conflict.earlier.name),
                      .earlier_stream = earlier_stream,
                      .begin = conflict.access.begin,
                      .size_bytes = conflict.access.size_bytes};
  SLUICE_CHECK(on_violation_ == OnViolation::collect, violation.text);
  ++violation_count_;
  if (violations_.size() < kKeptViolations) violations_.push_back(std::move(violation));
}

}  // namespace sluice::gpu
