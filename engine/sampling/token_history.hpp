// SPDX-License-Identifier: Apache-2.0
// How often each token stands in a prompt and its output: all that the penalties remember.
#pragma once

#include "messaging/base/ids.hpp"

#include <cstdint>
#include <span>
#include <unordered_map>

namespace di::engine {

/// Token counts of one choice of one request. Only needed where sampler::needs_history() says so.
///
/// Plain value, one owner. Order of tokens does not matter, so a rollback is a pop() and a
/// preempted request is rebuilt from its ids.
class token_history {
public:
  struct counts {
    std::uint32_t prompt = 0, output = 0;
  };

  void add_prompt(std::span<const token_id> ids) {
    for (const token_id id : ids)
      ++counts_[id].prompt;
  }
  void push(token_id id) { ++counts_[id].output; }

  /// Takes back one push of this id. @pre it was pushed
  void pop(token_id id) {
    const auto it = counts_.find(id);
    if (--it->second.output == 0 && it->second.prompt == 0)
      counts_.erase(it);
  }

  counts of(token_id id) const {
    const auto it = counts_.find(id);
    return it == counts_.end() ? counts{} : it->second;
  }
  const std::unordered_map<token_id, counts>& all() const noexcept { return counts_; }

private:
  std::unordered_map<token_id, counts> counts_;
};

} // namespace di::engine
