#include "apps/finetune/events.h"

#include <iostream>
#include <string>

#include "engine/base/error.h"

namespace sluice::finetune {

void EventLog::write(const nlohmann::ordered_json& event) {
  if (!file_) return;
  // Paths and texts of the outside need not be UTF-8; the line must be.
  const std::string line = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  try {
    file_->write_at(line.data(), line.size(), offset_);
    offset_ += line.size();
  } catch (const Error& error) {
    std::cerr << "warning: " << error.what() << " The run goes on without its event log.\n";
    file_.reset();
  }
}

}  // namespace sluice::finetune
