#pragma once

#include <memory>
#include <string>

#include "gpu/stream.h"

// What CpuStream tells those who judge or steer it. Both are optional and never change what a correct program
// computes.
namespace sluice::gpu {

// What an observer remembers of a point in a stream's order; opaque to streams.
using Order = std::shared_ptr<const void>;

// Sees every submission in the submitter's thread, before the work can run. Thread-safe; must not call back.
class StreamObserver {
 public:
  virtual ~StreamObserver() = default;
  virtual int add_stream(const std::string& name) = 0;
  // The stream's work has ended, and the calling thread knows it.
  virtual void remove_stream(int stream) = 0;
  // The point just after the task.
  virtual Order on_submit(int stream, const Task& task) = 0;
  virtual Order on_record(int stream) = 0;
  // Later work of `stream` comes after `order`; null: an event that the observer knows nothing of.
  virtual void on_wait(int stream, const Order& order) = 0;
  // The calling thread has seen that `order` is reached: whatever it submits from here on comes after it.
  virtual void on_host_wait(const Order& order) = 0;
  // The calling thread now runs the task that on_submit gave `order` for.
  virtual void on_task_begin(const Order& order) = 0;
  virtual void on_allocate(const void* begin, size_t size_bytes) = 0;
  virtual void on_free(const void* begin, size_t size_bytes) = 0;
};

// Decides when the tasks of streams run. Thread-safe; must not call back. A stream is *idle* (nothing
// submitted), *moving* (its thread is on the way to its next task or wait), *blocked* in a wait, at the gate,
// or *running* a task; only `enter` may block.
class StreamGate {
 public:
  virtual ~StreamGate() = default;
  virtual int add_stream(const std::string& name) = 0;
  virtual void remove_stream(int stream) = 0;
  virtual void on_submit(int stream) = 0;  // an idle stream is moving now
  virtual void on_idle(int stream) = 0;
  // `event` is null where it belongs to no stream of this gate.
  virtual void on_blocked(int stream, const EventState* event) = 0;
  virtual void on_unblocked(int stream) = 0;
  // Streams blocked on it are moving now, before any of their threads wakes up.
  virtual void on_event_done(const EventState* event) = 0;
  // Around each task, `task_index` counting those of the stream from 0. A task that blocks in an event or in
  // a full queue leaves and enters again.
  virtual void enter(int stream, int64_t task_index) = 0;
  virtual void leave(int stream) = 0;
};

}  // namespace sluice::gpu
