#include "tests/faults/machine.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/math.h"
#include "tests/faults/system_calls.h"
#include "tests/support/tiny_model.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using Lock = std::lock_guard<std::recursive_mutex>;

constexpr size_t kSectorBytes = 512;

std::string folder_name(const std::string& path) {
  return fs::path(path).parent_path().string();
}

std::string file_name(const std::string& path) {
  return fs::path(path).filename().string();
}

uint64_t inode_of(int descriptor) {
  struct stat info {};
  return ::fstat(descriptor, &info) == 0 ? info.st_ino : 0;
}

int64_t or_error(int64_t result) {
  return result < 0 ? -errno : result;
}

}  // namespace

std::string_view name(FaultKind kind) {
  constexpr std::array<std::string_view, kFaultKinds> kNames = {
      "read_error",   "write_error",    "torn_write", "busy",       "short_transfer",
      "late",         "read_flip",      "bad_sector", "dead_drive", "full_drive",
      "sync_failure", "manifest_error", "no_room",    "write_flip", "lost_write",
      "torn_lie",     "stored_flip",    "power_cut",  "kill"};
  return kNames.at(static_cast<size_t>(kind));
}

std::string_view name(Mutant mutant) {
  constexpr std::array<std::string_view, kMutants> kNames = {"none",
                                                             "completion_unchecked",
                                                             "short_unchecked",
                                                             "slab_sync_left_out",
                                                             "manifest_sync_left_out",
                                                             "folder_sync_left_out",
                                                             "header_first",
                                                             "checksum_unverified",
                                                             "sync_unchecked"};
  return kNames.at(static_cast<size_t>(mutant));
}

bool heals(FaultKind kind) {
  return kind <= FaultKind::read_flip;
}

bool damages(FaultKind kind) {
  return FaultKind::write_flip <= kind && kind <= FaultKind::stored_flip;
}

// ---- What transfers go through ----------------------------------------------------------------------------

class Machine::Disk final : public MemoryDisk {
 public:
  explicit Disk(Machine& machine) : machine_(machine) {}
  int64_t read(int descriptor, std::byte* out, size_t size, uint64_t offset) override {
    const Lock lock(machine_.mutex_);
    Node* const node = machine_.find(descriptor);
    SLUICE_CHECK(node != nullptr, "a transfer to a file that the machine does not know");
    return machine_.read_slab(*node, descriptor, out, size, offset);
  }
  int64_t write(int descriptor, const std::byte* data, size_t size, uint64_t offset) override {
    const Lock lock(machine_.mutex_);
    Node* const node = machine_.find(descriptor);
    SLUICE_CHECK(node != nullptr, "a transfer to a file that the machine does not know");
    return machine_.write_slab(*node, data, size, offset);
  }

 private:
  Machine& machine_;
};

class Machine::Queue final : public IoQueue {
 public:
  Queue(Machine& machine, std::unique_ptr<MemoryQueue> inner) : machine_(machine), inner_(std::move(inner)) {}
  ~Queue() override { machine_.count(FaultKind::late, inner_->fault_count(IoFault::Kind::delay)); }
  std::string_view name() const override { return inner_->name(); }
  int capacity() const override { return inner_->capacity(); }
  int in_flight() const override { return inner_->in_flight(); }
  void start(std::span<const IoRequest> requests) override { inner_->start(requests); }
  std::span<const IoCompletion> wait(int least) override {
    const std::span<const IoCompletion> seen = inner_->wait(least);
    if (machine_.mutant_ != Mutant::completion_unchecked) return seen;
    seen_.assign(seen.begin(), seen.end());
    for (IoCompletion& completion : seen_) completion.error_number = 0;
    return seen_;
  }

 private:
  Machine& machine_;
  const std::unique_ptr<MemoryQueue> inner_;
  std::vector<IoCompletion> seen_;
};

IoQueueFactory Machine::queues(int capacity) {
  return [this, capacity](const auto&) {
    const Lock lock(mutex_);
    MemoryQueue::Options options{.capacity = capacity, .seed = counter_hash(seed_, queue_count_++)};
    options.faults = {{.kind = IoFault::Kind::delay, .delay_turns = 8, .rate = 0.2}};
    return std::make_unique<Queue>(*this, std::make_unique<MemoryQueue>(disk_, options));
  };
}

