#include "apps/finetune/data/regex.h"

#include <cstdint>
#include <cstring>

#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice {
namespace {

// A run of a megabyte of one character must not end in "match limit"; patterns come with the model and are
// trusted to end.
constexpr uint32_t kMatchLimit = UINT32_MAX;
constexpr size_t kJitStackStart = 64 * 1024;
constexpr size_t kJitStackMost = 64 * 1024 * 1024;

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof text) < 0) return "error " + std::to_string(code);
  return reinterpret_cast<const char*>(text);
}

// Fewer bytes of ASCII than this are not worth a try of their own.
constexpr size_t kAsciiLeast = 16;

size_t ascii_prefix(std::string_view text) {
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t chunk;
    std::memcpy(&chunk, text.data() + at, sizeof chunk);
    if ((chunk & 0x8080808080808080u) != 0) break;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) ++at;
  return at;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeStack {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_code, FreeCode> ascii;  // null where it could match otherwise, or there is no JIT
  std::string pattern;                          // as written in the file
  bool jit = false;

  static std::unique_ptr<pcre2_code, FreeCode> compile(std::string_view text, uint32_t options, int& error) {
    size_t offset = 0;
    return std::unique_ptr<pcre2_code, FreeCode>(pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error, &offset, nullptr));
  }

  static std::shared_ptr<Code> make(std::string_view text, std::string_view shown, uint32_t options) {
    int error = 0;
    auto result = std::make_shared<Code>();
    result->pattern = shown;
    result->code = compile(text, PCRE2_UTF | options, error);
    if (!result->code)
      throw Error(ErrorKind::data,
                  "the pattern " + std::string(shown) + " does not compile: " + pcre2_message(error));
    result->jit = pcre2_jit_compile(result->code.get(), PCRE2_JIT_COMPLETE) == 0;
    return result;
  }

  // Ruby's ^ and $ match at every line; its newline is \n alone.
  static std::shared_ptr<const Code> from_ruby(std::string_view pattern) {
    const auto text = [&](RegexText kind) { return "(*LF)" + rewrite_for_pcre2(pattern, kind); };
    std::shared_ptr<Code> result = make(text(RegexText::utf8), pattern, PCRE2_UCP | PCRE2_MULTILINE);
    int error = 0;
    auto ascii = compile(text(RegexText::ascii), PCRE2_MULTILINE, error);
    uint32_t behind = 1;
    // A pattern that looks back could see the end of a character before the ASCII.
    if (ascii && pcre2_pattern_info(ascii.get(), PCRE2_INFO_MAXLOOKBEHIND, &behind) == 0 && behind == 0 &&
        pcre2_jit_compile(ascii.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0)
      result->ascii = std::move(ascii);
    return result;
  }
};

struct Regex::Scratch {
  std::unique_ptr<pcre2_match_data, FreeMatch> match;
  std::unique_ptr<pcre2_match_context, FreeContext> context;
  std::unique_ptr<pcre2_jit_stack, FreeStack> stack;

  explicit Scratch(const Code& code)
      : match(pcre2_match_data_create_from_pattern(code.code.get(), nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr)) {
    if (!match || !context || !stack) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

Regex::Regex(std::string_view pattern) : Regex(Code::from_ruby(pattern)) {}

Regex::Regex(std::shared_ptr<const Code> code)
    : code_(std::move(code)), scratch_(std::make_unique<Scratch>(*code_)) {}

Regex Regex::literal(std::string_view text) {
  return Regex(Code::make(text, text, PCRE2_LITERAL));
}

Regex::Regex(const Regex& other) : Regex(other.code_) {}
Regex::Regex(Regex&&) noexcept = default;
Regex::~Regex() = default;

Regex& Regex::operator=(Regex other) noexcept {
  code_ = std::move(other.code_);
  scratch_ = std::move(other.scratch_);
  return *this;
}

std::optional<Regex::Match> Regex::find(std::string_view subject, size_t from, size_t& ascii_end) const {
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  if (text == nullptr) text = reinterpret_cast<PCRE2_SPTR>("");
  pcre2_match_data* const match = scratch_->match.get();
  pcre2_match_context* const context = scratch_->context.get();
  const size_t* const ends = pcre2_get_ovector_pointer(match);
  if (code_->ascii) {
    if (ascii_end < from || ascii_end == 0) ascii_end = from;
    if (ascii_end == from) ascii_end += ascii_prefix(subject.substr(from));
    const bool whole = ascii_end == subject.size();
    if (whole || ascii_end - from >= kAsciiLeast) {
      // A partial match means that it wanted to see what comes behind the ASCII: then the other program
      // decides.
      const int rc = pcre2_jit_match(code_->ascii.get(), text, ascii_end, from,
                                     whole ? 0 : PCRE2_PARTIAL_HARD, match, context);
      if (rc > 0) return Match{ends[0], ends[1]};
      if (whole && rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
    }
  }
  // The text was checked once, so the checks of the slower entry are left out.
  const int rc =
      code_->jit
          ? pcre2_jit_match(code_->code.get(), text, subject.size(), from, 0, match, context)
          : pcre2_match(code_->code.get(), text, subject.size(), from, PCRE2_NO_UTF_CHECK, match, context);
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0)
    throw Error(ErrorKind::data, "the pattern " + code_->pattern + " failed on a text of " +
                                     std::to_string(subject.size()) + " bytes: " + pcre2_message(rc));
  return Match{ends[0], ends[1]};
}

size_t Regex::after(std::string_view subject, size_t offset) {
  return offset < subject.size() ? offset + utf8::length(subject[offset]) : offset + 1;
}

}  // namespace sluice
