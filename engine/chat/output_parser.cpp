// SPDX-License-Identifier: Apache-2.0
// Steps of the output parser.
#include "engine/chat/output_parser.hpp"

#include <algorithm>
#include <utility>

namespace di::engine {

output_parser::output_parser(const parse_options& options, const marker_tokens& tokens)
    : options_{options}, tokens_{tokens}, arguments_{options.strict} {
  switch (options.plain ? start_stage::answer_continuation : options.begins) {
  case start_stage::reasoning:
    stage_ = stage::reasoning;
    break;
  case start_stage::reasoning_continuation:
    stage_ = stage::reasoning;
    at_start_ = false;
    break;
  case start_stage::answer:
    stage_ = options.json ? stage::json_search : stage::answer;
    break;
  case start_stage::answer_continuation:
    stage_ = options.json && !options.plain ? stage::json_search : stage::answer;
    at_start_ = false;
    break;
  case start_stage::tool_calls:
    stage_ = options.tool_calls ? stage::calls : stage::answer;
    break;
  }
}

void output_parser::use(const marker_tokens& tokens, std::vector<output_piece>& out) {
  release(pending_.size(), out);
  stages_ = {};
  tokens_ = tokens;
}

void output_parser::text(std::string_view bytes, std::uint32_t chunk,
                         std::vector<output_piece>& out) {
  for (std::size_t i = 0; i < bytes.size() && stage_ != stage::done; ++i)
    take(output_symbol::byte(bytes[i]), bytes.substr(i, 1), chunk, out);
}

void output_parser::special(token_id id, std::string_view spelling, std::uint32_t chunk,
                            std::vector<output_piece>& out) {
  if (stage_ != stage::done)
    take(output_symbol::special(id), spelling, chunk, out);
}

void output_parser::take(output_symbol symbol, std::string_view spelling, std::uint32_t chunk,
                         std::vector<output_piece>& out) {
  chunk_ = chunk;
  const bool skips = stage_ == stage::reasoning || stage_ == stage::answer;
  if (skips && at_start() && symbol == output_symbol::byte('\n'))
    return;
  pending_ += spelling;
  if (segments_.empty() || segments_.back().chunk != chunk)
    segments_.push_back({chunk, 0});
  segments_.back().bytes += spelling.size();
  const std::optional<marker_set::match> match = markers().set.push(symbol);
  if (!match) {
    if (!options_.strict && (stage_ == stage::json_bare || stage_ == stage::json_fenced)
        && symbol.code < 256)
      follow_document(static_cast<char>(symbol.code), out);
    return;
  }
  const action what = markers().actions[match->index];
  const std::string found = pending_.substr(pending_.size() - match->bytes);
  delays_ = options_.strict && match->bytes <= segments_.back().bytes;
  release(pending_.size() - match->bytes, out);
  flush(out);
  pending_.clear();
  segments_.clear();
  add(piece_kind::dropped, {}, out);
  markers().set.reset();
  act(what, match->index, found, out);
}

void output_parser::enter(stage next) {
  stage_ = next;
  markers().set.reset();
}

void output_parser::act(action what, std::size_t index, std::string_view found,
                        std::vector<output_piece>& out) {
  switch (what) {
  case action::stop:
    stopped_ = static_cast<std::uint32_t>(index);
    if (options_.include_stop)
      add(piece_kind::answer, std::string{found}, out);
    enter(stage::done);
    return;
  case action::remove:
    return;
  case action::end_reasoning:
    at_start_ = true;
    enter(options_.json ? stage::json_search : stage::answer);
    return;
  case action::open_block:
    if (stage_ == stage::json_search && !options_.strict && !word_.empty())
      add(piece_kind::answer, std::exchange(word_, {}), out);
    enter(stage::calls);
    return;
  case action::fence:
    word_.clear();
    enter(stage::json_fenced);
    return;
  case action::bracket:
    word_.clear();
    depth_ = 1;
    add(piece_kind::answer, std::string{found}, out);
    enter(stage::json_bare);
    return;
  case action::end_document:
    enter(stage::json_after);
    return;
  default:
    if (!act_on_call(what, out))
      act_on_header(what, out);
  }
}

bool output_parser::act_on_call(action what, std::vector<output_piece>& out) {
  switch (what) {
  case action::next_call:
  case action::end_call:
    close_call(out);
    called_ = options_.one_call;
    enter(called_ ? stage::done : stage::calls);
    if (called_ || what == action::end_call)
      return true;
    [[fallthrough]];
  case action::open_call:
    word_.clear();
    enter(stage::name);
    return true;
  case action::end_name:
    add(piece_kind::call, std::exchange(word_, {}), out);
    arguments_.begin_call();
    in_call_ = true;
    enter(stage::call);
    return true;
  case action::end_block:
    enter(stage::done);
    return true;
  case action::end_value:
    if (stage_ != stage::header) // there the parameter never had a value: it is left out
      arguments(arguments_.end_value(), out);
    enter(stage::call);
    return true;
  default:
    return false;
  }
}

void output_parser::act_on_header(action what, std::vector<output_piece>& out) {
  if (what == action::open_parameter) {
    word_.clear();
    if (options_.strict)
      arguments(arguments_.begin_key(), out);
    enter(options_.strict ? stage::key : stage::header);
    return;
  }
  if (what == action::end_key) {
    arguments(arguments_.end_key(), out);
    enter(stage::attribute);
    return;
  }
  const value_form form = what == action::text_value   ? value_form::text
                          : what == action::json_value ? value_form::document
                                                       : value_form::unknown;
  std::string added;
  if (!options_.strict) {
    std::string_view name = word_;
    if (name.starts_with('"'))
      name.remove_prefix(1);
    if (form == value_form::unknown)
      name = name.substr(0, name.find("\" string="));
    added = arguments_.key(name);
  }
  added += arguments_.begin_value(form);
  arguments(std::move(added), out);
  enter(form == value_form::text ? stage::text_value : stage::other_value);
}

// Not strict: a JSON document ends with its last bracket, so that nothing around it is left.
void output_parser::follow_document(char c, std::vector<output_piece>& out) {
  if (in_string_) {
    if (escaped_)
      escaped_ = false;
    else if (c == '\\')
      escaped_ = true;
    else if (c == '"')
      in_string_ = false;
    return;
  }
  if (c == '"') {
    in_string_ = depth_ > 0;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if ((c == '}' || c == ']') && depth_ > 0 && --depth_ == 0) {
    release(pending_.size(), out);
    enter(stage::json_after);
  }
}

void output_parser::end_chunk(std::vector<output_piece>& out) {
  std::size_t held = std::min(markers().set.held_bytes(), pending_.size());
  if (!delays_ || held == 0 || held < pending_.size())
    flush(out);
  if (options_.strict && held > 0) {
    // The reference holds back whole chunks.
    std::size_t behind = 0;
    for (std::size_t i = segments_.size(); i > 0 && behind < held; --i)
      behind += segments_[i - 1].bytes;
    held = behind;
  }
  release(pending_.size() - held, out);
}

void output_parser::finish(std::vector<output_piece>& out) {
  release(pending_.size(), out);
  flush(out);
  if (!options_.strict) {
    if (stage_ == stage::json_search && !word_.empty())
      add(piece_kind::answer, std::exchange(word_, {}), out); // no JSON at all: better than nothing
    close_call(out);
  }
  enter(stage::done);
}

void output_parser::release(std::size_t bytes, std::vector<output_piece>& out) {
  if (bytes > 0)
    flush(out);
  std::size_t done = 0;
  std::size_t used = 0;
  for (; used < segments_.size() && done < bytes; ++used) {
    segment& s = segments_[used];
    const std::size_t part = std::min(s.bytes, bytes - done);
    if (part > 0)
      emit(std::string_view{pending_}.substr(done, part), s.chunk, out);
    done += part;
    s.bytes -= part;
    if (s.bytes > 0)
      break;
  }
  segments_.erase(segments_.begin(), segments_.begin() + static_cast<std::ptrdiff_t>(used));
  pending_.erase(0, done);
}

void output_parser::emit(std::string_view content, std::uint32_t chunk,
                         std::vector<output_piece>& out) {
  const auto piece = [&](piece_kind kind, std::string text) {
    if (!text.empty())
      out.push_back({kind, std::move(text), chunk});
  };
  switch (stage_) {
  case stage::reasoning:
    at_start_ = false;
    return piece(piece_kind::reasoning, std::string{content});
  case stage::answer:
    at_start_ = false;
    return piece(piece_kind::answer, std::string{content});
  case stage::json_bare:
  case stage::json_fenced:
    return piece(piece_kind::answer, std::string{content});
  case stage::json_search:
    if (!options_.strict) {
      word_ += content;
      return;
    }
    return piece(piece_kind::answer, " ");
  case stage::json_after:
    return piece(piece_kind::answer, options_.strict ? " " : "");
  case stage::name:
  case stage::header:
    word_ += content;
    return;
  case stage::key:
    return piece(piece_kind::arguments, std::string{content});
  case stage::text_value:
  case stage::other_value:
    return piece(piece_kind::arguments, arguments_.value(content));
  case stage::calls:
  case stage::call:
  case stage::attribute:
  case stage::done:
  case stage::count_:
    return;
  }
}

void output_parser::add(piece_kind kind, std::string text, std::vector<output_piece>& out) {
  (delays_ ? delayed_ : out).push_back({kind, std::move(text), chunk_});
}

void output_parser::flush(std::vector<output_piece>& out) {
  out.insert(out.end(), delayed_.begin(), delayed_.end());
  delayed_.clear();
}

void output_parser::arguments(std::string text, std::vector<output_piece>& out) {
  if (!text.empty())
    add(piece_kind::arguments, std::move(text), out);
}

void output_parser::close_call(std::vector<output_piece>& out) {
  if (std::exchange(in_call_, false))
    arguments(arguments_.end_call(), out);
}

} // namespace di::engine
