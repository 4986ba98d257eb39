#include <algorithm>
#include <cstring>
#include <hwy/base.h>
#include <immintrin.h>

#include "engine/base/error.h"
#include "gpu/host/panel.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prfchw")
#include "gpu/host/panel_avx512.h"

namespace sluice::gpu::host {
namespace {

struct Float {
  static constexpr int64_t kGroup = 1;
  static __m512 multiply_add(__m512 left, __m512 right, __m512 sum) {
    return _mm512_fmadd_ps(left, right, sum);
  }
};

}  // namespace
}  // namespace sluice::gpu::host
HWY_POP_ATTRIBUTES

namespace sluice::gpu::host {

const PanelKernel& avx512_panel() {
  static constexpr PanelKernel kKernel{"avx512_fp32", DType::f32, pack_panel<false>, turn<false>,
                                       multiply_panel<Float>};
  return kKernel;
}

}  // namespace sluice::gpu::host
