#include "apps/finetune/checkpoint.h"

#include <algorithm>
#include <iostream>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/common/drive_settings.h"
#include "engine/base/error.h"
#include "gpu/host/kernel_table.h"
#include "io/file.h"

namespace sluice::finetune {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "checkpoint";
constexpr const char* kSpillFolder = "sluice";

fs::path plain(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// A spill directory may be anybody's who cannot replace what we put into it.
void check_spill_dir(const fs::path& folder) {
  struct stat info {};
  if (::lstat(plain(folder).c_str(), &info) != 0) {
    if (errno == ENOENT) return;
    throw_file_error("examine", folder, errno);
  }
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::usage, "--spill_dir: " + folder.string() + " " + why);
  };
  if (S_ISLNK(info.st_mode)) refuse("is a symbolic link. Name the folder that it points to.");
  if (!S_ISDIR(info.st_mode)) refuse("is not a folder.");
  if (info.st_uid != ::geteuid() && info.st_uid != 0)
    refuse("belongs to user " + std::to_string(info.st_uid) +
           ", who could replace the model's state. Name a folder of your own.");
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (info.st_mode & S_ISVTX) == 0)
    refuse(
        "can be written by others, who could replace the model's state. If nobody else needs that: "
        "chmod go-w " +
        folder.string());
}

std::string listed(const std::vector<SpillFolder>& drives) {
  std::string text;
  for (const SpillFolder& drive : drives) text += (text.empty() ? "" : ", ") + drive.folder.string();
  return text;
}

}  // namespace

fs::path checkpoint_folder(const fs::path& output) {
  return plain(output) / kFolder;
}

std::vector<SpillFolder> slab_folders(const fs::path& output, const StateOptions& options) {
  if (!options.spills()) return {{checkpoint_folder(output)}};
  std::vector<SpillFolder> drives;
  std::vector<double> rates;  // measured ones
  for (const std::string& folder : options.spill_dirs) {
    const auto settings = find_drive_settings(nearest_existing(plain(folder)));
    const double rate = settings ? settings->mixed_bytes_per_second : 0;
    drives.push_back({plain(folder) / kSpillFolder, rate});
    if (rate > 0) rates.push_back(rate);
  }
  for (SpillFolder& drive : drives)
    if (!(drive.weight > 0)) drive.weight = rates.empty() ? 1 : *std::ranges::min_element(rates);
  return drives;
}

Checkpoint::Checkpoint(fs::path output, const StateOptions& options, IoObservers observers)
    : output_(std::move(output)),
      folder_(checkpoint_folder(output_)),
      options_(options),
      observers_(std::move(observers)) {
  identity_.kernel_table = gpu::host::kernel_table_id();
}

Checkpoint::~Checkpoint() {
  file_.reset();
  try {
    clean_up();
  } catch (const std::exception&) {
    // A destructor has nobody to tell; check_output_folder knows what stays.
  }
}

// Where nothing was saved, nothing stays.
void Checkpoint::clean_up() {
  if (!taken_ || newest_number(folder_) != 0) return;
  std::error_code ignored;  // whoever put something else there keeps it
  fs::remove(folder_ / "lock", ignored);
  fs::remove(folder_, ignored);
  if (made_output_) fs::remove(output_, ignored);
}

void Checkpoint::refuse_second_run() {
  std::error_code error;
  if (fs::is_regular_file(fs::symlink_status(folder_ / "lock", error))) locks_.lock(folder_);
}

const Manifest& Checkpoint::find_saved() {
  if (saved_) return *saved_;
  std::optional<Recovered> found = recover(folder_);
  if (!found) {
    throw Error(ErrorKind::usage, "--resume: there is no saved state in " + output_.string() +
                                      ", so there is nothing to go on from. Is --output right? To begin a "
                                      "run, leave --resume out.");
  }
  for (const std::string& warning : found->warnings)
    std::cerr << "warning: " << warning << " Going on from the one before.\n";
  saved_ = std::move(found->manifest);
  return *saved_;
}

std::string Checkpoint::check_kernels() const {
  const std::string& before = saved_->identity.kernel_table;
  if (before == identity_.kernel_table) return "";
  const std::string what = "the run in " + output_.string() + " was begun with the kernels " + before +
                           ", this processor has " + identity_.kernel_table + ", which give other bits";
  if (options_.allow_different_kernels) return what + ".";
  throw Error(ErrorKind::usage,
              what + ". Go on with it on a processor like the first one, or add --allow_different_kernels.");
}

bool Checkpoint::drives_changed() const {
  const auto sorted = [](std::vector<fs::path> folders) {
    for (fs::path& folder : folders) folder = plain(folder);
    std::ranges::sort(folders);
    return folders;
  };
  std::vector<fs::path> before, now;
  for (const SpillFolder& drive : saved_->drives) before.push_back(resolved_folder(folder_, drive.folder));
  for (const SpillFolder& drive : slab_folders(output_, options_)) now.push_back(drive.folder);
  return sorted(before) != sorted(now);
}

void Checkpoint::take_output() {
  std::error_code error;
  made_output_ = made_output_ || !fs::exists(fs::symlink_status(output_, error));
  locks_.lock(folder_);
  taken_ = true;
  remove_leftovers(folder_, Leftovers::all);
}

