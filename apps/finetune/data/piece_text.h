#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct ByteSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool operator==(const ByteSpan&) const = default;
};

// A piece of the text; those that are added tokens already have their id and are left alone from then on.
struct Piece {
  ByteSpan bytes;
  int32_t token = -1;
};

// A text on its way to the model: cut into pieces, and rewritten (NFC, prefixes, replaced spaces), while each
// byte still knows which bytes of the original it came from. The same bookkeeping as Hugging Face's
// NormalizedString, whose offsets are the reference. One thread at a time; borrows the original until the
// next reset.
class PieceText {
 public:
  // Starts over with one piece, the whole of `original` (well-formed UTF-8 under 2 GB).
  void reset(std::string_view original);

  std::string_view text() const { return text_; }
  std::string_view text(const Piece& piece) const {
    return text_.substr(piece.bytes.begin, piece.bytes.end - piece.bytes.begin);
  }
  std::span<const Piece> pieces() const { return pieces_; }

  // The original bytes, whole characters, that the bytes [begin, end) of text() stand for; not empty.
  ByteSpan original(uint32_t begin, uint32_t end) const;

  // split(view, put) is called for each piece without a token and calls put(begin, end, token) with offsets
  // inside view for what takes its place; empty pieces are dropped.
  template <class Split>
  void split(const Split& split) {
    spare_.clear();
    for (const Piece& piece : pieces_) {
      if (piece.token >= 0) {
        spare_.push_back(piece);
        continue;
      }
      const uint32_t base = piece.bytes.begin;
      split(text(piece), [&](size_t begin, size_t end, int32_t token) {
        if (begin < end)
          spare_.push_back({{base + static_cast<uint32_t>(begin), base + static_cast<uint32_t>(end)}, token});
      });
    }
    pieces_.swap(spare_);
  }

  // What a rewrite writes: characters of the old piece, or new ones that stand for the same original bytes as
  // one of them.
  class Writer {
   public:
    // Copies the bytes [begin, end) of the piece.
    void keep(size_t begin, size_t end);
    // Puts `text`, which stands for what the byte at `like` of the piece stands for.
    void put(std::string_view text, size_t like);

   private:
    friend class PieceText;
    Writer(PieceText& owner, uint32_t base) : owner_(owner), base_(base) {}
    PieceText& owner_;
    uint32_t base_;
  };

  // wanted(view, original_begin) says which pieces without a token change; rewrite(view, writer) writes
  // those.
  template <class Wanted, class Rewrite>
  void rewrite(const Wanted& wanted, const Rewrite& rewrite) {
    bool any = false;
    for (const Piece& piece : pieces_)
      any = any || (piece.token < 0 && wanted(text(piece), first_original(piece)));
    if (!any) return;
    begin_rewrite();
    for (Piece& piece : pieces_) {
      const auto start = static_cast<uint32_t>(next_text_.size());
      Writer writer(*this, piece.bytes.begin);
      if (piece.token < 0 && wanted(text(piece), first_original(piece))) {
        rewrite(text(piece), writer);
      } else {
        writer.keep(0, piece.bytes.end - piece.bytes.begin);
      }
      next_pieces_.push_back({{start, static_cast<uint32_t>(next_text_.size())}, piece.token});
    }
    end_rewrite();
  }

 private:
  uint32_t first_original(const Piece& piece) const { return origin(piece.bytes.begin).begin; }
  ByteSpan origin(uint32_t at) const { return origins_.empty() ? character_at(at) : origins_[at]; }
  ByteSpan character_at(uint32_t at) const;
  void begin_rewrite();
  void end_rewrite();

  std::string_view text_;
  std::vector<Piece> pieces_;
  std::vector<ByteSpan> origins_;  // by byte of text_; empty while text_ is the original
  std::vector<Piece> spare_;
  std::string owned_;
  std::string next_text_;
  std::vector<ByteSpan> next_origins_;
  std::vector<Piece> next_pieces_;
};

}  // namespace sluice
