// SPDX-License-Identifier: Apache-2.0
// Values <-> msgpack bytes: the writer is msgpack-c, the reader pulls one value at a time and
// allocates only for what has arrived.
#pragma once

#include "messaging/base/limits.hpp"
#include "messaging/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace di::wire {

/// Appends msgpack values to a buffer. Used on one thread.
class writer {
public:
  void array(std::size_t elements);
  void map(std::size_t pairs);
  void unsigned_int(std::uint64_t v);
  void signed_int(std::int64_t v);
  void boolean(bool v);
  void float32(float v);
  void float64(double v);
  void string(std::string_view v);
  void nil();
  /// Token ids, the bulk of all bodies: the same bytes as array() and signed_int() for each.
  void ints(std::span<const std::int32_t> v);

  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  std::vector<std::byte> take() noexcept { return std::move(bytes_); }
  /// Called by msgpack-c.
  void write(const char* data, std::size_t size);

private:
  std::vector<std::byte> bytes_;
};

/// Reads msgpack values in order. Never reads past its bytes and never trusts a count: arrays and
/// maps have at least one byte per element left, and memory for decoded elements has a budget.
/// Integers may come in any width that holds them; floats must have the width of their field.
/// @errors of all: bad_format with the offset, limit_exceeded past limits.hpp
class reader {
public:
  explicit reader(std::span<const std::byte> bytes) : bytes_{bytes} {}

  result<std::size_t> array();
  result<std::size_t> map();
  result<std::uint64_t> unsigned_int(std::uint64_t largest);
  result<std::int64_t> signed_int(std::int64_t least, std::int64_t largest);
  result<bool> boolean();
  result<float> float32();
  result<double> float64();
  result<std::string> string();
  /// Takes a nil if one is next.
  bool take_nil() noexcept;

  /// Accounts for memory that decoded elements take.
  result<void> spend(std::size_t bytes);
  result<void> enter();
  void leave() noexcept { --depth_; }

  std::size_t offset() const noexcept { return at_; }
  std::size_t left() const noexcept { return bytes_.size() - at_; }
  /// @errors bad_format if bytes are left over
  result<void> finish() const;

private:
  result<std::uint8_t> head(std::string_view wanted);
  result<std::uint64_t> big_endian(std::size_t size);
  result<std::size_t> counted(std::uint64_t elements, std::size_t bytes_each);

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::size_t spent_bytes_ = 0;
  std::size_t depth_ = 0;
};

} // namespace di::wire
