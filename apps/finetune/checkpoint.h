#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/interrupt.h"
#include "apps/finetune/state_options.h"
#include "apps/finetune/trainer.h"
#include "apps/finetune/transfer_progress.h"
#include "apps/finetune/write_count.h"
#include "engine/store/folder_lock.h"
#include "engine/store/manifest_folder.h"
#include "engine/store/state_file.h"
#include "io/observed_queue.h"

namespace sluice::finetune {

// OUTPUT/checkpoint: the manifest of the saved generations.
std::filesystem::path checkpoint_folder(const std::filesystem::path& output);
// Where the slabs are: a folder of our own in each spill directory, or beside the manifest. Weighted by what
// nvme_bench measured there; one that it did not measure is taken to be as fast as the slowest other.
std::vector<SpillFolder> slab_folders(const std::filesystem::path& output, const StateOptions& options);

// The saved state of a run, and with --spill_dir its state while it runs. Locks OUTPUT/checkpoint and the
// spill folders for as long as it lives, so that a second run is refused by name of this one. Without a
// spill folder and without --save_steps no file is made before the first save. When nothing was saved, the
// destructor leaves nothing behind. Used by one thread, and outlives the trainer that it is given to.
class Checkpoint {
 public:
  // Touches nothing. `observers`, of every queue, may be null; what they refer to outlives this.
  Checkpoint(std::filesystem::path output, const StateOptions& options, IoObservers observers = {});
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // Throws Error(usage) with its pid where another process works in OUTPUT.
  void refuse_second_run();
  // The newest whole generation, for --resume. Says on standard error what was damaged. Throws Error(usage)
  // where there is none.
  const Manifest& find_saved();
  // Of find_saved(), against this program's kernels: throws Error(usage), or with --allow_different_kernels
  // returns a warning; else an empty text.
  std::string check_kernels() const;
  // Whether the saved slabs lie where the options say; else they are copied by open().
  bool drives_changed() const;

  // Makes OUTPUT where it is missing, and takes it; removes what a run left that died.
  void take_output();
  // Opens, makes or moves the state file, where one is needed now, and puts it into the options. False where
  // a signal ended it.
  [[nodiscard]] bool open(const ModelConfig& config, TrainerOptions& options, const InterruptWatch& watch);

  // The state after the trainer's last step becomes a generation, in the background. Throws where there is no
  // room to make the files of the first one.
  PendingSave save(Engine& engine, nlohmann::json record);
  // To call when a save has ended well: its manifest was written, too.
  void count_manifest();
  // Handed to the drives since this object was made: states, gradients, activations, manifests; on the way to
  // other drives, too.
  uint64_t written_bytes() const { return written_.bytes(); }
  // The run has ended well: nothing of the saved state is needed any more.
  void discard();

  // The record of the newest generation on disk, whatever happened; null where there is none.
  nlohmann::json saved_record() const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::unique_ptr<StateFile> create(const LongTransfer& transfer, bool prewrite);
  bool move_from_other_drives(const ModelConfig& config, const TrainerOptions& options, IoQueue& queue,
                              WatchedTransfers& transfers);
  void make_spill_folders() const;
  IoChoice io_choice() const;
  std::unique_ptr<IoQueue> make_queue(const IoChoice& choice);
  IoQueueFactory queues();
  void clean_up();

  const std::filesystem::path output_;
  const std::filesystem::path folder_;
  const StateOptions options_;
  const IoObservers observers_;
  bool made_output_ = false;
  bool taken_ = false;
  StateIdentity identity_;
  std::optional<Manifest> saved_;
  std::optional<StateLayout> layout_;
  WriteCount written_;  // outlives the queues
  FolderLocks locks_;
  std::unique_ptr<StateFile> file_;
  bool warned_ = false;  // of what cannot be had for queues
};

}  // namespace sluice::finetune
