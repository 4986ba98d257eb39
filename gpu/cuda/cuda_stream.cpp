#include "gpu/cuda/cuda_stream.h"

#include <utility>

#include "gpu/cuda/cuda_error.h"

namespace sluice::gpu::cuda {

CudaEvent::CudaEvent(int ordinal, cudaStream_t stream, std::exception_ptr error) : error_(std::move(error)) {
  use_device(ordinal);
  // Blocking: a thread that waits leaves its core to the optimizer.
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
        "cudaEventCreateWithFlags");
  const cudaError_t recorded = cudaEventRecord(event_, stream);
  if (recorded != cudaSuccess) static_cast<void>(cudaEventDestroy(event_));
  check(recorded, "cudaEventRecord");
}

CudaEvent::~CudaEvent() {
  static_cast<void>(cudaEventDestroy(event_));  // the runtime keeps it until it is reached
}

bool CudaEvent::done() const {
  return cudaEventQuery(event_) != cudaErrorNotReady;  // an error ends the waiting too; wait() has it
}

void CudaEvent::wait() {
  check(cudaEventSynchronize(event_), "work before an event");
  if (error_) std::rethrow_exception(error_);
}

CudaStream::CudaStream(int ordinal, StreamKind kind, std::string name)
    : Stream(kind, std::move(name)), ordinal_(ordinal) {
  SLUICE_CHECK(kind != StreamKind::cpu);
  use_device(ordinal_);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaStream::~CudaStream() {
  // Whoever waited for its events has heard of errors; here there is nobody to tell.
  static_cast<void>(cudaStreamSynchronize(stream_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

Event CudaStream::record() {
  return Event(std::make_shared<CudaEvent>(ordinal_, stream_, error_));
}

void CudaStream::wait(const Event& event) {
  if (const auto* known = dynamic_cast<const CudaEvent*>(event.state().get())) {
    check(cudaStreamWaitEvent(stream_, known->handle(), 0), "cudaStreamWaitEvent");
    keep_error(known->error());
    return;
  }
  try {
    event.wait();
  } catch (...) {
    keep_error(std::current_exception());
  }
}

void CudaStream::run(Task) {
  SLUICE_CHECK(kind() == StreamKind::cpu, "run is for cpu streams");
}

void CudaStream::keep_error(const std::exception_ptr& error) {
  if (error && !error_) error_ = error;
}

CudaStream& as_cuda(Stream& stream) {
  auto* cuda_stream = dynamic_cast<CudaStream*>(&stream);
  SLUICE_CHECK(cuda_stream != nullptr, "a stream of another device, or a cpu stream");
  return *cuda_stream;
}

}  // namespace sluice::gpu::cuda
