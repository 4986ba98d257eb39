#include "tests/faults/campaign.h"

#include <csignal>
#include <cstdio>
#include <iomanip>
#include <ostream>
#include <unistd.h>

#include "engine/base/error.h"
#include "tests/faults/workload.h"
#include "tests/support/temporary_folder.h"

namespace sluice::test {
namespace {

// For the handler of the signal that a broken SLUICE_CHECK raises.
std::array<char, 96> last_words{};

void say_seed(int) {
  (void)!::write(STDERR_FILENO, last_words.data(), std::char_traits<char>::length(last_words.data()));
  std::signal(SIGABRT, SIG_DFL);
  std::raise(SIGABRT);
}

void announce(uint64_t seed) {
  std::snprintf(last_words.data(), last_words.size(),
                "to see it again: fault_campaign --seed %llu --verbose\n",
                static_cast<unsigned long long>(seed));
  std::signal(SIGABRT, say_seed);
}

// Where a fault of the kind can strike.
Deed draw_deed(Draws& draws, FaultKind kind) {
  const auto one_of = [&](std::initializer_list<Deed> deeds) {
    return deeds.begin()[draws.below(deeds.size())];
  };
  switch (kind) {
    case FaultKind::read_error:
    case FaultKind::read_flip:
      return one_of({Deed::state_read, Deed::state_read, Deed::scratch_read});
    case FaultKind::busy:
    case FaultKind::bad_sector:
    case FaultKind::dead_drive:
      return one_of({Deed::state_read, Deed::state_write, Deed::scratch_read, Deed::scratch_write});
    case FaultKind::short_transfer:
      return one_of({Deed::state_read, Deed::state_write, Deed::scratch_write, Deed::manifest_write});
    case FaultKind::write_error:
    case FaultKind::torn_write:
    case FaultKind::full_drive:
    case FaultKind::write_flip:
    case FaultKind::lost_write:
    case FaultKind::torn_lie:
      return one_of({Deed::state_write, Deed::state_write, Deed::scratch_write});
    case FaultKind::sync_failure:
      return Deed::slab_sync;
    case FaultKind::manifest_error:
      return one_of({Deed::create, Deed::manifest_write, Deed::manifest_sync, Deed::rename, Deed::folder_sync,
                     Deed::unlink});
    case FaultKind::no_room:
      return Deed::allocate;
    default:
      return one_of({Deed::state_write, Deed::state_write, Deed::state_read, Deed::scratch_write,
                     Deed::slab_sync, Deed::create, Deed::manifest_write, Deed::manifest_sync, Deed::rename,
                     Deed::folder_sync, Deed::folder_sync, Deed::unlink});
  }
}

Fault draw_fault(Draws& draws, FaultKind kind) {
  Fault fault{.kind = kind, .deed = draw_deed(draws, kind)};
  const bool transfer = fault.deed <= Deed::scratch_write;
  fault.nth = transfer                       ? draws.of_any_size(8)
              : fault.deed == Deed::allocate ? draws.below(4)
                                             : draws.below(20);
  switch (kind) {
    case FaultKind::read_error:
    case FaultKind::write_error:
      fault.times = 1 + static_cast<int>(draws.below(3));
      break;
    case FaultKind::busy:
      fault.times = 1 + static_cast<int>(draws.below(10));
      fault.error_number = draws.one_in(2) ? EAGAIN : EINTR;
      break;
    case FaultKind::bad_sector:
    case FaultKind::dead_drive:
      fault.times = INT32_MAX;
      break;
    case FaultKind::full_drive:
      fault.times = draws.one_in(2) ? 1 : INT32_MAX;
      fault.error_number = ENOSPC;
      break;
    case FaultKind::no_room:
      fault.error_number = ENOSPC;
      break;
    case FaultKind::manifest_error:
      fault.times = 1 + static_cast<int>(draws.below(3));
      fault.error_number = draws.one_in(2) ? EIO : ENOSPC;
      break;
    default:
      break;
  }
  return fault;
}

std::vector<Fault> draw_faults(Draws& draws) {
  std::vector<Fault> faults;
  if (draws.one_in(3))
    faults.push_back(draw_fault(draws, draws.one_in(4) ? FaultKind::kill : FaultKind::power_cut));
  for (uint64_t more = faults.empty() ? 2 + draws.below(4) : draws.below(4); more > 0; --more) {
    const auto kind = static_cast<FaultKind>(draws.below(kFaultKinds - 2));
    if (kind != FaultKind::late && kind != FaultKind::stored_flip) faults.push_back(draw_fault(draws, kind));
  }
  return faults;
}

// One seed's machine, its work, and what is to be said of each end.
class Run {
 public:
  Run(uint64_t seed, Mutant mutant, std::ostream* log)
      : machine_(folder_.path(), seed, mutant), draws_(counter_hash(seed, 3)), log_(log) {
    work_ = draws_.one_in(8) ? make_trainer_workload(folder_.path(), machine_, seed)
                             : make_store_workload(folder_.path(), machine_, seed);
    say(work_->describe());
  }

  Verdict verdict() {
    Verdict verdict;
    try {
      const bool stopped = live_with_faults();
      const bool lost = !live_in_peace();
      verdict.ending = stopped || lost ? Ending::named : Ending::healed;
    } catch (const Silent& silent) {
      verdict.ending = Ending::silent;
      verdict.reason = silent.what();
      say(std::string("silent: ") + silent.what());
    }
    verdict.faults = machine_.counts();
    verdict.untouched = true;
    for (size_t kind = 0; kind < kFaultKinds; ++kind) {
      if (kind != static_cast<size_t>(FaultKind::late) && verdict.faults[kind] > 0) verdict.untouched = false;
    }
    return verdict;
  }

