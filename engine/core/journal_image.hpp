// SPDX-License-Identifier: Apache-2.0
// The state that a log says: what a journal is started from, and what a new file begins with.
#pragma once

#include "engine/core/journal_log.hpp"
#include "engine/core/number_ranges.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace di::engine {

struct choice_image {
  std::vector<token_id> tokens;
  std::vector<proto::position_logprobs> logprobs; ///< as tokens, or empty
  proto::choice_end end;
  proto::choice_timings timings;
  bool cut = false; ///< ended by JOURNAL, not by its rank
};

struct request_image {
  proto::request_spec spec;
  std::uint32_t attempt = 1;
  std::vector<choice_image> choices; ///< spec.sampling.n of them
  std::optional<rank_id> rank;       ///< that the attempt was placed on
  incarnation life{};                ///< of that rank
  bool closed = false;
  bool keep = false;                          ///< open_request::keep
  std::uint64_t deadline_at_ms = 0;           ///< [ms] in journal_image::elapsed_ms; 0: none
  std::string note, dedup, dedup_digest;      ///< of open_request, as the next two
  std::uint64_t keep_ms = 0, detached_ms = 0; ///< [ms]
  bool attended = false;                      ///< journal_record::opened::attended
  std::uint64_t opened_at_ms = 0;             ///< [ms] in journal_image::elapsed_ms
  std::uint64_t closed_at_ms = 0;             ///< [ms] as opened_at_ms; if closed
  std::uint32_t cached_tokens = 0;            ///< [tokens]
};

/// Plain data. Applying a log's records in order gives it; snapshot() gives records that give it.
struct journal_image {
  run_identity run;
  std::optional<proto::view_committed> view; ///< the last that was recorded
  std::map<request_id, request_image> requests;
  number_ranges forgotten;      ///< closed requests of which only the number is left
  std::uint64_t number = 0;     ///< of the last record
  std::uint64_t elapsed_ms = 0; ///< [ms] of the last record

  /// @errors corrupt: the record does not fit what was before it (an unknown request, a gap in a
  /// choice's tokens); the image is as before then
  result<void> apply(const framed_record& r);
  /// Records of this state, without numbers: begun first, snapshot_end last.
  std::vector<any_record> snapshot() const;
};

/// What was read of one file.
struct recovered_log {
  journal_image image;
  std::size_t whole_bytes = 0; ///< to cut the file to before anything is appended
  log_end ended = log_end::clean;
  std::string why;       ///< of a torn end
  bool complete = false; ///< it has its snapshot_end: it may be used
};

/// Reads a whole log. @param name  called so in errors
/// @errors corrupt, with name and offset; bad_format: it is no journal, or of another version
result<recovered_log> recover_log(std::span<const std::byte> log, const std::string& name);

} // namespace di::engine
