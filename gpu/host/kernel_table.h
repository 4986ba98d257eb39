#pragma once

#include <string>
#include <vector>

#include "gpu/host/matmul.h"
#include "gpu/host/panel.h"

// Which kernel serves which dtype on which processor: a checked-in table, never a timing at run time (two
// noisy runs would choose differently, and bits with them). Measured by bench/gpu/bench_matmul.cpp.
namespace sluice::gpu::host {

// What this processor and its operating system offer.
struct CpuFeatures {
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // and avx512
  bool amx_bf16 = false;     // and avx512
  bool amd = false;
};
CpuFeatures cpu_features();

struct KernelTable {
  std::string id;  // e.g. "avx512_bf16-1": part of a run's identity; new numbers, new suffix
  DType preferred_compute_dtype = DType::f32;
  const MatmulKernel* f32 = nullptr;
  const MatmulKernel* bf16 = nullptr;  // may multiply fp32: bf16 is then upcast
  const PanelKernel* attention_f32 = nullptr;
  const PanelKernel* attention_bf16 = nullptr;  // likewise
  const MatmulKernel& matmul(DType dtype) const { return dtype == DType::bf16 ? *bf16 : *f32; }
  const PanelKernel& attention(DType dtype) const {
    return dtype == DType::bf16 ? *attention_bf16 : *attention_f32;
  }
};

// The row of the table for a processor.
KernelTable kernel_table(const CpuFeatures& features);
// Of the processor at hand.
const KernelTable& kernel_table();

// Every kernel that runs on this processor: for tests and benches.
std::vector<const MatmulKernel*> usable_matmul_kernels();
std::vector<const PanelKernel*> usable_panel_kernels();

std::string kernel_table_id();
DType preferred_compute_dtype();

}  // namespace sluice::gpu::host
