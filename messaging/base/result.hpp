// SPDX-License-Identifier: Apache-2.0
// result<T>: a value or an error. Used by everything that can fail in operation; nothing here
// throws.
#pragma once

#include "messaging/base/check.hpp"
#include "messaging/base/error.hpp"

#include <fmt/format.h>

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace di {

/// Holder of an error on its way into a result; made by fail().
struct failure {
  error err;
};

/// Makes an error: `return fail(ec::kv_exhausted, "need {} pages, have {}", n, free);`
template <class... Args>
[[nodiscard]] failure fail(ec code, fmt::format_string<Args...> text, Args&&... args) {
  return failure{error{code, fmt::format(text, std::forward<Args>(args)...)}};
}

/// Passes an existing error on.
[[nodiscard]] inline failure fail(error e) {
  return failure{std::move(e)};
}

/// A T or an error. @pre of value(): ok(); @pre of error(): !ok(). Both are checked.
template <class T>
class [[nodiscard]] result {
public:
  using value_type = T;

  result(T value)
      : state_{std::in_place_index<0>, std::move(value)} {} // NOLINT: converts on return
  result(failure f)
      : state_{std::in_place_index<1>, std::move(f.err)} {} // NOLINT: converts on return

  bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  T& value() & { return checked(), std::get<0>(state_); }
  const T& value() const& { return checked(), std::get<0>(state_); }
  T&& value() && { return checked(), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const di::error& error() const& {
    DI_CHECK(!ok());
    return std::get<1>(state_);
  }
  T value_or(T other) const& { return ok() ? std::get<0>(state_) : std::move(other); }

private:
  void checked() const {
    if (!ok()) [[unlikely]]
      detail::check_failed(__FILE__, __LINE__, "result holds a value",
                           std::get<1>(state_).render());
  }
  std::variant<T, di::error> state_;
};

/// Success without a value, or an error.
template <>
class [[nodiscard]] result<void> {
public:
  using value_type = void;

  result() = default;
  result(failure f) : err_{std::move(f.err)} {} // NOLINT: converts on return

  bool ok() const noexcept { return !err_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  void value() const {
    if (!ok()) [[unlikely]]
      detail::check_failed(__FILE__, __LINE__, "result holds success", err_->render());
  }
  const di::error& error() const& {
    DI_CHECK(!ok());
    return *err_;
  }

private:
  std::optional<di::error> err_;
};

} // namespace di

#define DI_CONCAT_IMPL(a, b) a##b
#define DI_CONCAT(a, b) DI_CONCAT_IMPL(a, b)

/// Evaluates a result; on error returns it, else binds the value: `DI_TRY(auto x, f());`
#define DI_TRY(declaration, expression)                                                            \
  auto DI_CONCAT(di_try_, __LINE__) = (expression);                                                \
  if (!DI_CONCAT(di_try_, __LINE__).ok()) [[unlikely]]                                             \
    return ::di::fail(DI_CONCAT(di_try_, __LINE__).error());                                       \
  declaration = std::move(DI_CONCAT(di_try_, __LINE__)).value()

/// Evaluates a result<void>; on error returns it.
#define DI_TRY_VOID(expression)                                                                    \
  if (auto di_try_void_ = (expression); !di_try_void_.ok()) [[unlikely]]                           \
  return ::di::fail(di_try_void_.error())
