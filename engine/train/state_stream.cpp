#include "engine/train/state_stream.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/math.h"
#include "engine/base/work_label.h"

namespace sluice {
namespace {

constexpr size_t kBytesInFlight = size_t{16} << 20;

}  // namespace

size_t StateStream::slot_bytes(cpu_optim::StateFormat format) {
  return chunk_offset(format, Section::gradient) + static_cast<size_t>(kChunkElements) * 4;
}

StateStream::StateStream(StateFile& file, const IoQueueFactory& make_queue, std::span<std::byte> slots,
                         std::span<std::byte> gradients)
    : file_(file),
      format_(file.layout().model().state_format),
      queue_(make_queue({slots, gradients})),
      second_queue_(make_queue({})),
      memory_(slots.data()),
      pending_(slots.size() / slot_bytes(format_) + 1),
      started_(static_cast<size_t>(queue_->capacity())) {
  for (size_t tag = started_.size(); tag > 0; --tag) free_tags_.push_back(tag - 1);
}

StateStream::~StateStream() = default;

void StateStream::read_ahead(std::vector<StreamedBlock> blocks) {
  ahead_ = true;
  take_up(std::move(blocks));
}

void StateStream::begin(std::vector<StreamedBlock> blocks, Update update) {
  update_ = std::move(update);
  if (ahead_ && have_read_ahead(blocks)) {
    ahead_ = false;
    for (size_t i = 0; i < blocks.size(); ++i) blocks_[i] = {std::move(blocks[i])};
    read_gradients_of_chunks();
    return issue_reads();
  }
  if (ahead_) drop_read_ahead();
  take_up(std::move(blocks));
}

void StateStream::take_up(std::vector<StreamedBlock> blocks) {
  SLUICE_CHECK(next_block_ == blocks_.size() && chunks_.empty(), "an update ended before its last block");
  blocks_.clear();
  for (StreamedBlock& block : blocks) blocks_.push_back({std::move(block)});
  next_block_ = 0;
  next_read_block_ = 0;
  next_read_begin_ = 0;
  issue_reads();
}

bool StateStream::have_read_ahead(const std::vector<StreamedBlock>& blocks) const {
  return std::ranges::equal(blocks, blocks_, [](const StreamedBlock& asked, const StreamedBlock& read) {
    return asked.block == read.block && asked.home == read.home && asked.read_slot == read.read_slot;
  });
}

void StateStream::drop_read_ahead() {
  for (const Chunk& chunk : chunks_) {
    while (pending_[static_cast<size_t>(chunk.slot)] > 0) take_completions(1);
  }
  chunks_.clear();
  blocks_.clear();
  next_block_ = 0;
  ahead_ = false;
}

void StateStream::read_gradients_of_chunks() {
  for (const Chunk& chunk : chunks_) {
    std::vector<StatePiece> wanted;
    add_gradient(chunk, wanted);
    push(wanted, IoRequest::Kind::read, chunk.slot);
  }
}

std::vector<StatePiece> StateStream::pieces(const Chunk& chunk, IoRequest::Kind kind) const {
  const StreamedBlock& block = blocks_[chunk.block];
  std::vector<StatePiece> found;
  for (const Section section : kTrainedSections) {
    const size_t size = state_section_bytes(format_, section, chunk.count);
    if (home_of(block.home, section) != Tier::disk || size == 0) continue;
    found.push_back({.block = block.block,
                     .section = section,
                     .slot = kind == IoRequest::Kind::read ? block.read_slot : block.write_slot,
                     .begin = state_section_bytes(format_, section, chunk.begin),
                     .size_bytes = size,
                     .data = memory_of(chunk) + chunk_offset(format_, section)});
  }
  if (kind == IoRequest::Kind::read && !ahead_) add_gradient(chunk, found);
  return found;
}

void StateStream::add_gradient(const Chunk& chunk, std::vector<StatePiece>& pieces) const {
  const StreamedBlock& block = blocks_[chunk.block];
  if (block.home.gradient != Tier::disk) return;
  const size_t element_bytes = size_bytes(block.gradient.dtype());
  pieces.push_back({.block = block.block,
                    .section = Section::gradient,
                    .slot = 0,
                    .begin = static_cast<size_t>(chunk.begin) * element_bytes,
                    .size_bytes = static_cast<size_t>(chunk.count) * element_bytes,
                    .data = memory_of(chunk) + chunk_offset(format_, Section::gradient)});
}

// Reads as many of the next chunks as there are free slots for, in the order of the update.
void StateStream::issue_reads() {
  const int slot_count = static_cast<int>(pending_.size()) - 1;
  while (next_read_block_ < blocks_.size() && static_cast<int>(chunks_.size()) < slot_count &&
         pending_[static_cast<size_t>(next_slot_)] == 0) {
    const int64_t left = blocks_[next_read_block_].gradient.size() - next_read_begin_;
    Chunk chunk{.block = next_read_block_,
                .begin = next_read_begin_,
                .count = std::min(left, kChunkElements),
                .slot = next_slot_,
                .last = left <= kChunkElements};
    const std::vector<StatePiece> wanted = pieces(chunk, IoRequest::Kind::read);
    push(wanted, IoRequest::Kind::read, chunk.slot);
    chunks_.push_back(chunk);
    next_slot_ = (next_slot_ + 1) % slot_count;
    next_read_begin_ += chunk.count;
    if (chunk.last) {
      ++next_read_block_;
      next_read_begin_ = 0;
    }
  }
}

void StateStream::finish_next() {
  const Block& block = blocks_.at(next_block_);
  while (!block.updated || block.writes_pending > 0) {
    const bool updated = update_first_if_read();
    take_completions(updated ? 0 : 1);
    issue_reads();
  }
  ++next_block_;
}

bool StateStream::update_first_if_read() {
  if (chunks_.empty() || pending_[static_cast<size_t>(chunks_.front().slot)] > 0) return false;
  const Chunk chunk = chunks_.front();
  chunks_.pop_front();
  file_.verify(pieces(chunk, IoRequest::Kind::read), *second_queue_);
  update(chunk);
  Block& block = blocks_[chunk.block];
  push(pieces(chunk, IoRequest::Kind::write), IoRequest::Kind::write, chunk.slot, &block);
  block.updated = chunk.last;
  return true;
}

void StateStream::update(const Chunk& chunk) {
  const StreamedBlock& block = blocks_[chunk.block];
  cpu_optim::StateSpan state = block.resident.subrange(chunk.begin, chunk.count);
  const auto in_slot = [&](Section section, std::byte* resident) {
    const bool here =
        home_of(block.home, section) == Tier::host || state_section_bytes(format_, section, chunk.count) == 0;
    return here ? resident : memory_of(chunk) + chunk_offset(format_, section);
  };
  state.low = in_slot(Section::low, state.low);
  state.weight =
      reinterpret_cast<BFloat16*>(in_slot(Section::high, reinterpret_cast<std::byte*>(state.weight)));
  state.first_moment = in_slot(Section::first_moment, state.first_moment);
  state.second_moment = in_slot(Section::second_moment, state.second_moment);
  const cpu_optim::FloatView gradient =
      block.home.gradient == Tier::host
          ? block.gradient.subrange(chunk.begin, chunk.count)
          : cpu_optim::FloatView(block.gradient.dtype(),
                                 memory_of(chunk) + chunk_offset(format_, Section::gradient), chunk.count);
  update_(block.block, chunk.begin, state, gradient);
}

void StateStream::write_gradient(BlockId block, const std::byte* gradient, size_t size_bytes) {
  const StatePiece piece{.block = block,
                         .section = Section::gradient,
                         .slot = 0,
                         .begin = 0,
                         .size_bytes = size_bytes,
                         .data = const_cast<std::byte*>(gradient)};
  write_now({&piece, 1});
}

void StateStream::save(BlockId block, const BlockState& resident, int slot) {
  std::vector<StatePiece> found;
  for (const Section section : kPersistedSections) {
    const std::span<std::byte> bytes = resident.bytes(section);
    if (bytes.empty()) continue;
    found.push_back({.block = block,
                     .section = section,
                     .slot = section == Section::frozen ? 0 : slot,
                     .begin = 0,
                     .size_bytes = bytes.size(),
                     .data = bytes.data()});
  }
  // Not among the transfers of updates: a save that fails leaves nothing of itself there.
  file_.write_pieces(*second_queue_, found);
  for (const StatePiece& piece : found) written_bytes_ += piece.size_bytes;
}

void StateStream::write_now(std::span<const StatePiece> pieces) {
  const int outside = static_cast<int>(pending_.size()) - 1;
  push(pieces, IoRequest::Kind::write, outside);
  while (pending_[static_cast<size_t>(outside)] > 0) take_completions(1);
}

void StateStream::push(std::span<const StatePiece> pieces, IoRequest::Kind kind, int slot, Block* written) {
  requests_.clear();
  if (kind == IoRequest::Kind::read) {
    file_.read_requests(pieces, requests_);
  } else {
    file_.write_requests(pieces, requests_);
  }
  for (const IoRequest& request : requests_) {
    backlog_.push_back({request, pieces[request.tag], slot, written});
    ++pending_[static_cast<size_t>(slot)];
    if (written != nullptr) ++written->writes_pending;
    (kind == IoRequest::Kind::read ? read_bytes_ : written_bytes_) += request.size_bytes;
  }
  start_transfers();
}

std::string_view StateStream::Transfer::verb() const {
  if (piece.section == Section::gradient) return "gradient";
  return request.kind == IoRequest::Kind::read ? "read states of" : "write states of";
}

void StateStream::start_transfers() {
  while (
      !backlog_.empty() && !free_tags_.empty() &&
      (bytes_in_flight_ == 0 || bytes_in_flight_ + backlog_.front().request.size_bytes <= kBytesInFlight)) {
    Transfer next = backlog_.front();
    backlog_.pop_front();
    next.request.tag = free_tags_.back();
    free_tags_.pop_back();
    bytes_in_flight_ += next.request.size_bytes;
    started_[next.request.tag] = next;
    const WorkScope work(next.verb(), file_.layout().model().block(next.piece.block).name);
    queue_->start({&next.request, 1});
  }
}

void StateStream::take_completions(int least) {
  try {
    for (const IoCompletion& completion : queue_->wait(least)) {
      const Transfer& ended = started_.at(completion.tag);
      if (completion.error_number != 0) file_.retry(*second_queue_, ended.piece, ended.request);
      bytes_in_flight_ -= ended.request.size_bytes;
      --pending_[static_cast<size_t>(ended.slot)];
      if (ended.written != nullptr) --ended.written->writes_pending;
      free_tags_.push_back(completion.tag);
    }
  } catch (...) {
    // Nothing comes after this error, but a gradient's memory is not ours: whoever learns of it writes there.
    backlog_.clear();
    while (queue_->in_flight() > 0) (void)queue_->wait(1);
    throw;
  }
  start_transfers();
}

}  // namespace sluice