int64_t Machine::read_slab(Node& node, int descriptor, std::byte* out, size_t size, uint64_t offset) {
  if (off_) return -EIO;
  const Deed deed = node.kind == NodeKind::state ? Deed::state_read : Deed::scratch_read;
  const Fault* const fault = strike(deed, &node, offset, offset + size);
  if (fault != nullptr) {
    switch (fault->kind) {
      case FaultKind::power_cut:
      case FaultKind::kill:
        cut(fault->kind);
        return -EIO;
      case FaultKind::short_transfer:
        if (size > kIoAlignment) size = kIoAlignment * (1 + random_below(size / kIoAlignment));
        break;
      case FaultKind::read_flip:
        break;
      default:
        return -fault->error_number;
    }
  }
  const int64_t count = disk_->MemoryDisk::read(descriptor, out, size, offset);
  if (fault != nullptr && fault->kind == FaultKind::read_flip && count > 0) {
    const uint64_t bit = random_below(static_cast<uint64_t>(count) * 8);
    out[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
  return count;
}

int64_t Machine::write_slab(Node& node, const std::byte* data, size_t size, uint64_t offset) {
  if (off_) return -EIO;
  const Deed deed = node.kind == NodeKind::state ? Deed::state_write : Deed::scratch_write;
  const Fault* const fault = strike(deed, &node, offset, offset + size);
  if (fault == nullptr) return store(node, data, size, offset);
  const size_t some = some_sectors(size);
  switch (fault->kind) {
    case FaultKind::power_cut:
    case FaultKind::kill:
      store(node, data, some, offset);
      cut(fault->kind);
      return -EIO;
    case FaultKind::short_transfer: {
      const size_t part = size > kIoAlignment ? kIoAlignment * (1 + random_below(size / kIoAlignment)) : size;
      store(node, data, part, offset);
      return static_cast<int64_t>(mutant_ == Mutant::short_unchecked ? size : part);
    }
    case FaultKind::torn_write:
      store(node, data, some, offset);
      return -fault->error_number;
    case FaultKind::write_flip: {
      std::vector<std::byte> wrong(data, data + size);
      const uint64_t bit = random_below(size * 8);
      wrong[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
      damages_.push_back({&node, offset + bit / 8, offset + bit / 8 + 1});
      return store(node, wrong.data(), size, offset);
    }
    case FaultKind::lost_write:
      damages_.push_back({&node, offset, offset + size});
      return static_cast<int64_t>(size);
    case FaultKind::torn_lie:
      damages_.push_back({&node, offset + some, offset + size});
      store(node, data, some, offset);
      return static_cast<int64_t>(size);
    default:
      return -fault->error_number;
  }
}

int64_t Machine::store(Node& node, const std::byte* data, size_t size, uint64_t offset) {
  if (size == 0) return 0;
  if (node.kind == NodeKind::state) {  // nobody misses scratch after a cut
    Undo undo{.node = &node, .offset = offset, .before = std::vector<std::byte>(size)};
    disk_->MemoryDisk::read(node.descriptor, undo.before.data(), size, offset);
    undos_.push_back(std::move(undo));
    size_t& longest = node.written[offset];
    longest = std::max(longest, size);
  }
  return disk_->MemoryDisk::write(node.descriptor, data, size, offset);
}

// ---- Faults, and lives ------------------------------------------------------------------------------------

Machine::Machine(fs::path root, uint64_t seed, Mutant mutant)
    : root_(root.string() + "/"), mutant_(mutant), seed_(seed), disk_(std::make_shared<Disk>(*this)) {
  fs::create_directory(root_ + ".inodes");
  use_machine(this);
}

Machine::~Machine() {
  use_machine(nullptr);
  for (const auto& [inode, node] : nodes_) ::close(node->descriptor);
}

void Machine::seed_draws(uint64_t what, uint64_t number) {
  draw_key_ = counter_hash(counter_hash(seed_, what), number);
  draw_count_ = 0;
}

uint64_t Machine::random_below(uint64_t end) {
  return counter_hash(draw_key_, draw_count_++) % end;
}

bool Machine::hits(const ArmedFault& fault, Deed deed, const Node* node, uint64_t begin, uint64_t end) {
  if (fault.kind == FaultKind::dead_drive)
    return node != nullptr && folder_name(node->path) == folder_name(fault.node->path);
  if (deed != fault.deed || node != fault.node) return false;
  return node == nullptr || (begin == end) || (begin < fault.end && fault.begin < end);
}

const Fault* Machine::strike(Deed deed, const Node* node, uint64_t begin, uint64_t end) {
  const uint64_t number = deed_counts_[static_cast<size_t>(deed)]++;
  seed_draws(static_cast<uint64_t>(deed) + 100 * life_count_, number);
  for (ArmedFault& fault : faults_) {
    if (fault.left < 0 && fault.deed == deed && fault.nth == number) {
      fault.node = node;
      fault.begin = begin;
      fault.end = end;
      fault.left = fault.times;
    }
    if (fault.left <= 0 || !hits(fault, deed, node, begin, end)) continue;
    --fault.left;
    count(fault.kind, 1);
    return &fault;
  }
  return nullptr;
}

void Machine::count(FaultKind kind, int times) {
  const Lock lock(mutex_);
  counts_[static_cast<size_t>(kind)] += times;
  life_counts_[static_cast<size_t>(kind)] += times;
}

void Machine::begin_life(std::vector<Fault> faults) {
  const Lock lock(mutex_);
  if (power_lost_) put_back();
  power_lost_ = false;
  off_ = false;
  ++life_count_;
  late_syncs_.clear();
  faults_.clear();
  for (const Fault& fault : faults) faults_.push_back({fault});
  deed_counts_ = {};
  life_counts_ = {};
}

void Machine::end_life() {
  const Lock lock(mutex_);
  faults_.clear();
  if (power_lost_) return;
  seed_draws(1000, life_count_);
  lose(true);
}

// ---- What is durable --------------------------------------------------------------------------------------

Machine::Names Machine::applied(const Folder& folder, size_t change_count) {
  Names names = folder.durable;
  for (size_t i = 0; i < change_count; ++i) {
    const NameChange& change = folder.changes[i];
    if (!change.gone.empty()) names.erase(change.gone);
    if (!change.made.empty()) names[change.made] = change.node;
  }
  return names;
}

void Machine::cut(FaultKind kind) {
  off_ = true;
  power_lost_ = kind == FaultKind::power_cut;
  if (!power_lost_) return;  // nothing more is done while it is off, so all stays as it is
  lose(false);
  names_after_cut_.clear();
  for (auto& [path, folder] : folders_)
    names_after_cut_[path] = applied(folder, random_below(folder.changes.size() + 1));
  for (const auto& [inode, node] : nodes_)
    if (node->kind == NodeKind::manifest && node->dirty) node->durable = contents_after_cut(*node);
}

// Newest first, so that of each sector one of its versions since the last sync remains.
void Machine::lose(bool doomed_only) {
  const uint64_t style = random_below(4);  // all, none, or each by itself
  for (auto undo = undos_.rbegin(); undo != undos_.rend(); ++undo) {
    if (doomed_only && !undo->doomed) continue;
    const uint64_t how = style == 0 ? 0 : style == 1 ? 1 : random_below(4);
    if (how == 0) revert(*undo);
    if (how < 2) continue;
    for (size_t at = 0; at < undo->before.size(); at += kSectorBytes) {
      if (random_below(2) == 0) continue;
      const size_t size = std::min(kSectorBytes, undo->before.size() - at);
      disk_->MemoryDisk::write(undo->node->descriptor, undo->before.data() + at, size, undo->offset + at);
    }
  }
  std::erase_if(undos_, [&](const Undo& undo) { return !doomed_only || undo.doomed; });
}

// What has been written since over bytes that a failed sync has doomed, and is synced now, will stay.
void Machine::keep_durable(Node& node) {
  for (const Undo& written : undos_) {
    if (written.node != &node || written.doomed) continue;
    for (Undo& doomed : undos_) {
      if (doomed.node != &node || !doomed.doomed) continue;
      const uint64_t begin = std::max(written.offset, doomed.offset);
      const uint64_t end =
          std::min(written.offset + written.before.size(), doomed.offset + doomed.before.size());
      if (begin < end)
        disk_->MemoryDisk::read(node.descriptor, doomed.before.data() + (begin - doomed.offset), end - begin,
                                begin);
    }
  }
}

void Machine::revert(const Undo& undo) {
  disk_->MemoryDisk::write(undo.node->descriptor, undo.before.data(), undo.before.size(), undo.offset);
}

std::string Machine::contents(const Node& node) {
  struct stat info {};
  SLUICE_CHECK(::fstat(node.descriptor, &info) == 0);
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  SLUICE_CHECK(kernel::pread(node.descriptor, bytes.data(), bytes.size(), 0) == info.st_size);
  return bytes;
}

// Its length may be durable before its bytes are, which are zero then.
std::string Machine::contents_after_cut(Node& node) {
  std::string after = node.durable;
  const std::string now = contents(node);
  if (random_below(3) == 0) return after;
  after.resize(now.size(), '\0');
  for (size_t at = 0; at < now.size(); at += kSectorBytes)
    if (random_below(2) == 0) after.replace(at, kSectorBytes, now.substr(at, kSectorBytes));
  return after;
}

void Machine::put_back() {
  for (auto& [path, folder] : folders_) {
    for (const auto& entry : fs::directory_iterator(path))
      if (is_tracked(entry.path())) kernel::unlink(entry.path().c_str());
    folder.changes.clear();
    folder.durable = names_after_cut_[path];
    for (const auto& [name, node] : folder.durable) {
      node->path = path + "/" + name;
      SLUICE_CHECK(::link(node->hidden.c_str(), node->path.c_str()) == 0);
      if (node->kind != NodeKind::manifest) continue;
      SLUICE_CHECK(::ftruncate(node->descriptor, 0) == 0);
      const auto size = static_cast<ssize_t>(node->durable.size());
      SLUICE_CHECK(kernel::pwrite(node->descriptor, node->durable.data(), node->durable.size(), 0) == size);
      node->dirty = node->doomed = false;
    }
  }
}

void Machine::flip_stored_bit() {
  const Lock lock(mutex_);
  seed_draws(2000, life_count_);
  std::vector<Node*> slabs, manifests;
  for (auto& [path, folder] : folders_) {
    for (const auto& [name, node] : applied(folder, folder.changes.size())) {
      if (node->kind == NodeKind::manifest) manifests.push_back(node);
      if (node->kind == NodeKind::state && !node->written.empty()) slabs.push_back(node);
    }
  }
  if (!manifests.empty() && random_below(4) == 0) {
    Node& node = *manifests[random_below(manifests.size())];
    std::string bytes = contents(node);
    if (bytes.empty()) return;
    const size_t at = random_below(bytes.size());
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random_below(8)));
    SLUICE_CHECK(kernel::pwrite(node.descriptor, bytes.data(), bytes.size(), 0) > 0);
    if (!node.dirty) node.durable = bytes;
    node.damaged = true;
  } else if (!slabs.empty()) {
    Node& node = *slabs[random_below(slabs.size())];
    const auto range =
        std::next(node.written.begin(), static_cast<ptrdiff_t>(random_below(node.written.size())));
    const uint64_t at = range->first + random_below(range->second);
    std::byte byte{};
    disk_->MemoryDisk::read(node.descriptor, &byte, 1, at);
    byte ^= static_cast<std::byte>(1 << random_below(8));
    disk_->MemoryDisk::write(node.descriptor, &byte, 1, at);
    damages_.push_back({&node, at, at + 1});
  } else {
    return;
  }
  count(FaultKind::stored_flip, 1);
}

bool Machine::was_damaged(const std::string& message) const {
  const Lock lock(mutex_);
  for (const auto& [inode, node] : nodes_)
    if (node->damaged && message.find(node->path) != std::string::npos) return true;
  return std::ranges::any_of(damages_, [&](const Damage& damage) {
    const std::string place = damage.node->path + " at offset ";
    const size_t found = message.find(place);
    const size_t size_end = message.find(" bytes)");
    if (found == std::string::npos || size_end == std::string::npos) return false;
    const uint64_t begin = std::strtoull(message.c_str() + found + place.size(), nullptr, 10);
    const uint64_t size = std::strtoull(message.c_str() + message.rfind('(', size_end) + 1, nullptr, 10);
    // The zeros up to the page's end count as well.
    return damage.begin < begin + round_up(size, uint64_t{kIoAlignment}) && begin < damage.end;
  });
}

bool Machine::has_damaged_manifest() const {
  const Lock lock(mutex_);
  return std::ranges::any_of(nodes_, [](const auto& node) { return node.second->damaged; });
}

// ---- System calls -----------------------------------------------------------------------------------------

bool Machine::is_tracked(const std::string& path) const {
  return path.starts_with(root_) &&
         (path.ends_with(".slab") || path.ends_with(".manifest") || path.ends_with(".partial"));
}

Machine::Node* Machine::find(int descriptor) {
  const auto found = nodes_.find(inode_of(descriptor));
  return found == nodes_.end() ? nullptr : found->second.get();
}

Machine::Folder* Machine::find_folder(int descriptor) {
  const auto found = folder_paths_.find(inode_of(descriptor));
  return found == folder_paths_.end() ? nullptr : &folders_[found->second];
}

Machine::Folder& Machine::folder_of(const std::string& path) {
  const std::string folder = folder_name(path);
  if (!folders_.contains(folder)) {
    struct stat info {};
    SLUICE_CHECK(::stat(folder.c_str(), &info) == 0);
    folder_paths_[info.st_ino] = folder;
  }
  return folders_[folder];
}

// What a call that changes names meets: 0, or -errno.
int Machine::name_deed(Deed deed) {
  if (off_) return -EIO;
  const Fault* const fault = strike(deed, nullptr);
  if (fault == nullptr) return 0;
  if (fault->kind == FaultKind::power_cut || fault->kind == FaultKind::kill) cut(fault->kind);
  return -fault->error_number;
}

int Machine::open(const char* path, int flags, mode_t mode) {
  const Lock lock(mutex_);
  if (!is_tracked(path)) return static_cast<int>(or_error(kernel::open(path, flags, mode)));
  if (off_) return -EIO;
  if ((flags & O_CREAT) != 0) {
    if (const int error = name_deed(Deed::create); error != 0) return error;
  }
  const int descriptor = static_cast<int>(or_error(kernel::open(path, flags, mode)));
  if (descriptor >= 0 && find(descriptor) == nullptr) add_node(path, descriptor);
  return descriptor;
}

void Machine::add_node(const std::string& path, int descriptor) {
  auto node = std::make_unique<Node>();
  node->kind = !path.ends_with(".slab")                ? NodeKind::manifest
               : file_name(path).starts_with("state-") ? NodeKind::state
                                                       : NodeKind::scratch;
  node->path = path;
  node->hidden = root_ + ".inodes/" + std::to_string(nodes_.size());
  SLUICE_CHECK(::link(path.c_str(), node->hidden.c_str()) == 0);
  node->descriptor = kernel::open(node->hidden.c_str(), O_RDWR | O_CLOEXEC);
  SLUICE_CHECK(node->descriptor >= 0);
  folder_of(path).changes.push_back({.gone = "", .made = file_name(path), .node = node.get()});
  nodes_[inode_of(descriptor)] = std::move(node);
}

ssize_t Machine::pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  const Lock lock(mutex_);
  Node* const node = find(descriptor);
  // Slabs' real files are written to by nobody but the look whether O_DIRECT works.
  if (node == nullptr || node->kind != NodeKind::manifest)
    return or_error(kernel::pwrite(descriptor, data, size, offset));
  return write_manifest(*node, descriptor, data, size, offset);
}

