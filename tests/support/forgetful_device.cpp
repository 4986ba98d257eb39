#include "tests/support/forgetful_device.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace sluice::test {

// What all streams tell. Streams are known by name: there is one of each.
class ForgetfulDevice::Log {
 public:
  void forget(const std::string& stream, int index) {
    const std::lock_guard lock(mutex_);
    forgotten_stream_ = stream;
    forgotten_index_ = index;
    for (auto& [name, log] : streams_) {
      log.sites.clear();
      log.open.clear();
      log.old_tasks = log.tasks;
    }
  }
  std::vector<WaitSite> waits(const std::string& stream) const {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream);
    return found == streams_.end() ? std::vector<WaitSite>{} : found->second.sites;
  }

  void on_task(const std::string& stream, std::string_view task) {
    const std::lock_guard lock(mutex_);
    StreamLog& log = streams_[stream];
    for (const OpenWait& wait : log.open) {
      WaitSite& site = log.sites[wait.site];
      site.before = task;
      site.covered =
          wait.point <= log.reached[site.source] || std::ranges::any_of(log.open, [&](const OpenWait& other) {
            return other.made && other.site != wait.site && other.point >= wait.point &&
                   log.sites[other.site].source == site.source;
          });
    }
    for (const OpenWait& wait : log.open) {
      int64_t& reached = log.reached[log.sites[wait.site].source];
      if (wait.made) reached = std::max(reached, wait.point);
    }
    log.open.clear();
    log.last_task = task;
    ++log.tasks;
  }
  void on_record(const std::string& stream, const gpu::Event& event) {
    const std::lock_guard lock(mutex_);
    StreamLog& log = streams_[stream];
    records_[event.state().get()] = {stream, log.last_task, log.tasks};
  }
  // Whether the wait is to be made.
  bool on_wait(const std::string& stream, const gpu::Event& event) {
    const std::lock_guard lock(mutex_);
    StreamLog& log = streams_[stream];
    const bool forgotten =
        stream == forgotten_stream_ && static_cast<int>(log.sites.size()) == forgotten_index_;
    const auto record = records_.find(event.state().get());
    SLUICE_CHECK(record != records_.end(), "an event of another device");
    const Record& from = record->second;
    log.open.push_back({log.sites.size(), from.point, !forgotten});
    log.sites.push_back({.stream = stream,
                         .source = from.stream,
                         .after = from.task,
                         .old = from.point <= streams_[from.stream].old_tasks});
    return !forgotten;
  }

 private:
  struct OpenWait {
    size_t site = 0;
    int64_t point = 0;
    bool made = true;
  };
  struct StreamLog {
    std::string last_task;
    int64_t tasks = 0;
    int64_t old_tasks = 0;
    std::vector<WaitSite> sites;
    std::vector<OpenWait> open;              // no task since
    std::map<std::string, int64_t> reached;  // the latest point of each source that was waited for
  };
  struct Record {
    std::string stream;
    std::string task;
    int64_t point = 0;  // tasks of the stream before it
  };
  mutable std::mutex mutex_;
  std::string forgotten_stream_;
  int forgotten_index_ = -1;
  std::map<std::string, StreamLog> streams_;
  std::map<const gpu::EventState*, Record> records_;  // an address used again is overwritten when it is
};

class ForgetfulDevice::ForgetfulStream final : public gpu::Stream {
 public:
  ForgetfulStream(std::unique_ptr<gpu::Stream> inner, std::shared_ptr<Log> log)
      : Stream(inner->kind(), inner->name()), inner_(std::move(inner)), log_(std::move(log)) {}

  gpu::Event record() override {
    gpu::Event event = inner_->record();
    log_->on_record(name(), event);
    return event;
  }
  void wait(const gpu::Event& event) override {
    if (log_->on_wait(name(), event)) inner_->wait(event);
  }
  void run(gpu::Task task) override {
    log_->on_task(name(), task.name);
    inner_->run(std::move(task));
  }
  // For work that goes past this class.
  static gpu::Stream& unwrap(gpu::Stream& stream, std::string_view task) {
    auto* own = dynamic_cast<ForgetfulStream*>(&stream);
    SLUICE_CHECK(own != nullptr, "a stream of another device");
    own->log_->on_task(own->name(), task);
    return *own->inner_;
  }

 private:
  std::unique_ptr<gpu::Stream> inner_;
  std::shared_ptr<Log> log_;
};

class ForgetfulDevice::ForgetfulOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void submit(gpu::Stream& stream, gpu::Op op, gpu::Workspace workspace) override {
    gpu::Stream& inner_stream = ForgetfulStream::unwrap(stream, gpu::name(op));
    inner_.submit(inner_stream, std::move(op), workspace);
  }
};

ForgetfulDevice::ForgetfulDevice(gpu::Device& inner)
    : ForwardingDevice(inner),
      log_(std::make_shared<Log>()),
      ops_(std::make_unique<ForgetfulOps>(inner.ops())) {}

ForgetfulDevice::~ForgetfulDevice() = default;

void ForgetfulDevice::forget(const std::string& stream, int index) {
  log_->forget(stream, index);
}

std::vector<WaitSite> ForgetfulDevice::waits(const std::string& stream) const {
  return log_->waits(stream);
}

std::unique_ptr<gpu::Stream> ForgetfulDevice::make_stream(gpu::StreamKind kind, std::string name) {
  return std::make_unique<ForgetfulStream>(inner_.make_stream(kind, std::move(name)), log_);
}

void ForgetfulDevice::copy_to_device(gpu::Stream& stream, std::byte* device, const void* host,
                                     size_t size_bytes) {
  inner_.copy_to_device(ForgetfulStream::unwrap(stream, "copy_to_device"), device, host, size_bytes);
}

void ForgetfulDevice::copy_to_host(gpu::Stream& stream, void* host, const std::byte* device,
                                   size_t size_bytes) {
  inner_.copy_to_host(ForgetfulStream::unwrap(stream, "copy_to_host"), host, device, size_bytes);
}

gpu::Ops& ForgetfulDevice::ops() {
  return *ops_;
}

}  // namespace sluice::test
