#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cpu_optim/float_view.h"
#include "cpu_optim/state_format.h"
#include "engine/memory/tensor_store.h"
#include "engine/store/state_file.h"
#include "io/io_queue.h"

namespace sluice {

// What an update streams of one block: where its states are, and which copy on disk is read and which
// written.
struct StreamedBlock {
  BlockId block;
  BlockHome home;
  int read_slot = 0;
  int write_slot = 0;
  cpu_optim::StateSpan resident;  // TensorStore::states
  cpu_optim::FloatView gradient;  // in the host tier; its dtype counts wherever it is
};

// States on disk on their way through the update: read, changed, written, in chunks of a fixed number of
// elements, each in one of a few slots of host memory, with reads of the next chunks and writes of the last
// ones in flight. So RAM holds a few chunks, however large a block is. Works on the thread that calls it (a
// lane); errors name the tensor.
class StateStream {
 public:
  // low | high | m | v | gradient (fp32 at most) of kChunkElements.
  static size_t slot_bytes(cpu_optim::StateFormat format);

  // `slots` holds a whole number of them. `gradients`: where the gradients of write_gradient() lie, if known.
  StateStream(StateFile& file, const IoQueueFactory& make_queue, std::span<std::byte> slots,
              std::span<std::byte> gradients = {});
  ~StateStream();

  // Called for each chunk in order: elements [begin, begin + state.size) of the block's logical index.
  using Update = std::function<void(BlockId block, int64_t begin, const cpu_optim::StateSpan& state,
                                    cpu_optim::FloatView gradient)>;
  // The blocks of the update after the one that has just ended: as many of their states as there are slots
  // are read while the next gradients are made. What begin() then asks for may be something else.
  void read_ahead(std::vector<StreamedBlock> blocks);
  // The blocks of the coming update, in its order; the first ones are being read when it returns.
  void begin(std::vector<StreamedBlock> blocks, Update update);
  // When it returns, the next block of begin() has been updated and written. While its last chunks are, those
  // after it are read and updated, so that the drives never wait.
  void finish_next();

  // The block's gradient, which lies in memory as its logical index, goes to disk.
  void write_gradient(BlockId block, const std::byte* gradient, size_t size_bytes);
  // What is in the host tier of a block goes to its copy `slot` on disk (a generation is being made). May
  // fail and be asked again.
  void save(BlockId block, const BlockState& resident, int slot);

  size_t read_bytes() const { return read_bytes_; }
  size_t written_bytes() const { return written_bytes_; }

 private:
  struct Chunk {
    size_t block = 0;  // index into blocks_
    int64_t begin = 0;
    int64_t count = 0;
    int slot = 0;
    bool last = false;  // of its block
  };
  struct Block : StreamedBlock {
    bool updated = false;  // its last chunk has been
    int writes_pending = 0;
  };
  void take_up(std::vector<StreamedBlock> blocks);
  bool have_read_ahead(const std::vector<StreamedBlock>& blocks) const;
  void drop_read_ahead();
  void read_gradients_of_chunks();
  void issue_reads();
  bool update_first_if_read();
  void add_gradient(const Chunk& chunk, std::vector<StatePiece>& pieces) const;
  std::vector<StatePiece> pieces(const Chunk& chunk, IoRequest::Kind kind) const;
  void update(const Chunk& chunk);
  void push(std::span<const StatePiece> pieces, IoRequest::Kind kind, int slot, Block* written = nullptr);
  void start_transfers();
  void take_completions(int least);
  void write_now(std::span<const StatePiece> pieces);

  // Of `slot`; slot_count stands for transfers straight from the host tier.
  struct Transfer {
    IoRequest request;
    StatePiece piece;
    int slot = 0;
    Block* written = nullptr;  // by this transfer
    std::string_view verb() const;
  };

  std::byte* memory_of(const Chunk& chunk) const {
    return memory_ + static_cast<size_t>(chunk.slot) * slot_bytes(format_);
  }

  StateFile& file_;
  const cpu_optim::StateFormat format_;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<IoQueue> second_queue_;  // for what is read again while the other is in use
  std::byte* memory_;
  std::vector<int> pending_;  // by slot: transfers that have not ended
  std::vector<Block> blocks_;
  bool ahead_ = false;  // blocks_ are those of an update that has not begun: their gradients are not there
  Update update_;
  size_t next_block_ = 0;       // of finish_next
  size_t next_read_block_ = 0;  // whose chunks are to be read next
  int64_t next_read_begin_ = 0;
  std::deque<Chunk> chunks_;  // read or being read, in order
  int next_slot_ = 0;
  std::deque<Transfer> backlog_;   // not started yet
  std::vector<Transfer> started_;  // by tag
  std::vector<uint64_t> free_tags_;
  size_t bytes_in_flight_ = 0;
  std::vector<IoRequest> requests_;  // scratch
  size_t read_bytes_ = 0;
  size_t written_bytes_ = 0;
};

}  // namespace sluice
