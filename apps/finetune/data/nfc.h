#pragma once

#include "apps/finetune/data/normalizer.h"

namespace sluice {

// Canonical composition in the Unicode 9.0 that Hugging Face's normaliser knows: younger characters are left
// as they are. Offsets follow its crate too: a composed character stands for the first of the characters it
// was made from.
std::unique_ptr<Normalizer> make_nfc();

}  // namespace sluice
