#pragma once

#include <cuda_runtime_api.h>
#include <exception>
#include <memory>
#include <string>

#include "gpu/stream.h"

namespace sluice::gpu::cuda {

// A point in a CUDA stream, and the error that the stream carried there. Thread-safe.
class CudaEvent final : public EventState {
 public:
  CudaEvent(int ordinal, cudaStream_t stream, std::exception_ptr error);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool done() const override;
  void wait() override;
  cudaEvent_t handle() const { return event_; }
  const std::exception_ptr& error() const { return error_; }

 private:
  cudaEvent_t event_ = nullptr;
  const std::exception_ptr error_;
};

// A compute or copy stream. Waiting for an event of a cpu stream blocks the caller until that is done: no
// memory operation of the stream could be trusted to wait for a thread of the host. Submitted to by one
// thread at a time.
class CudaStream final : public Stream {
 public:
  CudaStream(int ordinal, StreamKind kind, std::string name);
  ~CudaStream() override;

  Event record() override;
  void wait(const Event& event) override;
  void run(Task task) override;
  int ordinal() const { return ordinal_; }
  cudaStream_t handle() const { return stream_; }

 private:
  void keep_error(const std::exception_ptr& error);

  const int ordinal_;
  cudaStream_t stream_ = nullptr;
  std::exception_ptr error_;  // the first; the submitter's
};

// Stops the program where `stream` is no compute or copy stream of a CUDA device.
CudaStream& as_cuda(Stream& stream);

}  // namespace sluice::gpu::cuda
