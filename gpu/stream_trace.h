#pragma once

#include "engine/base/trace.h"
#include "gpu/stream.h"

namespace sluice::gpu {

// The lane of a stream's thread; null without a trace.
inline TraceLane* add_stream_lane(Trace* trace, const Stream& stream) {
  if (trace == nullptr) return nullptr;
  int order = trace_order::kHost;
  if (stream.kind() == StreamKind::compute) order = trace_order::kCompute;
  if (stream.kind() == StreamKind::copy_in) order = trace_order::kCopyIn;
  if (stream.kind() == StreamKind::copy_out) order = trace_order::kCopyOut;
  return &trace->add_lane(stream.name(), order);
}

}  // namespace sluice::gpu
