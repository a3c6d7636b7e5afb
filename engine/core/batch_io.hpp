// SPDX-License-Identifier: Apache-2.0
// The files of `dilaunch run`: a line of prompts in, a line of completions out. Pure; lines are
// untrusted.
#pragma once

#include "engine/core/gateway_core.hpp"
#include "engine/core/speculation_choice.hpp"
#include "engine/text/tokenizer.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/sampling.hpp"

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// [bytes] of one line of prompts.
inline constexpr std::size_t batch_line_bytes_max = std::size_t{16} << 20;
/// [bytes] of a tenant's name.
inline constexpr std::size_t tenant_bytes_max = 64;
/// [tokens] if a line has no max_tokens, or what the context leaves if that is less.
inline constexpr std::uint32_t batch_max_tokens_default = 256;

/// Longest `prefix_salt`. [bytes]
inline constexpr std::size_t prefix_salt_bytes_max = 256;

/// One line as written. Exactly one of prompt and prompt_ids is there.
struct batch_line {
  std::string id; ///< JSON of the id: a string or a number; empty if there is none
  std::optional<std::string> prompt;
  std::optional<std::vector<token_id>> prompt_ids;
  bool special_tokens = false; ///< special spellings in the prompt count
  bool has_seed = false, has_max_tokens = false;
  std::optional<speculation_choice> speculation;
  std::optional<proto::prefix_mode> prefix;
  std::string prefix_salt; ///< only lines with the same one share cached prefixes
  std::optional<proto::prefill_mode> prefill;
  std::int32_t priority = 0;     ///< [-10, 10]
  std::uint64_t deadline_ms = 0; ///< [ms]; 0: none
  std::string tenant;
  submit_options submit;
  proto::sampling_params sampling; ///< ranges not yet checked
};

/// Reads one line.
///
/// @param id      receives the line's id as JSON even if the rest is refused
/// @errors        bad_format (no JSON, no object; says the column), bad_argument (a field of the
///                wrong type or range, an unknown or repeated key; begins with its name),
///                limit_exceeded
result<batch_line> parse_batch_line(std::string_view line, std::string& id);

/// What a line that does not say otherwise gets. Speculation is the rank's matter.
struct request_defaults {
  proto::prefix_mode prefix = proto::prefix_mode::off;
  proto::prefill_mode prefill = proto::prefill_mode::full;
  std::uint32_t keep_rows = 0; ///< [rows] of compact prefill; 0: the model's default
};

/// What requests of a batch must fit.
struct batch_limits {
  const tokenizer* words = nullptr;  ///< null: only prompt_ids
  std::size_t vocab = 0;             ///< [tokens]
  std::uint32_t context_tokens = 0;  ///< [tokens]
  std::uint32_t drafts = drafts_max; ///< [drafts] that the model makes; 0: none
  request_defaults defaults{};
};

/// A line made ready: tokenized, ranges checked, seed drawn.
/// @param draw_seed  called if the line has no seed
/// @errors           those of the sampler's checks; context_exceeded; bad_format (no UTF-8)
result<proto::request_spec> prepare_request(batch_line line, request_id number,
                                            const batch_limits& limits,
                                            const std::function<std::uint64_t()>& draw_seed);

/// One line of a prompts file: a request, or why it is none.
struct batch_entry {
  std::size_t line = 0; ///< from 1
  std::string id;       ///< JSON
  std::optional<error> refused;
  std::size_t request = 0;         ///< index into batch::requests if not refused
  std::size_t prompt_tokens = 0;   ///< [tokens]
  proto::sampling_params sampling; ///< as it was submitted
};

struct batch {
  std::vector<batch_entry> entries;          ///< in order of lines; blank lines are left out
  std::vector<proto::request_spec> requests; ///< numbered from 1
  std::vector<submit_options> submit;        ///< as requests
};

/// Reads a whole prompts file; a bad line becomes a refused entry.
batch read_batch(std::string_view text, const batch_limits& limits, address gateway,
                 const std::function<std::uint64_t()>& draw_seed);

/// The output line of a finished request, without a line end. With one choice its fields stand in
/// the line itself, with more in "choices".
std::string render_completion(const batch_entry& entry, std::span<const collected_choice> choices,
                              const tokenizer* words, std::span<const token_id> eos_ids);
/// The output line of a refused entry.
std::string render_refusal(const batch_entry& entry);

/// The text of a choice's answer, cut at a stop string as its request says.
std::string completion_text(const proto::sampling_params& sampling,
                            std::span<const token_id> tokens, const tokenizer* words,
                            std::span<const token_id> eos_ids);

} // namespace di::engine