ssize_t Machine::write_manifest(Node& node, int descriptor, const void* data, size_t size, off_t offset) {
  if (off_) return -EIO;
  node.dirty = true;
  const Fault* const fault = strike(Deed::manifest_write, nullptr);
  if (fault == nullptr) return or_error(kernel::pwrite(descriptor, data, size, offset));
  const size_t part = random_below(size + 1);
  const ssize_t written = or_error(kernel::pwrite(descriptor, data, part, offset));
  if (fault->kind == FaultKind::short_transfer && part > 0) return written;
  if (fault->kind == FaultKind::power_cut || fault->kind == FaultKind::kill) cut(fault->kind);
  return fault->kind == FaultKind::short_transfer ? -EINTR : -fault->error_number;
}

int Machine::sync(int descriptor) {
  const Lock lock(mutex_);
  if (Folder* const folder = find_folder(descriptor)) return sync_folder(*folder);
  Node* const node = find(descriptor);
  if (node == nullptr) return 0;
  if (node->kind != NodeKind::manifest && mutant_ == Mutant::slab_sync_left_out) return 0;
  if (node->kind == NodeKind::manifest && mutant_ == Mutant::manifest_sync_left_out) return 0;
  if (node->kind == NodeKind::state && mutant_ == Mutant::header_first) {
    late_syncs_.push_back(node);
    return 0;
  }
  return sync_node(*node);
}