 private:
  // Whether an error ended one of the lives.
  bool live_with_faults() {
    bool stopped = false;
    for (uint64_t left = 1 + draws_.below(3); left > 0; --left) {
      const std::vector<Fault> faults = draw_faults(draws_);
      for (const Fault& fault : faults) {
        say("  to come: " + std::string(name(fault.kind)) + " at deed " +
            std::to_string(static_cast<int>(fault.deed)) + " number " + std::to_string(fault.nth) +
            " times " + std::to_string(fault.times));
      }
      machine_.begin_life(faults);
      std::string error;
      const bool ended = !live(error);
      if (ended && !machine_.was_cut()) {
        judge(error);
        stopped = true;
      }
      machine_.end_life();
      if (draws_.one_in(12)) machine_.flip_stored_bit();
      if (!ended) break;
    }
    return stopped;
  }

  // The machine is well now: it must go on, unless what is committed was damaged.
  bool live_in_peace() {
    machine_.begin_life({});
    std::string error;
    if (live(error)) return true;
    // Where the newest manifest was damaged an older one is tried, whose bytes may have been written over.
    if (!machine_.was_damaged(error) && !machine_.has_damaged_manifest())
      throw Silent("nothing fails any more, and it does not go on: " + error);
    return false;
  }

  bool live(std::string& error) {
    try {
      work_->live();
      say("came to its end");
      return true;
    } catch (const Error& stopped) {
      error = stopped.what();
      say((machine_.was_cut() ? "cut: " : "stopped: ") + error);
      return false;
    }
  }

  void judge(const std::string& error) const {
    if (machine_.was_damaged(error) || machine_.has_damaged_manifest()) return;
    // Several faults at one place may be more than the engine's tries.
    const bool flipped_twice = machine_.struck(FaultKind::read_flip) > 1;
    for (const char* damage : {"damaged on disk", "not a whole manifest"}) {
      if (error.find(damage) != std::string::npos && !flipped_twice)
        throw Silent("damage where none was done: " + error);
    }
    const int refused = machine_.struck(FaultKind::read_error) + machine_.struck(FaultKind::write_error) +
                        machine_.struck(FaultKind::torn_write);
    bool must_heal = work_->at_work() && refused <= 3 && !flipped_twice;
    for (size_t kind = 0; kind < kFaultKinds; ++kind) {
      must_heal = must_heal &&
                  (heals(static_cast<FaultKind>(kind)) || machine_.struck(static_cast<FaultKind>(kind)) == 0);
    }
    if (must_heal) throw Silent("not healed: " + error);
    if (!is_named(error)) throw Silent("not named: " + error);
  }

  bool is_named(const std::string& error) const {
    const auto has = [&](const std::string& text) { return error.find(text) != std::string::npos; };
    if (!has(folder_.path().string())) return false;
    if (!has(".slab at offset ") || !work_->at_work()) return true;
    const bool tensor = has(" of model.") || has(" of lm_head.") || has(" of trained.") ||
                        has(" of frozen.") || has(" of block ") || has("input of tape layer");
    return tensor && has("rive ");
  }

  void say(const std::string& text) const {
    if (log_ != nullptr) *log_ << text << std::endl;
  }

  const TemporaryFolder folder_;
  Machine machine_;
  Draws draws_;
  std::ostream* const log_;
  std::unique_ptr<Workload> work_;
};

}  // namespace

Verdict run_seed(uint64_t seed, Mutant mutant, std::ostream* log) {
  announce(seed);
  return Run(seed, mutant, log).verdict();
}

void Tally::add(const Verdict& verdict) {
  const auto ending = static_cast<size_t>(verdict.ending);
  ++seeds;
  untouched += verdict.untouched ? 1 : 0;
  ++endings[ending];
  for (size_t kind = 0; kind < kFaultKinds; ++kind) {
    faults[kind] += static_cast<uint64_t>(verdict.faults[kind]);
    if (verdict.faults[kind] > 0) ++runs[kind][ending];
  }
}

void Tally::add(const Tally& other) {
  seeds += other.seeds;
  untouched += other.untouched;
  for (size_t ending = 0; ending < endings.size(); ++ending) endings[ending] += other.endings[ending];
  for (size_t kind = 0; kind < kFaultKinds; ++kind) {
    faults[kind] += other.faults[kind];
    for (size_t ending = 0; ending < endings.size(); ++ending) runs[kind][ending] += other.runs[kind][ending];
  }
}

void print(std::ostream& out, const Tally& tally) {
  const auto row = [&](std::string_view first, auto count, const std::array<uint64_t, 3>& endings) {
    out << std::left << std::setw(16) << first << std::right << std::setw(10) << count;
    for (const uint64_t runs : endings) out << std::setw(10) << runs;
    out << "\n";
  };
  out << "fault               struck    healed     named    silent  (runs that met it)\n";
  for (size_t kind = 0; kind < kFaultKinds; ++kind)
    row(name(static_cast<FaultKind>(kind)), tally.faults[kind], tally.runs[kind]);
  row("all runs", tally.seeds, tally.endings);
  out << "without any fault: " << tally.untouched << " of " << tally.seeds << "\n";
}

}  // namespace sluice::test
