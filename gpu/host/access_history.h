#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "gpu/host/vector_clock.h"
#include "gpu/view.h"

namespace sluice::gpu {

// One task's access: the `time`-th task of `stream`.
struct AccessStamp {
  int stream = -1;
  uint64_t time = 0;
  std::string_view name;  // a literal
  bool operator==(const AccessStamp&) const = default;
};

struct AccessConflict {
  MemoryAccess access;  // of the later task; begin and size are those of the overlap
  AccessStamp earlier;
  bool earlier_writes = false;
};

// Per byte range the last write and, per stream, the last read after it: all that a later access must come
// after (what is older comes before these, or was reported). Ranges split where accesses begin and end, and a
// write that covers several makes them one again. Single-threaded.
class AccessHistory {
 public:
  // Adds the access of task `stamp` and appends what it conflicts with: accesses of other streams that
  // `clock` is not after.
  void add(const MemoryAccess& access, const AccessStamp& stamp, const VectorClock& clock,
           std::vector<AccessConflict>& conflicts);
  void forget(const std::byte* begin, size_t size_bytes);
  size_t range_count() const { return ranges_.size(); }

 private:
  struct Range {
    const std::byte* end = nullptr;
    AccessStamp write;  // stream -1: none
    std::vector<AccessStamp> reads;
  };
  using Ranges = std::map<const std::byte*, Range>;  // by begin; they do not overlap

  void split_at(const std::byte* point);
  void judge(const Ranges::value_type& range, const MemoryAccess& access, const AccessStamp& stamp,
             const VectorClock& clock, std::vector<AccessConflict>& conflicts) const;
  void add_read(Ranges::iterator first, Ranges::iterator last, const MemoryAccess& access,
                const AccessStamp& stamp);

  Ranges ranges_;
};

}  // namespace sluice::gpu
