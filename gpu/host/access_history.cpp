#include "gpu/host/access_history.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace sluice::gpu {
namespace {

// Conflicts with the same earlier access in ranges side by side are one.
void append(const AccessConflict& conflict, std::vector<AccessConflict>& conflicts) {
  for (AccessConflict& known : conflicts) {
    if (known.earlier == conflict.earlier && known.earlier_writes == conflict.earlier_writes &&
        known.access.write == conflict.access.write &&
        known.access.begin + known.access.size_bytes == conflict.access.begin) {
      known.access.size_bytes += conflict.access.size_bytes;
      return;
    }
  }
  conflicts.push_back(conflict);
}

}  // namespace

void AccessHistory::add(const MemoryAccess& access, const AccessStamp& stamp, const VectorClock& clock,
                        std::vector<AccessConflict>& conflicts) {
  if (access.size_bytes == 0) return;
  const std::byte* end = access.begin + access.size_bytes;
  split_at(access.begin);
  split_at(end);
  const auto first = ranges_.lower_bound(access.begin);
  const auto last = ranges_.lower_bound(end);
  for (auto range = first; range != last; ++range) judge(*range, access, stamp, clock, conflicts);
  if (access.write) {
    ranges_.erase(first, last);
    ranges_.emplace(access.begin, Range{.end = end, .write = stamp, .reads = {}});
  } else {
    add_read(first, last, access, stamp);
  }
}

void AccessHistory::forget(const std::byte* begin, size_t size_bytes) {
  split_at(begin);
  split_at(begin + size_bytes);
  ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(begin + size_bytes));
}

void AccessHistory::split_at(const std::byte* point) {
  auto above = ranges_.lower_bound(point);
  if (above == ranges_.begin()) return;
  Range& below = std::prev(above)->second;
  if (!std::less<>{}(point, below.end)) return;
  Range upper = below;
  below.end = point;
  ranges_.emplace_hint(above, point, std::move(upper));
}

void AccessHistory::judge(const Ranges::value_type& range, const MemoryAccess& access,
                          const AccessStamp& stamp, const VectorClock& clock,
                          std::vector<AccessConflict>& conflicts) const {
  const auto compare = [&](const AccessStamp& earlier, bool earlier_writes) {
    if (earlier.stream < 0 || earlier.stream == stamp.stream || clock[earlier.stream] >= earlier.time) return;
    const MemoryAccess overlap{range.first, static_cast<size_t>(range.second.end - range.first),
                               access.write};
    append({overlap, earlier, earlier_writes}, conflicts);
  };
  compare(range.second.write, true);
  if (!access.write) return;
  for (const AccessStamp& read : range.second.reads) compare(read, false);
}

void AccessHistory::add_read(Ranges::iterator first, Ranges::iterator last, const MemoryAccess& access,
                             const AccessStamp& stamp) {
  const std::byte* covered = access.begin;
  for (auto range = first; range != last; ++range) {
    if (covered != range->first) {
      ranges_.emplace_hint(range, covered, Range{.end = range->first, .write = {}, .reads = {stamp}});
    }
    covered = range->second.end;
    auto& reads = range->second.reads;
    const auto same = std::find_if(reads.begin(), reads.end(),
                                   [&](const AccessStamp& read) { return read.stream == stamp.stream; });
    if (same == reads.end()) {
      reads.push_back(stamp);
    } else {
      *same = stamp;
    }
  }
  const std::byte* end = access.begin + access.size_bytes;
  if (covered != end) ranges_.emplace(covered, Range{.end = end, .write = {}, .reads = {stamp}});
}

}  // namespace sluice::gpu
