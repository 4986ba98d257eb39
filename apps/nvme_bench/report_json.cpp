#include <array>
#include <nlohmann/json.hpp>

#include "apps/common/version.h"
#include "apps/nvme_bench/fio_lines.h"
#include "apps/nvme_bench/report.h"

namespace sluice::nvme_bench {
namespace {

using nlohmann::json;

constexpr double kGb = 1e9;
struct Percent {
  const char* name;
  double percent;
};
constexpr std::array kPercents = {Percent{"p50", 50}, Percent{"p95", 95}, Percent{"p99", 99},
                                  Percent{"p99.9", 99.9}};

json to_json(const LatencyHistogram& histogram) {
  json latency{{"max", histogram.largest_seconds() * 1e3}};
  for (const auto& [key, percent] : kPercents) latency[key] = histogram.percentile_seconds(percent) * 1e3;
  return latency;
}

json to_json(const RateSeries& series) {
  json rates = json::array();
  for (const double rate : series.rates()) rates.push_back(rate / kGb);
  return {{"interval_seconds", series.interval_seconds()}, {"gb_per_second", std::move(rates)}};
}

json to_json(const Measurement& measurement) {
  json tenths = json::array();
  for (const uint64_t bytes : measurement.tenth_bytes) {
    if (measurement.tenth_seconds > 0)
      tenths.push_back(static_cast<double>(bytes) / measurement.tenth_seconds / kGb);
  }
  return {{"gb_per_second", measurement.bytes_per_second() / kGb},
          {"read_bytes", measurement.read_bytes},
          {"written_bytes", measurement.written_bytes},
          {"seconds", measurement.seconds},
          {"transfers", measurement.latency.count()},
          {"latency_ms", to_json(measurement.latency)},
          {"cpu_seconds_per_gb", measurement.cpu_seconds_per_gb()},
          {"sync_seconds", measurement.sync_seconds},
          {"gb_per_second_by_tenth", std::move(tenths)},
          {"rate_over_time", to_json(measurement.rate)}};
}

json to_json(const std::map<Traffic, Measurement>& measurements) {
  json all = json::object();
  for (const auto& [traffic, measurement] : measurements)
    all[std::string(name(traffic))] = to_json(measurement);
  return all;
}

json to_json(const std::optional<ByteCount>& count) {
  if (!count) return nullptr;
  return {{"read_bytes", count->read_bytes}, {"written_bytes", count->written_bytes}};
}

json to_json(const Proof& proof) {
  return {{"reached_drive", proof.reached_drive()},
          {"doubt", proof.doubt},
          {"asked", to_json(std::optional(proof.asked))},
          {"process", to_json(proof.process)},
          {"device", to_json(proof.device)},
          {"pages", proof.residency.page_count},
          {"resident_pages", proof.residency.resident_count}};
}

json settings_json(const DriveResult& result) {
  if (!result.settings) return nullptr;
  const DriveSettings& settings = *result.settings;
  return {{"queue", settings.queue},
          {"block_bytes", settings.block_bytes},
          {"bytes_in_flight", settings.bytes_in_flight},
          {"read_gb_per_second", settings.read_bytes_per_second / kGb},
          {"write_gb_per_second", settings.write_bytes_per_second / kGb},
          {"mixed_gb_per_second", settings.mixed_bytes_per_second / kGb}};
}

json to_json(const WideCount& count) {
  return count.high == 0 ? json(count.low) : json(count.decimal());
}

json to_json(const std::vector<Health>& all) {
  json list = json::array();
  for (const Health& health : all) {
    json entry{
        {"device", health.device},
        {"temperature_celsius", health.temperature_celsius ? json(*health.temperature_celsius) : json()},
        {"smart", nullptr},
        {"reason", health.reason}};
    if (health.log) {
      const SmartLog& log = *health.log;
      entry["smart"] = {{"critical_warning", log.critical_warning},
                        {"warnings", log.warnings()},
                        {"temperature_celsius", log.temperature_celsius},
                        {"available_spare_percent", log.available_spare_percent},
                        {"spare_threshold_percent", log.spare_threshold_percent},
                        {"used_percent", log.used_percent},
                        {"read_bytes", to_json(log.read_bytes())},
                        {"written_bytes", to_json(log.written_bytes())},
                        {"power_on_hours", to_json(log.power_on_hours)},
                        {"unsafe_shutdowns", to_json(log.unsafe_shutdowns)},
                        {"media_errors", to_json(log.media_errors)}};
    }
    list.push_back(std::move(entry));
  }
  return list;
}

json to_json(const std::optional<SustainedWrite>& sustained) {
  if (!sustained) return nullptr;
  const SteadyRate& found = sustained->found;
  return {{"measurement", to_json(sustained->measurement)},
          {"file_bytes", sustained->file_bytes},
          {"reserve_bytes", sustained->reserve_bytes},
          {"passes", sustained->passes()},
          {"fell", found.fell},
          {"seconds_before_fall", found.fell ? json(sustained->seconds_before_fall()) : json()},
          {"bytes_before_fall", found.fell ? json(sustained->bytes_before_fall()) : json()},
          {"gb_per_second_before", found.before / kGb},
          {"gb_per_second_after", found.after / kGb},
          {"steady_gb_per_second", found.steady / kGb}};
}

json to_json(const std::vector<LoadedLatency>& all) {
  json loads = json::object();
  for (const LoadedLatency& loaded : all) {
    loads[loaded.load] = {{"latency_ms", to_json(loaded.measurement.probe_latency)},
                          {"probes", loaded.measurement.probe_latency.count()},
                          {"gb_per_second", loaded.measurement.bytes_per_second() / kGb}};
  }
  return loads;
}

json to_json(const std::vector<MixedRate>& mixes) {
  json list = json::array();
  for (const MixedRate& mix : mixes)
    list.push_back({{"read_share", mix.read_share}, {"measurement", to_json(mix.measurement)}});
  return list;
}

json to_json(const DriveResult& result, const Options& options) {
  json sweep = json::array();
  for (const SweepPoint& point : result.sweep) {
    sweep.push_back({{"block_bytes", point.block_bytes},
                     {"bytes_in_flight", point.bytes_in_flight},
                     {"read_gb_per_second", point.read_bytes_per_second / kGb},
                     {"write_gb_per_second", point.write_bytes_per_second / kGb}});
  }
  json queues = json::object();
  for (const QueueRate& rate : result.queues) {
    queues[rate.queue] = {{"read_gb_per_second", rate.read_bytes_per_second / kGb},
                          {"write_gb_per_second", rate.write_bytes_per_second / kGb}};
  }
  json fio = json::object();
  for (const auto& [what, command] : fio_lines(result, options)) fio[what] = command;
  return {{"folder", result.folder},
          {"key", result.drive.key},
          {"file_system", result.drive.file_system},
          {"mount_point", result.drive.mount_point},
          {"source", result.drive.source},
          {"disk", result.drive.disk},
          {"model", result.drive.model},
          {"file_bytes", result.file_bytes},
          {"first_write", to_json(result.first_write)},
          {"queue", result.queue},
          {"queues", std::move(queues)},
          {"sweep", std::move(sweep)},
          {"block_bytes", result.chosen.block_bytes},
          {"bytes_in_flight", result.chosen.bytes_in_flight},
          {"measurements", to_json(result.measurements)},
          {"mixes", to_json(result.mixes)},
          {"load_latency", to_json(result.loaded)},
          {"sustained", to_json(result.sustained)},
          {"health_before", to_json(result.health_before)},
          {"health_after", to_json(result.health_after)},
          {"fio", std::move(fio)},
          {"interrupted", result.interrupted},
          {"proof", to_json(result.proof)},
          {"settings", settings_json(result)}};
}

}  // namespace

std::string report_json(const Report& report) {
  json drives = json::array();
  for (const DriveResult& result : report.drives) drives.push_back(to_json(result, report.options));
  json all{{"program", "nvme_bench"}, {"version", kVersion}, {"drives", std::move(drives)}};
  if (report.together) {
    json beside = json::array();
    for (const auto& measurements : report.together->beside) beside.push_back(to_json(measurements));
    all["together"] = to_json(report.together->striped);
    all["beside"] = std::move(beside);
  }
  all["interrupted"] = report.interrupted();
  all["svg"] = report.options.svg.empty() ? json(nullptr) : json(report.options.svg);
  all["settings_file"] = report.settings_file.empty() ? json(nullptr) : json(report.settings_file.string());
  return all.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::nvme_bench
