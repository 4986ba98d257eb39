#include "engine/store/state_window.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {

StateWindow::StateWindow(StateFile& file, IoQueue& queue)
    : file_(file), queue_(queue), buffer_(kWindowBytes + kChecksumBytes, "a window on the state") {}

void StateWindow::read(BlockId block, Section section, int slot, size_t begin, std::span<std::byte> out) {
  const size_t bytes = file_.layout().section_bytes(block, section);
  SLUICE_CHECK(begin <= bytes && out.size() <= bytes - begin);
  while (!out.empty()) {
    move_to({block, section, slot}, begin);
    const size_t within = begin - begin_;
    const size_t size = std::min(out.size(), window_bytes_ - within);
    const size_t last = (within + size - 1) / block_bytes_;
    load(within / block_bytes_, ahead_ ? units_.size() - 1 : last);
    std::memcpy(out.data(), buffer_.data() + within, size);
    out = out.subspan(size);
    begin += size;
  }
}

void StateWindow::write(BlockId block, Section section, int slot, size_t begin,
                        std::span<const std::byte> in) {
  const size_t bytes = file_.layout().section_bytes(block, section);
  SLUICE_CHECK(begin <= bytes && in.size() <= bytes - begin);
  while (!in.empty()) {
    move_to({block, section, slot}, begin);
    const size_t unit = (begin - begin_) / block_bytes_;
    const size_t within = (begin - begin_) % block_bytes_;
    const size_t size = std::min(in.size(), block_bytes_ - within);
    write_unit(unit, within, in.first(size));
    in = in.subspan(size);
    begin += size;
  }
}

void StateWindow::write_unit(size_t unit, size_t begin, std::span<const std::byte> in) {
  Unit& u = units_[unit];
  const size_t end = begin + in.size();
  if (!u.loaded && u.dirty() && (begin > u.dirty_end || end < u.dirty_begin)) complete(unit);
  std::memcpy(buffer_.data() + unit * block_bytes_ + begin, in.data(), in.size());
  u.dirty_begin = u.dirty() ? std::min(u.dirty_begin, begin) : begin;
  u.dirty_end = std::max(u.dirty_end, end);
  if (u.dirty_begin == 0 && u.dirty_end == unit_bytes(unit)) u.loaded = true;
}

void StateWindow::flush() {
  std::vector<StatePiece> pieces;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!units_[unit].dirty()) continue;
    complete(unit);
    pieces.push_back(piece(unit, 1));
  }
  if (!pieces.empty()) file_.write_pieces(queue_, pieces);
  for (Unit& unit : units_) unit.dirty_begin = unit.dirty_end = 0;
}

void StateWindow::move_to(const Place& place, size_t position) {
  const bool same = place_ == place;
  if (same && begin_ <= position && position - begin_ < window_bytes_) return;
  flush();
  ahead_ = same && position == begin_ + window_bytes_;
  place_ = place;
  section_bytes_ = file_.layout().section_bytes(place.block, place.section);
  block_bytes_ = file_.layout().checksum_bytes(place.section);
  window_bytes_ = kWindowBytes / block_bytes_ * block_bytes_;
  begin_ = position / block_bytes_ * block_bytes_;
  units_.assign(window_bytes_ / block_bytes_, Unit{});
}

// 0 behind the section's end.
size_t StateWindow::unit_bytes(size_t unit) const {
  const size_t begin = std::min(begin_ + unit * block_bytes_, section_bytes_);
  return std::min(block_bytes_, section_bytes_ - begin);
}

StatePiece StateWindow::piece(size_t first_unit, size_t unit_count) const {
  size_t bytes = 0;
  for (size_t unit = first_unit; unit < first_unit + unit_count; ++unit) bytes += unit_bytes(unit);
  return {place_->block, place_->section,
          place_->slot,  begin_ + first_unit * block_bytes_,
          bytes,         buffer_.data() + first_unit * block_bytes_};
}

// Makes units known, in one go where nothing was written in them.
void StateWindow::load(size_t first_unit, size_t last_unit) {
  std::vector<StatePiece> pieces;
  for (size_t unit = first_unit; unit <= last_unit && unit_bytes(unit) > 0; ++unit) {
    if (units_[unit].dirty()) {
      complete(unit);
    } else if (!units_[unit].loaded) {
      pieces.push_back(piece(unit, 1));
    }
  }
  if (pieces.empty()) return;
  file_.read_pieces(queue_, pieces);
  for (const StatePiece& read : pieces) units_[(read.begin - begin_) / block_bytes_].loaded = true;
}

// Reads what is around the dirty range of a unit.
void StateWindow::complete(size_t unit) {
  Unit& u = units_[unit];
  if (u.loaded) return;
  StatePiece around = piece(unit, 1);
  std::byte* const merged = around.data;
  around.data = buffer_.data() + kWindowBytes;
  file_.read_pieces(queue_, {&around, 1});
  std::memcpy(merged, around.data, u.dirty_begin);
  std::memcpy(merged + u.dirty_end, around.data + u.dirty_end, around.size_bytes - u.dirty_end);
  u.loaded = true;
}

}  // namespace sluice
