#pragma once

#include <nlohmann/json_fwd.hpp>

#include "apps/finetune/data/piece_text.h"
#include "apps/finetune/data/regex.h"

namespace sluice {

// What a Split does with the matches of its pattern.
enum class SplitBehavior { removed, isolated, contiguous, merged_with_previous, merged_with_next };

// {"Regex": "..."} or {"String": "..."} of a tokenizer.json. Throws Error(data) for anything else.
Regex pattern_from_json(const nlohmann::json& pattern);

// "Removed", "Isolated", ...; throws Error(data) naming any other.
SplitBehavior split_behavior_from_json(const nlohmann::json& behavior);

// Cuts every open piece at the matches of `pattern`, or at what lies between them when `invert` is set.
void split_at(PieceText& text, const Regex& pattern, SplitBehavior behavior, bool invert = false);

// Replaces every match in every open piece. New characters stand for the last character of the match.
void replace_all(PieceText& text, const Regex& pattern, const std::string& content);

}  // namespace sluice