int Machine::sync_node(Node& node) {
  if (off_) return -EIO;
  const bool is_manifest = node.kind == NodeKind::manifest;
  if (const Fault* const fault = strike(is_manifest ? Deed::manifest_sync : Deed::slab_sync, &node)) {
    if (fault->kind == FaultKind::power_cut || fault->kind == FaultKind::kill) {
      cut(fault->kind);
      return -EIO;
    }
    node.doomed = is_manifest;
    for (Undo& undo : undos_) undo.doomed = undo.doomed || undo.node == &node;
    return mutant_ == Mutant::sync_unchecked ? 0 : -fault->error_number;
  }
  keep_durable(node);
  std::erase_if(undos_, [&](const Undo& undo) { return undo.node == &node && !undo.doomed; });
  if (is_manifest && !node.doomed) {
    node.durable = contents(node);
    node.dirty = false;
  }
  return 0;
}

int Machine::sync_folder(Folder& folder) {
  if (mutant_ == Mutant::folder_sync_left_out) return 0;
  if (const int error = name_deed(Deed::folder_sync); error != 0) return error;
  folder.durable = applied(folder, folder.changes.size());
  folder.changes.clear();
  for (Node* const node : std::exchange(late_syncs_, {}))
    if (const int error = sync_node(*node); error != 0) return error;
  return 0;
}

