// SPDX-License-Identifier: Apache-2.0
#include "messaging/wire/pack.hpp"

#include <msgpack/pack.hpp>

#include <bit>
#include <cstring>

namespace di::wire {
namespace {

using packer = msgpack::packer<writer>;

failure wrong(std::string_view wanted, std::uint8_t got, std::size_t offset) {
  return fail(ec::bad_format, "offset {}: expected {}, found msgpack type {:#04x}", offset, wanted,
              got);
}

} // namespace

// --- writer -----------------------------------------------------------------------------------

void writer::write(const char* data, std::size_t size) {
  const auto* from = reinterpret_cast<const std::byte*>(data);
  bytes_.insert(bytes_.end(), from, from + size);
}

void writer::array(std::size_t elements) {
  packer{*this}.pack_array(static_cast<std::uint32_t>(elements));
}

void writer::map(std::size_t pairs) {
  packer{*this}.pack_map(static_cast<std::uint32_t>(pairs));
}

void writer::unsigned_int(std::uint64_t v) {
  packer{*this}.pack_uint64(v);
}

void writer::signed_int(std::int64_t v) {
  packer{*this}.pack_int64(v);
}

void writer::boolean(bool v) {
  v ? packer{*this}.pack_true() : packer{*this}.pack_false();
}

void writer::float32(float v) {
  // Not pack_float: newer msgpack-c may choose an integer form, and NaN bits must survive.
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  char out[5] = {static_cast<char>(0xca)};
  for (int i = 0; i < 4; ++i)
    out[i + 1] = static_cast<char>(bits >> (24 - 8 * i));
  write(out, sizeof out);
}

void writer::float64(double v) {
  std::uint64_t bits = std::bit_cast<std::uint64_t>(v);
  char out[9] = {static_cast<char>(0xcb)};
  for (int i = 0; i < 8; ++i)
    out[i + 1] = static_cast<char>(bits >> (56 - 8 * i));
  write(out, sizeof out);
}

void writer::string(std::string_view v) {
  packer p{*this};
  p.pack_str(static_cast<std::uint32_t>(v.size()));
  p.pack_str_body(v.data(), static_cast<std::uint32_t>(v.size()));
}

void writer::nil() {
  packer{*this}.pack_nil();
}

void writer::ints(std::span<const std::int32_t> v) {
  bytes_.reserve(bytes_.size() + 5 + 3 * v.size());
  packer p{*this};
  p.pack_array(static_cast<std::uint32_t>(v.size()));
  for (const std::int32_t id : v)
    p.pack_int64(id);
}

// --- reader -----------------------------------------------------------------------------------

result<std::uint8_t> reader::head(std::string_view wanted) {
  if (at_ >= bytes_.size())
    return fail(ec::bad_format, "offset {}: expected {}, found the end of the body", at_, wanted);
  return static_cast<std::uint8_t>(bytes_[at_++]);
}

result<std::uint64_t> reader::big_endian(std::size_t size) {
  if (left() < size)
    return fail(ec::bad_format, "offset {}: needs {} bytes, has {}", at_, size, left());
  std::uint64_t v = 0;
  for (std::size_t i = 0; i < size; ++i)
    v = v << 8 | static_cast<std::uint8_t>(bytes_[at_ + i]);
  at_ += size;
  return v;
}

result<std::size_t> reader::counted(std::uint64_t elements, std::size_t bytes_each) {
  if (elements > left() / bytes_each)
    return fail(ec::bad_format, "offset {}: {} elements cannot stand in {} bytes", at_, elements,
                left());
  return static_cast<std::size_t>(elements);
}

result<std::size_t> reader::array() {
  const std::size_t start = at_;
  DI_TRY(const std::uint8_t h, head("an array"));
  if ((h & 0xf0) == 0x90)
    return counted(h & 0x0f, 1);
  if (h != 0xdc && h != 0xdd)
    return wrong("an array", h, start);
  DI_TRY(const std::uint64_t n, big_endian(h == 0xdc ? 2 : 4));
  return counted(n, 1);
}

result<std::size_t> reader::map() {
  const std::size_t start = at_;
  DI_TRY(const std::uint8_t h, head("a map"));
  if ((h & 0xf0) == 0x80)
    return counted(h & 0x0f, 2);
  if (h != 0xde && h != 0xdf)
    return wrong("a map", h, start);
  DI_TRY(const std::uint64_t n, big_endian(h == 0xde ? 2 : 4));
  return counted(n, 2);
}

result<std::uint64_t> reader::unsigned_int(std::uint64_t largest) {
  const std::size_t start = at_;
  DI_TRY(const std::uint8_t h, head("an unsigned integer"));
  std::uint64_t v = h;
  if (h >= 0xcc && h <= 0xcf) {
    DI_TRY(v, big_endian(std::size_t{1} << (h - 0xcc)));
  } else if (h > 0x7f) {
    return wrong("an unsigned integer", h, start);
  }
  if (v > largest)
    return fail(ec::bad_format, "offset {}: {} is larger than {}", start, v, largest);
  return v;
}

result<std::int64_t> reader::signed_int(std::int64_t least, std::int64_t largest) {
  const std::size_t start = at_;
  DI_TRY(const std::uint8_t h, head("an integer"));
  std::int64_t v = 0;
  if (h <= 0x7f) {
    v = h;
  } else if (h >= 0xe0) {
    v = static_cast<std::int8_t>(h);
  } else if (h >= 0xcc && h <= 0xcf) {
    DI_TRY(const std::uint64_t u, big_endian(std::size_t{1} << (h - 0xcc)));
    if (u > static_cast<std::uint64_t>(INT64_MAX))
      return fail(ec::bad_format, "offset {}: {} is larger than {}", start, u, largest);
    v = static_cast<std::int64_t>(u);
  } else if (h >= 0xd0 && h <= 0xd3) {
    const std::size_t size = std::size_t{1} << (h - 0xd0);
    DI_TRY(const std::uint64_t u, big_endian(size));
    const auto shift = static_cast<unsigned>(64 - 8 * size);
    v = static_cast<std::int64_t>(u << shift) >> shift;
  } else {
    return wrong("an integer", h, start);
  }
  if (v < least || v > largest)
    return fail(ec::bad_format, "offset {}: {} is outside [{}, {}]", start, v, least, largest);
  return v;
}

result<bool> reader::boolean() {
  const std::size_t start = at_;
  DI_TRY(const std::uint8_t h, head("a bool"));
  if (h != 0xc2 && h != 0xc3)
    return wrong("a bool", h, start);
  return h == 0xc3;
}

result<float> reader::float32() {
  const std::size_t start = at_;
  DI_TRY(const std::uint8_t h, head("a float"));
  if (h != 0xca)
    return wrong("a float", h, start);
  DI_TRY(const std::uint64_t bits, big_endian(4));
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}

result<double> reader::float64() {
  const std::size_t start = at_;
  DI_TRY(const std::uint8_t h, head("a double"));
  if (h != 0xcb)
    return wrong("a double", h, start);
  DI_TRY(const std::uint64_t bits, big_endian(8));
  return std::bit_cast<double>(bits);
}

result<std::string> reader::string() {
  const std::size_t start = at_;
  DI_TRY(const std::uint8_t h, head("a string"));
  std::uint64_t size = h & 0x1f;
  if (h >= 0xd9 && h <= 0xdb) {
    DI_TRY(size, big_endian(std::size_t{1} << (h - 0xd9)));
  } else if ((h & 0xe0) != 0xa0) {
    return wrong("a string", h, start);
  }
  DI_TRY(const std::size_t taken, counted(size, 1));
  DI_TRY_VOID(spend(taken));
  std::string text(reinterpret_cast<const char*>(bytes_.data() + at_), taken);
  at_ += taken;
  return text;
}

bool reader::take_nil() noexcept {
  if (at_ >= bytes_.size() || bytes_[at_] != std::byte{0xc0})
    return false;
  ++at_;
  return true;
}

result<void> reader::spend(std::size_t bytes) {
  if (bytes > limits::decoded_bytes_max - spent_bytes_)
    return fail(ec::limit_exceeded, "offset {}: decoding needs more than {} bytes", at_,
                limits::decoded_bytes_max);
  spent_bytes_ += bytes;
  return {};
}

result<void> reader::enter() {
  if (depth_ >= limits::depth_max)
    return fail(ec::limit_exceeded, "offset {}: more than {} levels", at_, limits::depth_max);
  ++depth_;
  return {};
}

result<void> reader::finish() const {
  if (left() != 0)
    return fail(ec::bad_format, "{} bytes after the last field", left());
  return {};
}

} // namespace di::wire
