#pragma once

#include <memory>
#include <span>

#include "engine/memory/tensor_store.h"
#include "engine/schedule/mover.h"
#include "gpu/device.h"
#include "io/io_queue.h"

namespace sluice {

// Pieces of the newest weights of a block on disk, as a lease in `compute_dtype` copies them: laid out at
// `out` as BlockLayout says, from fetch_offset on.
std::vector<StatePiece> weight_pieces(const TensorStore& store, BlockId block, DType compute_dtype,
                                      std::byte* out);

// Reads weights from disk into host memory, block after block, on a lane of its own. Asked by one thread.
class DiskReader {
 public:
  DiskReader(gpu::Device& device, const TensorStore& store, std::unique_ptr<IoQueue> queue,
             DType compute_dtype);

  // What is read from here on overwrites memory that is in use until `event`, or bytes on disk that are there
  // after it.
  void after(const gpu::Event& event) { lane_->wait(event); }
  gpu::Stream& lane() { return *lane_; }
  // The block's weights as they are on disk when the lane comes to it; in place after the event. That moment
  // goes into `begin`, where there is one.
  gpu::Event read_weights(BlockId block, std::byte* out, DiskBegin begin = nullptr);

 private:
  const TensorStore& store_;
  DType compute_dtype_;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<gpu::Stream> lane_;  // last: its thread uses the rest
};

}  // namespace sluice
