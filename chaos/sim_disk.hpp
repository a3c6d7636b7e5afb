// SPDX-License-Identifier: Apache-2.0
// The disk under JOURNAL: bytes that outlive the control process, written late, in groups, torn by
// a crash, refused when full.
#pragma once

#include "chaos/sim_world.hpp"
#include "engine/core/journal_image.hpp"
#include "engine/core/journal_sink.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace di::sim {

enum class disk_trouble : std::uint8_t {
  none,
  full,    ///< a part of a write gets out, then nothing
  failing, ///< nothing gets out
  slow,    ///< writes take long
};

/// Writes as actors/journal_file does: one group at a time, a torn part is cut off before the next
/// attempt, a new file takes the place of the old one when it is whole.
class sim_disk {
public:
  sim_disk(sim_world& world, sim_random random) : world_{world}, random_{random} {}

  /// The sink of a control process that begins.
  engine::journal_sink& open(incarnation control);
  /// The control process is gone: what was not written is lost, the last write may be torn.
  void crash();
  /// What is there, as the next control process reads it. @errors corrupt
  result<std::optional<engine::journal_image>> recover() const;
  void set_trouble(disk_trouble t) { trouble_ = t; }

  /// Whether so many tokens of a choice are written, or the request is over and forgotten.
  bool has(request_id request, std::uint32_t choice, std::uint32_t next) const;
  std::uint64_t torn() const noexcept { return torn_; }
  std::uint64_t failed() const noexcept { return failed_; }

private:
  struct order {
    std::uint64_t position = 0, elapsed_ms = 0;
    std::vector<engine::any_record> records;
    bool begins_file = false;
  };
  class sink final : public engine::journal_sink {
  public:
    sink(sim_disk& disk, incarnation control) : disk_{disk}, control_{control} {}
    void append(std::uint64_t position, std::uint64_t elapsed_ms,
                engine::any_record record) override;
    void begin_file(std::uint64_t position, std::uint64_t elapsed_ms,
                    std::vector<engine::any_record> snapshot) override;

  private:
    sim_disk& disk_;
    incarnation control_;
  };

  void put(incarnation control, order o);
  void schedule();
  void write(incarnation control);
  void encode(const order& o, std::vector<std::byte>& out, engine::journal_image& image);
  void tell();

  sim_world& world_;
  sim_random random_;
  std::vector<std::unique_ptr<sink>> sinks_;
  incarnation control_{};
  std::deque<order> queue_;
  bool scheduled_ = false, failing_ = false;
  disk_trouble trouble_ = disk_trouble::none;
  std::vector<std::byte> file_;
  std::uint64_t file_number_ = 0, record_number_ = 0, written_ = 0;
  duration retry_{};
  engine::journal_image durable_;
  std::uint64_t torn_ = 0, failed_ = 0;
};

} // namespace di::sim