// Where nothing is asked for, what nvme_bench found faster on one of the drives.
IoChoice Checkpoint::io_choice() const {
  IoChoice choice{.engine = options_.io};
  if (choice.engine != IoChoice::Engine::automatic) return choice;
  for (const std::string& folder : options_.spill_dirs) {
    const auto settings = find_drive_settings(nearest_existing(plain(folder)));
    if (settings && settings->queue == "threads") choice.engine = IoChoice::Engine::threads;
  }
  return choice;
}

// What cannot be had (io_uring, locked memory) is said once, not for each queue.
std::unique_ptr<IoQueue> Checkpoint::make_queue(const IoChoice& choice) {
  std::string note;
  std::unique_ptr<IoQueue> queue = make_io_queue(choice, &note);
  if (!note.empty() && !warned_) std::cerr << "warning: " << note << "\n";
  warned_ = warned_ || !note.empty();
  std::vector<std::unique_ptr<IoObserver>> observers;
  if (observers_) observers = observers_(*queue);
  observers.push_back(count_writes(written_));
  return std::make_unique<ObservedQueue>(std::move(queue), std::move(observers));
}

IoQueueFactory Checkpoint::queues() {
  IoChoice choice = io_choice();
  choice.queue.descriptors = file_->descriptors();
  return [this, choice](std::vector<std::span<std::byte>> buffers) {
    IoChoice of_queue = choice;
    of_queue.queue.buffers = std::move(buffers);
    return make_queue(of_queue);
  };
}

void Checkpoint::make_spill_folders() const {
  for (const std::string& folder : options_.spill_dirs) {
    check_spill_dir(folder);
    std::error_code error;
    fs::create_directories(plain(folder).parent_path(), error);
    if (!error && ::mkdir(plain(folder).c_str(), 0700) != 0 && errno != EEXIST)
      error = std::error_code(errno, std::generic_category());
    if (error) throw_file_error("create the folder", folder, error.value());
  }
}

std::unique_ptr<StateFile> Checkpoint::create(const LongTransfer& transfer, bool prewrite) {
  make_spill_folders();
  return StateFile::create({.drives = slab_folders(output_, options_),
                            .manifest_folder = folder_,
                            .identity = identity_,
                            .prewrite = prewrite},
                           *layout_, locks_, transfer);
}

bool Checkpoint::move_from_other_drives(const ModelConfig& config, const TrainerOptions& options,
                                        IoQueue& queue, WatchedTransfers& transfers) {
  TrainerOptions resting = options;
  resting.disk = false;  // no gradients wait in the old store
  const std::string where = listed(slab_folders(output_, options_));
  const std::unique_ptr<StateFile> old =
      StateFile::open(folder_, identity_, Trainer::state_layout(config, resting), locks_, {.queue = queue});
  if (!old) return false;
  file_ = create(transfers.transfer("Making the state files in " + where), options.disk);
  if (!file_ || !file_->copy_from(*old, transfers.transfer("Copying the saved state to " + where)))
    return false;
  file_->commit(old->generation().facts, std::vector<uint8_t>(static_cast<size_t>(layout_->block_count())));
  return true;
}

bool Checkpoint::open(const ModelConfig& config, TrainerOptions& options, const InterruptWatch& watch) {
  SLUICE_CHECK(taken_);
  identity_.gradient_shards = options.gradient_shards;
  layout_ = Trainer::state_layout(config, options);
  // Room is taken at once where there will be states to save: it may be gone later.
  if (!saved_ && !options.disk && options_.save_interval() == 0) return true;
  const std::unique_ptr<IoQueue> queue = make_queue(io_choice());
  WatchedTransfers transfers(*queue, watch);
  const std::string making = "Making the state files in " + listed(slab_folders(output_, options_));
  bool opened = true;
  if (!saved_) {
    file_ = create(transfers.transfer(making), options.disk);
  } else if (drives_changed()) {
    opened = move_from_other_drives(config, options, *queue, transfers);
  } else {
    for (const std::string& folder : options_.spill_dirs) check_spill_dir(folder);
    file_ = StateFile::open(folder_, identity_, *layout_, locks_, transfers.transfer(making));
  }
  if (!opened || !file_) {
    file_.reset();
    return false;
  }
  if (!file_->buffered_reason().empty()) std::cerr << "warning: " << file_->buffered_reason() << "\n";
  options.state_file = file_.get();
  options.make_queue = queues();
  return true;
}

PendingSave Checkpoint::save(Engine& engine, nlohmann::json record) {
  if (!file_) {
    const std::unique_ptr<IoQueue> queue = make_queue(io_choice());
    file_ = create({.queue = *queue}, false);
    engine.attach(*file_, queues());
  }
  return engine.save({.applied_step = 0, .run = std::move(record)});
}

void Checkpoint::count_manifest() {
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    const uintmax_t size_bytes =
        entry->path().filename().string().starts_with("generation-") ? entry->file_size(gone) : 0;
    if (!gone) written_.add(size_bytes);
  }
}

void Checkpoint::discard() {
  if (file_) remove_store(folder_);
}

nlohmann::json Checkpoint::saved_record() const {
  if (!taken_) return nullptr;
  const std::optional<Recovered> found = recover(folder_);
  return found ? found->manifest.facts.run : nlohmann::json();
}

}  // namespace sluice::finetune
