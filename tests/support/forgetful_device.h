#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/forwarding_device.h"

namespace sluice::test {

// Where a wait stood: names of streams and tasks.
struct WaitSite {
  std::string stream;  // that waited
  std::string source;  // that recorded the event
  std::string after;   // the source's last task before it recorded; empty: none
  std::string before;  // the stream's next task after the wait; empty: none yet
  // The stream waited for the source at this point or a later one all the same: before, or before its next
  // task.
  bool covered = false;
  bool old = false;  // the source's last task before it recorded was submitted before forget()
  std::string text() const {
    return "'" + stream + "' before " + before + ", for '" + source + "' after " + after;
  }
};

// A device whose streams forget one wait: the bug that a hazard checker is for. Streams of other devices must
// not be mixed with its own. Thread-safe as the inner device is.
class ForgetfulDevice final : public ForwardingDevice {
 public:
  explicit ForgetfulDevice(gpu::Device& inner);
  ~ForgetfulDevice() override;

  // Counts from 0 again; the wait `index` of the stream of that name is dropped from here on (once). -1:
  // none.
  void forget(const std::string& stream, int index);
  // The waits of a stream since then, the forgotten one included.
  std::vector<WaitSite> waits(const std::string& stream) const;

  std::unique_ptr<gpu::Stream> make_stream(gpu::StreamKind kind, std::string name) override;
  void copy_to_device(gpu::Stream& stream, std::byte* device, const void* host, size_t size_bytes) override;
  void copy_to_host(gpu::Stream& stream, void* host, const std::byte* device, size_t size_bytes) override;
  gpu::Ops& ops() override;

 private:
  class Log;
  class ForgetfulStream;
  class ForgetfulOps;
  std::shared_ptr<Log> log_;
  std::unique_ptr<gpu::Ops> ops_;
};

}  // namespace sluice::test
