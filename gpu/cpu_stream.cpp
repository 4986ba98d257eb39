#include "gpu/cpu_stream.h"

#include <pthread.h>
#include <utility>

#include "gpu/stream_trace.h"

namespace sluice::gpu {
namespace {

// Of a copy: what it writes.
uint64_t copied_bytes(StreamKind kind, const Task& task) {
  const bool copies = kind == StreamKind::copy_in || kind == StreamKind::copy_out;
  return copies && !task.accesses.empty() ? task.accesses.back().size_bytes : 0;
}

}  // namespace

CpuStream::CpuStream(StreamKind kind, std::string name, CpuStreamOptions options)
    : Stream(kind, std::move(name)),
      options_(std::move(options)),
      observed_id_(options_.observer ? options_.observer->add_stream(this->name()) : 0),
      gated_id_(options_.gate ? options_.gate->add_stream(this->name()) : 0),
      traced_(add_stream_lane(options_.trace, *this)) {
  SLUICE_CHECK(options_.queue_capacity > 0);
  thread_ = std::thread([this] { work(); });
}

CpuStream::~CpuStream() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    wake_.notify_one();
  }
  thread_.join();
  if (options_.gate) options_.gate->remove_stream(gated_id_);
  if (options_.observer) options_.observer->remove_stream(observed_id_);
}

Event CpuStream::record() {
  Order order = options_.observer ? options_.observer->on_record(observed_id_) : nullptr;
  auto event = std::make_shared<CpuEvent>(options_.observer, options_.gate, std::move(order));
  bool idle = false;
  {
    MutexLock lock(mutex_);
    idle = items_.empty() && !busy_;
  }
  if (idle) {  // spares waking the thread; only this thread submits, so it stays idle
    event->complete(error());
  } else {
    push(event);
  }
  return Event(event);
}

void CpuStream::wait(const Event& event) {
  const auto* known = dynamic_cast<const CpuEvent*>(event.state().get());
  if (options_.observer) options_.observer->on_wait(observed_id_, known ? known->order() : nullptr);
  if (known && known->done_without_error()) return;
  push(event);
}

void CpuStream::run(Task task) {
  SLUICE_CHECK(kind() == StreamKind::cpu, "run is for cpu streams");
  enqueue(std::move(task));
}

void CpuStream::enqueue(Task task) {
  Order order = options_.observer ? options_.observer->on_submit(observed_id_, task) : nullptr;
  push(QueuedTask{std::move(task), std::move(order), submitted_task_count_++, this_thread_label()});
}

void CpuStream::push(Item item) {
  std::optional<TurnRelease> release;  // destroyed after the lock, as taking the turn again may block
  MutexLock lock(mutex_);
  SLUICE_CHECK(!closing_, "a stream that is being destroyed got work");
  if (items_.size() >= options_.queue_capacity) {
    release.emplace(nullptr, nullptr);
    while (items_.size() >= options_.queue_capacity) space_.wait(lock);
  }
  items_.push_back(std::move(item));
  if (options_.gate) options_.gate->on_submit(gated_id_);
  wake_.notify_one();
}

std::optional<CpuStream::Item> CpuStream::next() {
  MutexLock lock(mutex_);
  busy_ = false;
  if (items_.empty() && options_.gate) options_.gate->on_idle(gated_id_);
  while (items_.empty() && !closing_) wake_.wait(lock);
  if (items_.empty()) return std::nullopt;
  std::optional<Item> item = std::move(items_.front());
  items_.pop_front();
  busy_ = true;
  space_.notify_one();
  return item;
}

void CpuStream::work() {
  pthread_setname_np(pthread_self(), name().substr(0, 15).c_str());
  this_thread_turn() = {.gate = options_.gate.get(), .stream = gated_id_};
  this_thread_lane() = traced_;
  while (std::optional<Item> item = next()) {
    std::visit([this](auto& known) { execute(known); }, *item);
  }
}

void CpuStream::execute(QueuedTask& queued) {
  if (kind() == StreamKind::cpu && error() && !queued.task.even_after_error) return;
  if (options_.observer) options_.observer->on_task_begin(queued.order);
  StreamTurn& turn = this_thread_turn();
  turn.task_index = queued.index;
  if (options_.gate) options_.gate->enter(gated_id_, queued.index);
  turn.in_task = true;
  const WorkScope scope(queued.label);
  if (traced_ != nullptr) traced_->begin_task(queued.label, queued.task.name);
  try {
    queued.task.body();
  } catch (...) {
    keep_error(std::current_exception());
  }
  queued.task.body = nullptr;  // what it holds is given back before the turn, and before the next event
  if (traced_ != nullptr) traced_->end_task(copied_bytes(kind(), queued.task));
  turn.in_task = false;
  if (options_.gate) options_.gate->leave(gated_id_);
}

void CpuStream::execute(const Event& awaited) {
  if (auto* known = dynamic_cast<CpuEvent*>(awaited.state().get())) {
    keep_error(known->await());
    return;
  }
  const TurnRelease release(nullptr, nullptr);
  try {
    awaited.wait();
  } catch (...) {
    keep_error(std::current_exception());
  }
}

void CpuStream::execute(const std::shared_ptr<CpuEvent>& recorded) {
  recorded->complete(error());
}

void CpuStream::keep_error(std::exception_ptr error) {
  MutexLock lock(mutex_);
  if (error && !error_) error_ = std::move(error);
}

std::exception_ptr CpuStream::error() {
  MutexLock lock(mutex_);
  return error_;
}

}  // namespace sluice::gpu
