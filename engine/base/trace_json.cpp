#include <algorithm>
#include <cstdio>
#include <limits>

#include "engine/base/trace.h"

namespace sluice {
namespace {

// Bytes that are no ASCII are kept: the names are UTF-8.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      (result += '\\') += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      result += escaped;
    } else {
      result += c;
    }
  }
  return result += '"';
}

// All digits: two spans that touch must not overlap once they are rounded.
std::string microseconds(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03d", static_cast<long long>(ns / 1000),
                static_cast<int>(ns % 1000));
  return text;
}

std::string arguments(const TraceSpan& span) {
  std::string text = "\"step\":" + std::to_string(span.step);
  if (span.task_count > 1) {
    text += ",\"parts\":" + std::to_string(span.task_count) + ",\"busy_us\":" + microseconds(span.busy_ns);
  }
  if (span.bytes > 0) {
    text += ",\"bytes\":" + std::to_string(span.bytes);
    if (span.end_ns > span.begin_ns) {
      char rate[40];
      std::snprintf(rate, sizeof rate, "%.3f",
                    static_cast<double>(span.bytes) / static_cast<double>(span.end_ns - span.begin_ns));
      (text += ",\"GB_per_s\":") += rate;
    }
  }
  return text;
}

std::string named(const char* what, size_t process, size_t lane, const std::string& argument) {
  return std::string("{\"ph\":\"M\",\"name\":\"") + what + "\",\"pid\":" + std::to_string(process) +
         ",\"tid\":" + std::to_string(lane) + ",\"args\":{" + argument + "}}";
}

int64_t earliest(std::span<const TraceProcess> processes) {
  int64_t begin_ns = std::numeric_limits<int64_t>::max();
  for (const TraceProcess& process : processes) {
    for (const TraceLaneRecord& lane : process.lanes) {
      for (const TraceSpan& span : lane.spans) begin_ns = std::min(begin_ns, span.begin_ns);
    }
  }
  return begin_ns;
}

}  // namespace

void write_trace_json(std::span<const TraceProcess> processes,
                      std::span<const std::pair<std::string, std::string>> notes,
                      const std::function<void(std::string_view)>& write) {
  std::string head = "{\"displayTimeUnit\":\"ms\",\"otherData\":{";
  for (size_t i = 0; i < notes.size(); ++i)
    head += (i == 0 ? "" : ",") + quoted(notes[i].first) + ":" + quoted(notes[i].second);
  write(head + "},\"traceEvents\":[");
  const char* separator = "\n";
  const auto line = [&](const std::string& text) {
    write(separator + text);
    separator = ",\n";
  };
  const int64_t begin_ns = earliest(processes);
  for (size_t p = 0; p < processes.size(); ++p) {
    const TraceProcess& process = processes[p];
    line(named("process_name", p + 1, 0, "\"name\":" + quoted(process.name)));
    line(named("process_sort_index", p + 1, 0, "\"sort_index\":" + std::to_string(p)));
    for (size_t lane = 0; lane < process.lanes.size(); ++lane) {
      line(named("thread_name", p + 1, lane + 1, "\"name\":" + quoted(process.lanes[lane].name)));
      line(named("thread_sort_index", p + 1, lane + 1, "\"sort_index\":" + std::to_string(lane)));
      for (const TraceSpan& span : process.lanes[lane].spans) {
        line("{\"ph\":\"X\",\"name\":" + quoted(span.name) + ",\"cat\":" + quoted(process.name) +
             ",\"pid\":" + std::to_string(p + 1) + ",\"tid\":" + std::to_string(lane + 1) +
             ",\"ts\":" + microseconds(span.begin_ns - begin_ns) + ",\"dur\":" +
             microseconds(span.end_ns - span.begin_ns) + ",\"args\":{" + arguments(span) + "}}");
      }
    }
  }
  write("\n]}\n");
}

}  // namespace sluice
