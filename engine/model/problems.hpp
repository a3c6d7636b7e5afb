// SPDX-License-Identifier: Apache-2.0
// A bounded list of defects, so that a file's user sees all of them at once and not only the first.
#pragma once

#include "messaging/base/result.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace di::engine {

/// Defects in the order found. Keeps the first `kept_max`, counts the rest.
class problem_list {
public:
  static constexpr std::size_t kept_max = 64; ///< [defects] beyond this only the count grows

  template <class... Args>
  void add(ec code, fmt::format_string<Args...> text, Args&&... args) {
    add_text(code, kept_.size() < kept_max ? fmt::format(text, std::forward<Args>(args)...)
                                           : std::string{});
  }
  void add(const error& e) { add_text(e.code, e.what); }

  bool empty() const noexcept { return total_ == 0; }
  std::size_t total() const noexcept { return total_; }
  const std::vector<error>& kept() const noexcept { return kept_; }

  /// All kept defects in one error: the first one's code, one line each. @pre !empty()
  error to_error() const;

private:
  void add_text(ec code, std::string text);

  std::vector<error> kept_;
  std::size_t total_ = 0;
};

} // namespace di::engine
