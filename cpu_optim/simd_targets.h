#pragma once

// Included before hwy/foreach_target.h. SVE vectors have no size at compile time, so they cannot be members
// or stand in arrays as these kernels want; Arm runs the NEON version.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
