// SPDX-License-Identifier: Apache-2.0
// The automaton is a trie with suffix links; children are lists, as stop strings are few and short.
#include "engine/sampling/stop.hpp"

#include <algorithm>

namespace di::engine {

// ---- automaton ----

stop_automaton::stop_automaton(std::span<const std::string> strings) {
  for (std::uint32_t number = 0; number < strings.size(); ++number) {
    std::uint32_t at = 0;
    for (const char byte : strings[number]) {
      std::uint32_t to = child(at, byte);
      if (to == none) {
        to = static_cast<std::uint32_t>(nodes_.size());
        nodes_.push_back({none, nodes_[at].first_child, 0, nodes_[at].depth + 1, none, byte});
        nodes_[at].first_child = to;
      }
      at = to;
    }
    if (nodes_[at].match == none) // of equal strings the first one is reported
      nodes_[at].match = number;
  }
  link();
}

std::uint32_t stop_automaton::child(std::uint32_t of, char byte) const noexcept {
  std::uint32_t at = nodes_[of].first_child;
  while (at != none && nodes_[at].byte != byte)
    at = nodes_[at].sibling;
  return at;
}

// Breadth first: a node's suffix is shorter, so it is linked already. A node without a string of
// its own takes over the longest one that ends in its suffix.
void stop_automaton::link() {
  std::deque<std::uint32_t> queue;
  for (std::uint32_t c = nodes_[0].first_child; c != none; c = nodes_[c].sibling)
    queue.push_back(c);
  while (!queue.empty()) {
    const std::uint32_t at = queue.front();
    queue.pop_front();
    if (nodes_[at].match == none)
      nodes_[at].match = nodes_[nodes_[at].shorter].match;
    for (std::uint32_t c = nodes_[at].first_child; c != none; c = nodes_[c].sibling) {
      nodes_[c].shorter = next(nodes_[at].shorter, nodes_[c].byte);
      queue.push_back(c);
    }
  }
}

std::uint32_t stop_automaton::next(std::uint32_t state, char byte) const noexcept {
  for (;;) {
    if (const std::uint32_t to = child(state, byte); to != none)
      return to;
    if (state == 0)
      return 0;
    state = nodes_[state].shorter;
  }
}

stop_rules::stop_rules(const sampling_params& params, std::span<const token_id> eos_ids)
    : end_ids{params.stop_token_ids},
      strings{params.stop},
      include{params.include_stop_str},
      min_tokens{params.min_tokens},
      max_tokens{params.max_tokens},
      automaton{params.stop} {
  if (!params.ignore_eos)
    end_ids.insert(end_ids.end(), eos_ids.begin(), eos_ids.end());
  std::sort(end_ids.begin(), end_ids.end());
}

// ---- watch ----

stop_delta stop_watch::push(token_id id, std::string_view bytes) {
  stop_delta out;
  if (finished())
    return out;
  const bool suppressed = tokens_ < rules_->min_tokens;
  if (!suppressed && std::binary_search(rules_->end_ids.begin(), rules_->end_ids.end(), id)) {
    end_with(id, bytes, out);
    return out;
  }
  ++tokens_;
  std::string text;
  text_.push(bytes, text);
  ends_.push_back(sent_ + held_.size() + text.size());
  if (suppressed)
    held_ += text;
  else
    scan(text, out);
  if (finished())
    return out;
  if (tokens_ >= rules_->max_tokens)
    return finish(finish_reason::length);
  send_certain(out);
  return out;
}

void stop_watch::end_with(token_id id, std::string_view bytes, stop_delta& out) {
  std::string text;
  text_.flush(text);
  scan(text, out); // U+FFFD of an unfinished character may end a stop string
  if (finished())
    return;
  ++tokens_;
  if (rules_->include) // the token's own text is not searched: it ended the completion already
    held_ += utf8_lossy(bytes);
  ends_.push_back(sent_ + held_.size());
  out.stop_id = id;
  close(finish_reason::stop, out);
}

void stop_watch::scan(std::string_view text, stop_delta& out) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    held_ += text[i];
    state_ = rules_->automaton.next(state_, text[i]);
    if (const auto string = rules_->automaton.match(state_)) {
      cut(sent_ + held_.size(), *string, out);
      return;
    }
  }
}

// A stop string ends at text offset `match_end`, which is where held_ ends.
void stop_watch::cut(std::size_t match_end, std::uint32_t string, stop_delta& out) {
  const std::size_t match_begin = match_end - rules_->strings[string].size();
  const std::size_t text_end = rules_->include ? match_end : match_begin;
  const std::size_t last_byte = rules_->include ? match_end - 1 : match_begin;
  held_.resize(text_end - sent_);
  const auto end_before_last = [&] {
    return ends_.size() > 1 ? ends_[ends_.size() - 2] : released_end_;
  };
  while (!ends_.empty() && end_before_last() > last_byte) { // an earlier token holds that byte
    ends_.pop_back();
    --tokens_;
  }
  out.stop_string = string;
  close(finish_reason::stop, out);
}

// A beginning of a stop string at the end of the text holds back that text and the tokens behind
// its first byte.
void stop_watch::send_certain(stop_delta& out) {
  const std::size_t kept_back = rules_->automaton.held_bytes(state_);
  const std::size_t certain = held_.size() - kept_back;
  out.text += held_.substr(0, certain);
  held_.erase(0, certain);
  sent_ += certain;
  // A match would begin at sent_ or later, so a token stays if no earlier one reaches beyond sent_.
  while (!ends_.empty() && (rules_->include || released_end_ <= sent_)) {
    released_end_ = ends_.front();
    ends_.pop_front();
    ++out.tokens;
  }
}

stop_delta stop_watch::finish(finish_reason reason) {
  stop_delta out;
  if (finished())
    return out;
  std::string text;
  text_.flush(text);
  if (tokens_ > rules_->min_tokens)
    scan(text, out);
  else
    held_ += text;
  if (!finished())
    close(reason, out);
  return out;
}

void stop_watch::close(finish_reason reason, stop_delta& out) {
  out.text += held_;
  sent_ += held_.size();
  held_.clear();
  out.tokens += static_cast<std::uint32_t>(ends_.size());
  ends_.clear();
  out.finish = finish_ = reason;
}

} // namespace di::engine
