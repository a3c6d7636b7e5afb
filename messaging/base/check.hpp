// SPDX-License-Identifier: Apache-2.0
// Invariant checks that stay on in production: a broken one ends the process, its supervisor
// outside restarts it.
#pragma once

#include <string>

namespace di::detail {

[[noreturn]] void check_failed(const char* file, int line, const char* text,
                               const std::string& values);

template <class A, class B>
std::string two_values(const A& a, const B& b) {
  if constexpr (requires {
                  std::to_string(a);
                  std::to_string(b);
                })
    return std::to_string(a) + " and " + std::to_string(b);
  else
    return {};
}

} // namespace di::detail

/// Ends the process with place and expression if `condition` is false.
#define DI_CHECK(condition)                                                                        \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::di::detail::check_failed(__FILE__, __LINE__, #condition, {});                              \
  } while (false)

/// Like DI_CHECK(a == b), and prints both values.
#define DI_CHECK_EQ(a, b)                                                                          \
  do {                                                                                             \
    const auto& di_a_ = (a);                                                                       \
    const auto& di_b_ = (b);                                                                       \
    if (!(di_a_ == di_b_)) [[unlikely]]                                                            \
      ::di::detail::check_failed(__FILE__, __LINE__, #a " == " #b,                                 \
                                 ::di::detail::two_values(di_a_, di_b_));                          \
  } while (false)

/// Marks a place that no execution reaches.
#define DI_UNREACHABLE() ::di::detail::check_failed(__FILE__, __LINE__, "unreachable", {})