int Machine::rename(const char* from, const char* to) {
  const Lock lock(mutex_);
  if (!is_tracked(from)) return static_cast<int>(or_error(kernel::rename(from, to)));
  if (const int error = name_deed(Deed::rename); error != 0) return error;
  const int result = static_cast<int>(or_error(kernel::rename(from, to)));
  if (result != 0) return result;
  struct stat info {};
  SLUICE_CHECK(::stat(to, &info) == 0 && folder_name(from) == folder_name(to));
  Node& node = *nodes_.at(info.st_ino);
  node.path = to;
  folder_of(to).changes.push_back({.gone = file_name(from), .made = file_name(to), .node = &node});
  return 0;
}

int Machine::unlink(const char* path) {
  const Lock lock(mutex_);
  if (!is_tracked(path)) return static_cast<int>(or_error(kernel::unlink(path)));
  struct stat info {};
  if (::lstat(path, &info) != 0) return -errno;
  if (const int error = name_deed(Deed::unlink); error != 0) return error;
  const int result = static_cast<int>(or_error(kernel::unlink(path)));
  if (result == 0) folder_of(path).changes.push_back({.gone = file_name(path), .made = ""});
  return result;
}

int Machine::allocate(int descriptor) {
  const Lock lock(mutex_);
  Node* const node = find(descriptor);
  if (off_) return -EIO;
  const Fault* const fault = node == nullptr ? nullptr : strike(Deed::allocate, node);
  if (fault == nullptr) return -EOPNOTSUPP;  // a file with holes does as well
  if (fault->kind == FaultKind::power_cut || fault->kind == FaultKind::kill) cut(fault->kind);
  return -fault->error_number;
}

}  // namespace sluice::test
