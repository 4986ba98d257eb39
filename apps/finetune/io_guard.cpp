#include "apps/finetune/io_guard.h"

#include <chrono>
#include <cmath>
#include <future>
#include <iostream>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

// Whatever `task` touches may hang: then its thread is left behind. It must own all that it uses.
void run_bounded(std::function<void()> task, double most_seconds) {
  auto ended = std::make_shared<std::promise<void>>();
  const std::future<void> end = ended->get_future();
  std::thread([task = std::move(task), ended] {
    task();
    ended->set_value();
  }).detach();
  end.wait_for(std::chrono::duration<double>(most_seconds));
}

nlohmann::ordered_json json_of(const char* event, const LateTransfer& transfer) {
  return {{"event", event},
          {"kind", transfer.kind == IoRequest::Kind::read ? "read" : "write"},
          {"file", transfer.path},
          {"offset", transfer.offset},
          {"bytes", transfer.size_bytes},
          {"work", transfer.work},
          {"step", transfer.step},
          {"seconds", std::round(transfer.seconds * 1e3) / 1e3}};
}

}  // namespace

IoGuard::IoGuard(double timeout_seconds, IoWatchdog::Now now) {
  if (timeout_seconds <= 0) return;
  watchdog_.emplace(timeout_seconds,
                    IoWatchdog::Listener{
                        .late = [this](const LateTransfer& transfer) { tell("io_late", transfer); },
                        .returned = [this](const LateTransfer& transfer) { tell("io_returned", transfer); },
                        .given_up = [this](const LateTransfer& transfer) { give_up(transfer); }},
                    std::move(now));
  thread_.emplace(*watchdog_);
}

IoObservers IoGuard::observers() {
  return [this](const IoQueue& queue) {
    std::vector<std::unique_ptr<IoObserver>> observers;
    if (watchdog_) observers.push_back(watchdog_->watch(queue.capacity()));
    if (auto lanes = trace_transfers(trace_, queue)) observers.push_back(std::move(lanes));
    return observers;
  };
}

void IoGuard::set_log(std::shared_ptr<EventLog> log) {
  MutexLock lock(mutex_);
  log_ = std::move(log);
}

void IoGuard::set_last_words(std::function<void()> last_words) {
  MutexLock lock(mutex_);
  last_words_ = std::move(last_words);
}

void IoGuard::tell(const char* event, const LateTransfer& transfer) {
  const bool returned = std::string_view(event) == "io_returned";
  std::string text = "warning: " + transfer.text();
  if (returned) text += ", and now it has";
  std::cerr << text + ".\n";
  std::shared_ptr<EventLog> log;
  {
    MutexLock lock(mutex_);
    log = log_;
  }
  if (log) run_bounded([log, line = json_of(event, transfer)] { log->write(line); }, kLastWordsSeconds);
}

void IoGuard::give_up(const LateTransfer& transfer) {
  const std::string message =
      transfer.text() +
      ", and nothing takes it back: its drive, or the way there, hangs. Look at dmesg and the drive "
      "(smartctl -a), then go on from the last saved state with --resume. A drive that is only slow needs a "
      "longer --io_timeout.";
  std::cerr << "finetune: " + message + "\n";
  std::shared_ptr<EventLog> log;
  std::function<void()> last_words;
  {
    MutexLock lock(mutex_);
    log = log_;
    last_words = last_words_;
  }
  nlohmann::ordered_json line = json_of("error", transfer);
  line["message"] = message;
  run_bounded(
      [log, line, last_words] {
        if (log) log->write(line);
        if (last_words) last_words();
      },
      kLastWordsSeconds);
  ::_exit(exit_code(ErrorKind::runtime));
}

}  // namespace sluice::finetune
