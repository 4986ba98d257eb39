#include "apps/finetune/data/nfc.h"

#include <algorithm>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

// A character of the result, and by how many it changes the count: 0 replaces one of the source, 1 was
// inserted behind it, -n swallowed n more of the source.
struct Changed {
  char32_t character;
  int change;
};

class Nfc final : public Normalizer {
 public:
  Nfc() {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* const nfc = icu::Normalizer2::getNFCInstance(status);
    auto known = std::make_shared<icu::UnicodeSet>(icu::UnicodeString("[:age=9.0:]"), status);
    if (U_FAILURE(status))
      throw Error(ErrorKind::runtime, std::string("ICU has no NFC data: ") + u_errorName(status));
    known->freeze();
    known_ = std::move(known);
    normalizer_ = std::make_shared<icu::FilteredNormalizer2>(*nfc, *known_);
  }

  void apply(PieceText& text) const override {
    text.rewrite([this](std::string_view view, uint32_t) { return !is_normalized(view); },
                 [this](std::string_view view, PieceText::Writer& writer) { rewrite(view, writer); });
  }

  std::unique_ptr<Normalizer> clone() const override { return std::make_unique<Nfc>(*this); }

 private:
  bool is_normalized(std::string_view view) const {
    const bool ascii =
        std::none_of(view.begin(), view.end(), [](char c) { return static_cast<uint8_t>(c) >= 0x80; });
    if (ascii) return true;
    UErrorCode status = U_ZERO_ERROR;
    const bool result = normalizer_->isNormalizedUTF8(
        icu::StringPiece(view.data(), static_cast<int32_t>(view.size())), status);
    return U_SUCCESS(status) && result;
  }

  int combining_class(char32_t c) const { return normalizer_->getCombiningClass(static_cast<UChar32>(c)); }

  // Canonical decomposition, marks in canonical order.
  std::vector<Changed> decompose(std::string_view view) const {
    std::vector<Changed> result;
    size_t sorted = 0;
    const auto sort_marks = [&] {
      std::stable_sort(result.begin() + static_cast<ptrdiff_t>(sorted), result.end(),
                       [this](const Changed& a, const Changed& b) {
                         return combining_class(a.character) < combining_class(b.character);
                       });
    };
    const auto add = [&](char32_t c, int change) {
      if (combining_class(c) == 0) {
        sort_marks();
        result.push_back({c, change});
        sorted = result.size();
      } else {
        result.push_back({c, change});
      }
    };
    icu::UnicodeString parts;
    for (size_t at = 0; at < view.size();) {
      const char32_t c = utf8::next(view, at);
      if (c < 0xc0 || !normalizer_->getDecomposition(static_cast<UChar32>(c), parts)) {
        add(c, 0);
        continue;
      }
      for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1))
        add(static_cast<char32_t>(parts.char32At(i)), i == 0 ? 0 : 1);
    }
    sort_marks();
    return result;
  }

  // Canonical composition (Unicode standard, D117), in place.
  void compose(std::vector<Changed>& text) const {
    size_t kept = 0;
    size_t starter = SIZE_MAX;
    int last_class = -1;  // of the last mark kept behind the starter; -1: none
    for (const Changed& next : text) {
      const int combining = combining_class(next.character);
      if (starter != SIZE_MAX && last_class < combining) {
        const UChar32 composed = normalizer_->composePair(static_cast<UChar32>(text[starter].character),
                                                          static_cast<UChar32>(next.character));
        if (composed >= 0) {
          text[starter] = {static_cast<char32_t>(composed), text[starter].change + next.change - 1};
          continue;
        }
      }
      if (combining == 0) {
        starter = kept;
        last_class = -1;
      } else {
        last_class = combining;
      }
      text[kept++] = next;
    }
    text.resize(kept);
  }

  void rewrite(std::string_view view, PieceText::Writer& writer) const {
    std::vector<Changed> text = decompose(view);
    compose(text);
    size_t source = 0;
    std::string character;
    for (const Changed& item : text) {
      character.clear();
      utf8::append(character, item.character);
      if (item.change > 0) {
        writer.put(character, source == 0 ? 0 : source - 1);
        continue;
      }
      writer.put(character, std::min(source, view.size() - 1));
      for (int i = item.change; i <= 0 && source < view.size(); ++i) source += utf8::length(view[source]);
    }
  }

  std::shared_ptr<const icu::UnicodeSet> known_;
  std::shared_ptr<const icu::FilteredNormalizer2> normalizer_;
};

}  // namespace

std::unique_ptr<Normalizer> make_nfc() {
  return std::make_unique<Nfc>();
}

}  // namespace sluice
