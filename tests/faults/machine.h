#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/memory/tensor_store.h"
#include "io/memory_queue.h"

// A computer that exists in RAM, whose drives fail as told and whose power can be cut: what a state file
// meets in the fault campaign.
namespace sluice::test {

enum class FaultKind {
  // To be healed:
  read_error,      // EIO, up to three times in a row
  write_error,     // the same, nothing is written
  torn_write,      // EIO, some sectors are written
  busy,            // EAGAIN or EINTR
  short_transfer,  // some of the bytes only
  late,            // ends after others that began later
  read_flip,       // a wrong bit in memory; the drive has the right one
  // To be named, and gone on from:
  bad_sector,      // EIO for good, of one place
  dead_drive,      // EIO for good, of all of a drive
  full_drive,      // ENOSPC on a write
  sync_failure,    // EIO; what was not durable may be lost for good, whatever later syncs say
  manifest_error,  // EIO or ENOSPC of a call that makes the manifest
  no_room,         // ENOSPC where a slab is preallocated
  // To be named, where it is read; where it was committed there is nothing to go on from:
  write_flip,   // a write succeeds, with one wrong bit on the drive
  lost_write,   // a write succeeds, nothing is written
  torn_lie,     // a write succeeds, some sectors are written
  stored_flip,  // a bit turns while the machine rests
  // The process is gone:
  power_cut,  // of what was not synced any subset of sectors is lost, and of names not synced the last ones
  kill,       // all that was done stays; what is in flight is done, torn or not begun
};
inline constexpr size_t kFaultKinds = 19;
std::string_view name(FaultKind kind);
bool heals(FaultKind kind);
bool damages(FaultKind kind);

// What is done to a drive. Each kind is counted for itself: its order does not depend on threads.
enum class Deed {
  state_read,
  state_write,
  scratch_read,
  scratch_write,
  slab_sync,
  allocate,
  create,  // of a name
  manifest_write,
  manifest_sync,
  rename,
  folder_sync,
  unlink,
};
inline constexpr size_t kDeeds = 12;

struct Fault {
  FaultKind kind = FaultKind::read_error;
  Deed deed = Deed::state_read;
  uint64_t nth = 0;  // of these deeds, from 0, since the machine was turned on
  int times = 1;     // in a row, at the same place
  int error_number = 5;
};

// What a program could do wrong; the campaign must see each.
enum class Mutant {
  none,
  completion_unchecked,  // an error in a completion is not looked at
  short_unchecked,       // a short transfer counts as whole
  slab_sync_left_out,
  manifest_sync_left_out,
  folder_sync_left_out,
  header_first,  // the manifest gets its name before the slabs are synced
  checksum_unverified,
  sync_unchecked,  // a sync that failed counts as done
};
inline constexpr size_t kMutants = 9;
std::string_view name(Mutant mutant);

// Its files: names, inodes and what of them is durable. Slabs' contents lie in a MemoryDisk, those of
// manifests in real small files below `root`, through whose system calls it is asked (system_calls.h). A name
// is durable when its folder is synced, and names become durable in order, as journals make them; folders are
// durable at once. Thread-safe, as drives are.
class Machine {
 public:
  // `root` outlives it, and holds nothing yet.
  Machine(std::filesystem::path root, uint64_t seed, Mutant mutant);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Turns it on, with what is durably there after a cut.
  void begin_life(std::vector<Fault> faults);
  // The process has ended. What a failed sync left not durable is lost now.
  void end_life();
  // Since it was turned on.
  bool was_cut() const { return off_; }
  int struck(FaultKind kind) const { return life_counts_[static_cast<size_t>(kind)]; }
  // In all lives.
  const std::array<int, kFaultKinds>& counts() const { return counts_; }
  // A bit of what rests in a slab, or in a manifest, turns.
  void flip_stored_bit();
  // Whether a place that a message names was really damaged: a slab's byte offset, or (-1) a manifest.
  bool was_damaged(const std::string& message) const;
  bool has_damaged_manifest() const;

