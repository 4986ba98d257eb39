#include "apps/finetune/write_count.h"

namespace sluice::finetune {
namespace {

class WriteCounter final : public IoObserver {
 public:
  explicit WriteCounter(WriteCount& count) : count_(count) {}
  void on_start(int, const IoRequest& request) override {
    if (request.kind == IoRequest::Kind::write) count_.add(request.size_bytes);
  }
  void on_end(int, const IoRequest&, const IoCompletion&) override {}

 private:
  WriteCount& count_;
};

}  // namespace

std::unique_ptr<IoObserver> count_writes(WriteCount& count) {
  return std::make_unique<WriteCounter>(count);
}

}  // namespace sluice::finetune
