#pragma once

#include <string>
#include <variant>

#include "gpu/ops/activation.h"
#include "gpu/ops/attention.h"
#include "gpu/ops/elementwise.h"
#include "gpu/ops/embedding.h"
#include "gpu/ops/linear.h"
#include "gpu/ops/loss.h"
#include "gpu/ops/norm.h"
#include "gpu/stream.h"

namespace sluice::gpu {

// Every op that a device offers, as a value: so that a policy (trace, check against a second backend,
// modelled time) is one function over all of them.
using Op = std::variant<RmsNormForward, RmsNormBackward, LinearPack, LinearForward, LinearBackwardInput,
                        LinearBackwardWeight, AttentionForward, AttentionBackward, Rope, GatherRows,
                        ScatterRows, EmbeddingBackward, SwigluForward, SwigluBackward, LogSumExpUpdate,
                        TokenLoss, CrossEntropyBackward, ArgMaxUpdate, Cast, Add, Scale, Fill, JoinSplit>;

const char* name(const Op& op);
// What the op reads and writes in device memory, its workspace apart.
std::vector<MemoryAccess> accesses(const Op& op);
// Floating point operations of the matmuls in it (2 a multiply-add; causal attention counts the lower
// triangle); 0 for the others.
double matmul_flops(const Op& op);

// Device memory that an op may use while it runs.
struct Workspace {
  std::byte* data = nullptr;
  size_t size_bytes = 0;
};

// The kernels of one device. Thread-safe.
class Ops {
 public:
  virtual ~Ops() = default;
  // Runs `op` in the stream's order; shapes and dtypes are checked here and are bugs of the caller where they
  // do not fit. `workspace` must have at least workspace_bytes(op) bytes and belong to this op until it has
  // run.
  virtual void submit(Stream& stream, Op op, Workspace workspace) = 0;
  // By shapes and dtypes alone: pointers may be null.
  virtual size_t workspace_bytes(const Op& op) const = 0;
  virtual size_t packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout layout) const = 0;
  // Which kernels serve which shapes here; part of a run's identity, as it decides bits.
  virtual std::string kernel_table_id() const = 0;
  // The dtype in which this device is faster: fp32 or bf16.
  virtual DType preferred_compute_dtype() const = 0;
};

}  // namespace sluice::gpu
