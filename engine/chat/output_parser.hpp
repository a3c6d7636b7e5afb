// SPDX-License-Identifier: Apache-2.0
// Tells reasoning, answer and tool calls apart in the output of a model.
#pragma once

#include "engine/chat/marker_matcher.hpp"
#include "engine/chat/parse_options.hpp"
#include "engine/chat/tool_arguments.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// What a piece of output is.
enum class piece_kind : std::uint8_t {
  dropped,   ///< shown nowhere: markers, text around calls
  reasoning, ///< text of the reasoning
  answer,    ///< text of the answer
  call,      ///< a call begins; text is its name
  arguments, ///< JSON text of the arguments of the latest call
};

/// A piece of one chunk of output. Of kind dropped: text is empty.
struct output_piece {
  piece_kind kind = piece_kind::dropped;
  std::string text;
  std::uint32_t chunk = 0; ///< that it came with, as the caller counts
};

/// Tokens that are markers when sampled as such; without one its spelling counts.
struct marker_tokens {
  std::optional<token_id> think_end; ///< `</think>`
  std::optional<token_id> dsml;      ///< `｜DSML｜`
};

/// State machine over the output of one choice: reasoning, answer, tool calls; or JSON.
///
/// Unless strict, the pieces joined by kind are the same however the output was
/// divided into chunks. @source prompt encoding specification, section 7
class output_parser {
public:
  output_parser(const parse_options& options, const marker_tokens& tokens);

  /// From now on these are the markers; what was held back goes out.
  void use(const marker_tokens& tokens, std::vector<output_piece>& out);

  /// Ordinary text of a chunk, well-formed UTF-8.
  void text(std::string_view bytes, std::uint32_t chunk, std::vector<output_piece>& out);

  /// A special token. @param spelling  how it is shown where it does not act; may be empty
  void special(token_id id, std::string_view spelling, std::uint32_t chunk,
               std::vector<output_piece>& out);

  /// The chunk ended: what cannot be part of a marker goes out.
  void end_chunk(std::vector<output_piece>& out);

  /// The output ended: all that was held back goes out.
  void finish(std::vector<output_piece>& out);

  /// Index of the stop string that ended it.
  const std::optional<std::uint32_t>& stopped() const noexcept { return stopped_; }

  /// The only call that the answer may have is complete: that ended it.
  bool called() const noexcept { return called_; }

  /// What comes next is reasoning.
  bool in_reasoning() const noexcept { return stage_ == stage::reasoning; }

  /// Nothing of the stage has been shown yet.
  bool at_start() const noexcept { return at_start_ && pending_.empty(); }

private:
  enum class stage : std::uint8_t {
    reasoning,
    answer,
    json_search, // before the document
    json_bare,   // inside, it began with a bracket
    json_fenced, // inside, it began with a fence
    json_after,  // behind the document
    calls,       // inside a block, between calls
    name,        // of a call
    call,        // inside a call, between parameters
    key,         // strict: of a parameter, with its quotes
    attribute,   // strict: between the key and the value
    header,      // not strict: key and attribute
    text_value,
    other_value,
    done, // everything is dropped
    count_,
  };
  enum class action : std::uint8_t {
    stop,
    remove,
    end_reasoning,
    open_block,
    fence,
    bracket,
    end_document,
    open_call,
    end_name,
    open_parameter,
    end_key,
    text_value,
    json_value,
    bare_value,
    end_value,
    end_call,
    next_call,
    end_block,
  };
  struct segment {
    std::uint32_t chunk;
    std::size_t bytes;
  };
  struct stage_markers {
    marker_set set;
    std::vector<action> actions;
    bool built = false;
    void add(marker m, action a);
  };

  void add_stops(stage_markers& to) const;
  void add_block(stage_markers& to) const;
  void build_text_stage(stage_markers& m) const;
  void build_tool_stage(stage_markers& m) const;
  marker dsml(std::string_view before, std::string_view after) const;
  marker think_end() const;
  stage_markers& markers(); // of this stage; made when it is first entered

  void take(output_symbol symbol, std::string_view spelling, std::uint32_t chunk,
            std::vector<output_piece>& out);
  void act(action what, std::size_t index, std::string_view found, std::vector<output_piece>& out);
  bool act_on_call(action what, std::vector<output_piece>& out);
  void act_on_header(action what, std::vector<output_piece>& out);
  void enter(stage next);
  void follow_document(char c, std::vector<output_piece>& out);
  void release(std::size_t bytes, std::vector<output_piece>& out);
  void emit(std::string_view content, std::uint32_t chunk, std::vector<output_piece>& out);
  void add(piece_kind kind, std::string text, std::vector<output_piece>& out);
  void arguments(std::string text, std::vector<output_piece>& out);
  void close_call(std::vector<output_piece>& out);
  void flush(std::vector<output_piece>& out);

  parse_options options_;
  marker_tokens tokens_;
  stage stage_ = stage::answer;
  bool at_start_ = true; // of reasoning or answer: line feeds are dropped
  std::array<stage_markers, static_cast<std::size_t>(stage::count_)> stages_;
  std::string pending_; // of this stage, not gone out yet
  std::vector<segment> segments_;
  std::uint32_t chunk_ = 0; // latest
  // Strict: what the latest marker added goes out with what follows it, if the marker and the
  // possible beginning of another directly behind it came with the same chunk.
  std::vector<output_piece> delayed_;
  bool delays_ = false;
  std::optional<std::uint32_t> stopped_;

  bool in_call_ = false;
  bool called_ = false;
  std::string word_; // name of a call; key and attribute of a parameter; text before JSON
  tool_arguments arguments_;

  std::uint32_t depth_ = 0; // of the JSON document
  bool in_string_ = false;
  bool escaped_ = false;
};

} // namespace di::engine
