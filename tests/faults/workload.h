#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/faults/machine.h"
#include "tests/support/tiny_model.h"

namespace sluice::test {

// Numbers out of a seed.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}
  uint64_t below(uint64_t end) { return counter_hash(seed_, count_++) % end; }
  bool one_in(uint64_t count) { return below(count) == 0; }
  // Below 2^bits, small numbers as likely as large ones.
  uint64_t of_any_size(uint64_t bits) { return below(uint64_t{1} << below(bits + 1)); }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

// What must never happen: other bits, or a generation lost, and nobody says so.
class Silent : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Work in steps whose state is saved on a machine. It is done again and again, each time from what the last
// time left, until a life comes to its end.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual std::string describe() const = 0;
  // From what is saved, or anew, to the last step; compares with what undisturbed work makes. Throws Error
  // for what ended it, Silent for what differs.
  virtual void live() = 0;
  // Whether, in this life, a state file is there to work with, and not being made.
  bool at_work() const { return at_work_; }

 protected:
  // A new life; whether there is something to go on from.
  bool begin(const std::filesystem::path& manifest_folder);
  // The state file is there, with this step; `complaints` where a newer one was damaged.
  void begin_work(int64_t applied_step, bool complaints);
  void interrupt_work() { at_work_ = false; }
  void promise(int64_t applied_step) { promised_ = applied_step; }

 private:
  bool at_work_ = false;
  int64_t promised_ = 0;  // the step whose commit was the last to return
};

// A StateFile alone: contents out of a counter, written block by block, read and compared.
std::unique_ptr<Workload> make_store_workload(const std::filesystem::path& root, Machine& machine,
                                              uint64_t seed);
// finetune's Trainer on a tiny decoder, whose blocks, gradients or layer inputs are on disk.
std::unique_ptr<Workload> make_trainer_workload(const std::filesystem::path& root, Machine& machine,
                                                uint64_t seed);

}  // namespace sluice::test
