// SPDX-License-Identifier: Apache-2.0
// Test-only reader of golden safetensors files, and comparison that names the first bad coordinate
// and the share of the tolerance that was used.
#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace di::testing {

/// One tensor: dtype name of the file, shape, raw little-endian bytes.
struct golden_tensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  std::int64_t count() const {
    std::int64_t n = 1;
    for (const std::int64_t s : shape)
      n *= s;
    return n;
  }

  /// The elements; T has the element's width (bf16 is read as uint16_t).
  template <class T>
  std::vector<T> as() const {
    std::vector<T> out(static_cast<std::size_t>(count()));
    if (out.size() * sizeof(T) != bytes.size())
      throw std::runtime_error(name + ": " + dtype + " is not read with this element width");
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
};

/// A whole safetensors file in memory. Throws std::runtime_error naming the file (a test fails).
class golden_file {
public:
  explicit golden_file(const std::string& path) : path_(path) {
    std::ifstream in(path, std::ios::binary);
    if (!in)
      throw std::runtime_error(path + ": cannot be opened");
    const std::vector<char> all{std::istreambuf_iterator<char>(in), {}};
    std::uint64_t header = 0;
    if (all.size() < sizeof header)
      throw std::runtime_error(path + ": too short");
    std::memcpy(&header, all.data(), sizeof header);
    if (header > all.size() - sizeof header)
      throw std::runtime_error(path + ": header longer than the file");
    const auto h = static_cast<std::ptrdiff_t>(header);
    const auto json = nlohmann::json::parse(all.begin() + 8, all.begin() + 8 + h);
    for (const auto& [name, entry] : json.items()) {
      if (name == "__metadata__")
        continue;
      golden_tensor t;
      t.name = name;
      t.dtype = entry.at("dtype").get<std::string>();
      t.shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto from = entry.at("data_offsets").at(0).get<std::size_t>() + 8 + header;
      const auto to = entry.at("data_offsets").at(1).get<std::size_t>() + 8 + header;
      if (from > to || to > all.size())
        throw std::runtime_error(path + ": " + name + " lies outside the file");
      t.bytes.resize(to - from);
      std::memcpy(t.bytes.data(), all.data() + from, to - from);
      tensors_.emplace(name, std::move(t));
    }
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }

  const golden_tensor& at(const std::string& name) const {
    const auto it = tensors_.find(name);
    if (it == tensors_.end())
      throw std::runtime_error(path_ + ": no tensor " + name);
    return it->second;
  }

  template <class T>
  std::vector<T> get(const std::string& name) const {
    return at(name).as<T>();
  }

  std::int64_t dim(const std::string& name, std::size_t axis) const {
    return at(name).shape.at(axis);
  }

private:
  std::string path_;
  std::map<std::string, golden_tensor> tensors_;
};

/// "[2, 0, 17]" of flat index i in a shape.
inline std::string coordinate(const std::vector<std::int64_t>& shape, std::int64_t i) {
  std::vector<std::int64_t> c(shape.size());
  for (std::size_t a = shape.size(); a-- > 0;) {
    c[a] = i % shape[a];
    i /= shape[a];
  }
  std::string s = "[";
  for (std::size_t a = 0; a < c.size(); ++a)
    s += (a == 0 ? "" : ", ") + std::to_string(c[a]);
  return s + "]";
}

inline float bf16_value(std::uint16_t b) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16);
}

/// Distance in units in the last place of bfloat16; NaN equals NaN, +0 equals -0.
inline double bf16_ulps(std::uint16_t a, std::uint16_t b) {
  const float x = bf16_value(a), y = bf16_value(b);
  if (std::isnan(x) || std::isnan(y))
    return std::isnan(x) && std::isnan(y) ? 0 : std::numeric_limits<double>::infinity();
  const auto rank = [](std::uint16_t v) {
    const int magnitude = v & 0x7fff;
    return (v & 0x8000) != 0 ? -magnitude : magnitude;
  };
  return std::abs(rank(a) - rank(b));
}

/// What was compared: worst share of the tolerance, where, and how many elements broke it.
struct comparison {
  std::string tensor;
  std::int64_t count = 0, bad = 0, first_bad = -1, worst_at = 0;
  double worst = 0; ///< 1 = the whole tolerance
  std::string where;

  bool ok() const { return bad == 0; }
};

/// Compares elementwise; share(i) is the used share of the tolerance of element i.
template <class Share>
comparison compare(const golden_tensor& want, std::int64_t have_count, Share share) {
  comparison c;
  c.tensor = want.name;
  c.count = want.count();
  if (have_count != c.count) {
    c.bad = c.count;
    c.where = "sizes differ: " + std::to_string(have_count) + " for " + std::to_string(c.count);
    return c;
  }
  for (std::int64_t i = 0; i < c.count; ++i) {
    const double s = share(static_cast<std::size_t>(i));
    if (!(s <= 1.0)) {
      if (c.bad++ == 0) {
        c.first_bad = i;
        c.where = coordinate(want.shape, i);
      }
    }
    if (!(s <= c.worst)) {
      c.worst = s;
      c.worst_at = i;
    }
  }
  return c;
}

inline ::testing::AssertionResult verdict(const comparison& c) {
  if (c.ok())
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << c.tensor << ": " << c.bad << " of " << c.count
         << " elements out of tolerance, first at " << c.where << ", worst uses " << c.worst
         << " of the tolerance (flat index " << c.worst_at << ")";
}

/// @param ulps  allowed distance in bf16 units in the last place; 0 = equal values
inline ::testing::AssertionResult near_bf16(const golden_tensor& want,
                                            const std::vector<std::uint16_t>& have, double ulps) {
  const auto w = want.as<std::uint16_t>();
  return verdict(compare(want, std::ssize(have), [&](std::size_t i) {
    const double d = bf16_ulps(w[i], have[i]);
    return ulps > 0 ? d / ulps : (d == 0 ? 0.0 : std::numeric_limits<double>::infinity());
  }));
}

/// @param rel  |have - want| <= rel * |want| (or rel * floor for tiny ones)
inline ::testing::AssertionResult
near_f32(const golden_tensor& want, const std::vector<float>& have, double rel, double floor = 0) {
  const auto w = want.as<float>();
  return verdict(compare(want, std::ssize(have), [&](std::size_t i) {
    if (w[i] == have[i])
      return 0.0;
    return std::abs(static_cast<double>(have[i]) - w[i])
           / (rel * std::max(std::abs(static_cast<double>(w[i])), floor));
  }));
}

/// Equal elements, any integer type.
template <class T>
::testing::AssertionResult equal(const golden_tensor& want, const std::vector<T>& have) {
  const auto w = want.as<T>();
  return verdict(compare(want, std::ssize(have), [&](std::size_t i) {
    return w[i] == have[i] ? 0.0 : std::numeric_limits<double>::infinity();
  }));
}

} // namespace di::testing
