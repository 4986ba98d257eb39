#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace sluice::test {

// The call must throw an Error of this kind whose message contains each of the texts.
template <class Call>
void expect_error(ErrorKind kind, const std::vector<std::string>& texts, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), exit_code(kind)) << error.what();
    for (const std::string& text : texts) EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
  }
}

}  // namespace sluice::test