  // Of transfers to its drives; outlived by it.
  IoQueueFactory queues(int capacity);
  void count(FaultKind kind, int times);
  bool forgets_checksums() const { return mutant_ == Mutant::checksum_unverified; }

  // System calls: a result, or -errno.
  int open(const char* path, int flags, mode_t mode);
  ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset);
  int sync(int descriptor);
  int rename(const char* from, const char* to);
  int unlink(const char* path);
  int allocate(int descriptor);

 private:
  enum class NodeKind { state, scratch, manifest };
  struct Node {
    NodeKind kind;
    std::string path;    // its first name
    std::string hidden;  // a name that stays
    int descriptor = -1;
    std::string durable;  // a manifest's contents
    bool dirty = false;
    bool doomed = false;  // a sync failed: it never becomes durable
    bool damaged = false;
    std::map<uint64_t, size_t> written;  // a slab's transfers: offset and size
  };
  // Bytes of a slab as they were before a write that is not durable.
  struct Undo {
    Node* node;
    uint64_t offset;
    std::vector<std::byte> before;
    bool doomed = false;
  };
  struct Damage {
    const Node* node;
    uint64_t begin, end;
  };
  struct NameChange {
    std::string gone, made;  // file names; empty: none
    Node* node = nullptr;    // of `made`
  };
  using Names = std::map<std::string, Node*>;
  struct Folder {
    Names durable;
    std::vector<NameChange> changes;  // not synced
  };
  struct ArmedFault : Fault {
    const Node* node = nullptr;  // where it struck first
    uint64_t begin = 0, end = 0;
    int left = -1;  // -1: has not struck
  };
  class Disk;
  class Queue;

  const Fault* strike(Deed deed, const Node* node, uint64_t begin = 0, uint64_t end = 0);
  static bool hits(const ArmedFault& fault, Deed deed, const Node* node, uint64_t begin, uint64_t end);
  int name_deed(Deed deed);
  bool is_tracked(const std::string& path) const;
  void add_node(const std::string& path, int descriptor);
  ssize_t write_manifest(Node& node, int descriptor, const void* data, size_t size, off_t offset);
  // Random numbers depend on the deed alone, not on what other threads did before.
  void seed_draws(uint64_t what, uint64_t number);
  uint64_t random_below(uint64_t end);
  Node* find(int descriptor);
  Folder* find_folder(int descriptor);
  Folder& folder_of(const std::string& path);
  int sync_node(Node& node);
  int sync_folder(Folder& folder);
  int64_t read_slab(Node& node, int descriptor, std::byte* out, size_t size, uint64_t offset);
  int64_t write_slab(Node& node, const std::byte* data, size_t size, uint64_t offset);
  int64_t store(Node& node, const std::byte* data, size_t size, uint64_t offset);
  size_t some_sectors(size_t size) { return random_below(size / 512 + 1) * 512; }
  void cut(FaultKind kind);
  void lose(bool doomed_only);
  void revert(const Undo& undo);
  void keep_durable(Node& node);
  std::string contents_after_cut(Node& node);
  static std::string contents(const Node& node);
  void put_back();
  static Names applied(const Folder& folder, size_t change_count);

  const std::string root_;
  const Mutant mutant_;
  mutable std::recursive_mutex mutex_;
  const uint64_t seed_;
  uint64_t draw_key_ = 0, draw_count_ = 0;
  std::shared_ptr<Disk> disk_;
  std::map<uint64_t, std::unique_ptr<Node>> nodes_;  // by inode
  std::map<std::string, Folder> folders_;            // by path
  std::map<uint64_t, std::string> folder_paths_;     // by inode
  std::deque<Undo> undos_;
  std::vector<Damage> damages_;
  std::vector<Node*> late_syncs_;  // of the mutant header_first
  std::vector<ArmedFault> faults_;
  std::array<uint64_t, kDeeds> deed_counts_{};
  std::array<int, kFaultKinds> counts_{}, life_counts_{};
  uint64_t queue_count_ = 0;
  uint64_t life_count_ = 0;
  std::atomic<bool> off_ = false;
  bool power_lost_ = false;
  std::map<std::string, Names> names_after_cut_;  // by folder
};

}  // namespace sluice::test
