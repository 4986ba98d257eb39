#pragma once

#include <cstdint>
#include <gtest/gtest.h>

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace sluice::cpu_optim {

// Runs a test body once with each instruction set that was compiled and that this machine has, the scalar one
// included.
template <class Body>
void for_each_target(const Body& body) {
  int count = 0;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body(target);
    ++count;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  EXPECT_GE(count, 2) << "the scalar target is always there, and so is a vector one on x86-64 and Arm";
}

}  // namespace sluice::cpu_optim
