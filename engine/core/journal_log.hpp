// SPDX-License-Identifier: Apache-2.0
// The journal as bytes: records, their frames with length, checksum and number, and a reader that
// stops at a torn tail. Pure: files are actors/journal.hpp's matter.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/sampling.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace di::engine {

/// What a journal belongs to. Two runs with the same one give the same answers.
struct run_identity {
  std::string contract;         ///< contract id of the checkpoint
  std::string prompts;          ///< length and digest of the prompts file; empty: no batch
  std::string settings;         ///< topology keys that change answers, one `key=value` a line
  std::uint64_t batch_seed = 0; ///< seeds of lines without one are drawn from it
  friend bool operator==(const run_identity&, const run_identity&) = default;
  DI_FIELDS(run_identity, m.contract, m.prompts, m.settings, m.batch_seed)
};

/// Records, in the order of their numbers in a frame (from 1). New ones and new fields of old ones
/// go to the end; a reader fills fields that it misses with their defaults.
namespace journal_record {

/// First of every file.
struct begun {
  static constexpr std::string_view magic_text = "di journal 1";
  std::string magic; ///< magic_text
  run_identity run;
  friend bool operator==(const begun&, const begun&) = default;
  DI_FIELDS(begun, m.magic, m.run)
};

/// A request began to exist, or (in a file's opening snapshot) still does.
struct opened {
  proto::request_spec spec;
  std::uint32_t attempt = 1;
  std::uint64_t deadline_left_ms = 0; ///< [ms] of spec.deadline_ms left when this was recorded
  bool keep = false;                  ///< open_request::keep
  std::string note{}, dedup{}, dedup_digest{}; ///< of open_request
  std::uint64_t keep_ms = 0, detached_ms = 0;  ///< of open_request
  bool attended = false;    ///< its gateway attaches again after a restart of control
  std::uint64_t age_ms = 0; ///< [ms] since it was opened when this was recorded
  DI_FIELDS(opened, m.spec, m.attempt, m.deadline_left_ms, m.keep, m.note, m.dedup, m.dedup_digest,
            m.keep_ms, m.detached_ms, m.attended, m.age_ms)
};

/// An attempt was opened (from 2), or placed on a life of a rank.
struct placed {
  request_id request;
  std::uint32_t attempt = 0;
  bool on_rank = false;
  rank_id rank;       ///< if on_rank
  incarnation life{}; ///< if on_rank
  DI_FIELDS(placed, m.request, m.attempt, m.on_rank, m.rank, m.life)
};

/// Tokens of a choice were accepted.
struct tokens {
  request_id request;
  std::uint32_t choice = 0;
  std::uint32_t first_index = 0; ///< is what the choice has
  std::vector<token_id> ids;
  std::vector<proto::position_logprobs> logprobs; ///< as ids, or empty
  proto::choice_end end;                          ///< reason none: it goes on
  proto::choice_timings timings;                  ///< if it ended
  bool prefix_recorded = false;                   ///< the two fields of the request's spec
  std::uint32_t prefix_tokens = 0;
  std::uint32_t cached_tokens = 0; ///< of the request: tokens_released::cached_tokens
  DI_FIELDS(tokens, m.request, m.choice, m.first_index, m.ids, m.logprobs, m.end, m.timings,
            m.prefix_recorded, m.prefix_tokens, m.cached_tokens)
};

/// A choice that was ended with its request.
struct cut_choice {
  std::uint32_t choice = 0;
  std::uint32_t next = 0; ///< [tokens] that it keeps
  DI_FIELDS(cut_choice, m.choice, m.next)
};

/// A request was closed as a whole.
struct closed {
  request_id request;
  proto::choice_end end;       ///< of the choices below
  std::vector<cut_choice> cut; ///< whatever earlier records say of them; the others had ended
  std::uint64_t age_ms = 0;    ///< [ms] since it was closed when this was recorded
  DI_FIELDS(closed, m.request, m.end, m.cut, m.age_ms)
};

/// Nothing but the numbers of closed requests [first, last] is needed any more.
struct forgotten {
  std::uint64_t first = 0, last = 0;
  friend bool operator==(const forgotten&, const forgotten&) = default;
  DI_FIELDS(forgotten, m.first, m.last)
};

/// A view is about to take effect.
struct view {
  proto::view_committed next;
  DI_FIELDS(view, m.next)
};

/// All before this is the state that an earlier file ended with; a file without it is not used.
struct snapshot_end {
  std::uint64_t requests = 0; ///< opened records before it
  DI_FIELDS(snapshot_end, m.requests)
};

} // namespace journal_record

using any_record =
    std::variant<journal_record::begun, journal_record::opened, journal_record::placed,
                 journal_record::tokens, journal_record::closed, journal_record::forgotten,
                 journal_record::view, journal_record::snapshot_end>;

/// [bytes] of a frame before its record:
/// length u32 (of the record), crc32c u32 (of all behind it), number u64, elapsed u64, kind u8;
/// little endian.
inline constexpr std::size_t frame_head_bytes = 25;
/// [bytes] of one record; a longer one is refused when it is written.
inline constexpr std::size_t record_bytes_max = std::size_t{256} << 20;

/// A record where it stands in a log.
struct framed_record {
  std::uint64_t number = 0;     ///< rises by one over all files of a journal, from 1
  std::uint64_t elapsed_ms = 0; ///< [ms] that the journal has been open in all its lives; never
                                ///< falls
  any_record body;
};

/// Appends a frame. @return false: the record is longer than record_bytes_max, nothing is appended
bool append_frame(std::vector<std::byte>& log, const framed_record& record);

/// How a log ended.
enum class log_end : std::uint8_t {
  clean, ///< with a whole record
  torn,  ///< with a part of one, as a write leaves that was cut off; the rest is dropped
};

/// Reads frames in order. Never guesses: what is not whole, intact and next in number ends it.
class log_reader {
public:
  /// @param name  called so in errors, e.g. the file's path
  log_reader(std::span<const std::byte> log, std::string name)
      : log_{log}, name_{std::move(name)} {}

  /// The next record; none at the end.
  /// @errors corrupt: a record is damaged and whole ones stand behind it, or one is intact but has
  /// an impossible body or number; with the name and the offset
  result<std::optional<framed_record>> next();

  std::size_t offset() const noexcept { return at_; } ///< [bytes] of whole records read
  log_end ended() const noexcept { return ended_; }
  const std::string& why() const noexcept { return why_; } ///< words for `torn`, with the offset

private:
  result<std::optional<framed_record>> stop(std::string why);
  std::optional<std::size_t> whole_frame_behind(std::size_t from) const;

  std::span<const std::byte> log_;
  std::string name_;
  std::size_t at_ = 0;
  std::uint64_t number_ = 0; ///< of the last record; 0: none yet
  std::uint64_t elapsed_ms_ = 0;
  log_end ended_ = log_end::clean;
  bool stopped_ = false;
  std::string why_;
};

} // namespace di::engine
