// SPDX-License-Identifier: Apache-2.0
// Reads golden vectors and compares tensors.
#include "engine/model/golden_vectors.hpp"

#include "engine/model/problems.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace di::engine {

namespace {

double widen(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}
double widen(float x) {
  return x;
}
double widen(std::int32_t x) {
  return x;
}

/// `limit(expected)` is the largest difference allowed at an element.
template <class T, class Limit>
comparison compare(std::span<const T> expected, std::span<const T> found, double elements_share,
                   Limit limit) {
  comparison c;
  c.elements = static_cast<std::int64_t>(expected.size());
  if (expected.size() != found.size()) {
    c.first_bad = 0;
    c.share = std::numeric_limits<double>::infinity();
    return c;
  }
  std::int64_t first_different = -1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = widen(expected[i]);
    const double f = widen(found[i]);
    if (e == f)
      continue;
    const double difference =
        std::isfinite(e - f) ? std::abs(e - f) : std::numeric_limits<double>::infinity();
    ++c.different;
    if (first_different < 0)
      first_different = static_cast<std::int64_t>(i);
    c.largest = std::max(c.largest, difference);
    const double allowed = limit(e);
    const double share =
        allowed > 0 ? difference / allowed : std::numeric_limits<double>::infinity();
    c.share = std::max(c.share, share);
    if (share > 1 && c.first_bad < 0)
      c.first_bad = static_cast<std::int64_t>(i);
  }
  if (elements_share > 0 && c.elements > 0) {
    const double used =
        static_cast<double>(c.different) / (elements_share * static_cast<double>(c.elements));
    c.share = std::max(c.share, used);
    if (used > 1 && c.first_bad < 0)
      c.first_bad = first_different;
  }
  if (c.first_bad >= 0) {
    c.expected = widen(expected[static_cast<std::size_t>(c.first_bad)]);
    c.found = widen(found[static_cast<std::size_t>(c.first_bad)]);
  }
  return c;
}

} // namespace

result<golden_vectors> golden_vectors::open(const std::string& path) {
  golden_vectors golden;
  golden.path_ = path;
  DI_TRY(golden.file_, mapped_file::open(path));
  const auto bytes = golden.file_.bytes();
  problem_list problems;
  const safetensors_header header = parse_safetensors_header(bytes, bytes.size(), path, problems);
  if (!problems.empty())
    return fail(problems.to_error());
  for (const tensor_entry& entry : header.tensors)
    golden.tensors_.emplace(entry.name, tensor_view{entry.type, entry.shape,
                                                    bytes.data() + header.data_start + entry.begin,
                                                    entry.end - entry.begin});
  return golden;
}

const tensor_view* golden_vectors::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

std::string comparison::text(std::int64_t width) const {
  const std::string used = std::isfinite(share)
                               ? fmt::format("{:.0f} % of the tolerance", 100 * share)
                               : "must be equal";
  std::string out = fmt::format("{} of {} elements differ, largest {:.4g} (rms {:.4g}), {}",
                                different, elements, largest, rms, used);
  if (first_bad >= 0)
    out += fmt::format("; first at row {}, column {}: expected {:.8g}, found {:.8g}",
                       first_bad / std::max<std::int64_t>(width, 1),
                       first_bad % std::max<std::int64_t>(width, 1), expected, found);
  return out;
}

comparison compare_bf16(std::span<const std::uint16_t> expected,
                        std::span<const std::uint16_t> found, const tolerance& allowed) {
  double squares = 0;
  for (const std::uint16_t x : expected)
    squares += widen(x) * widen(x);
  const double rms = std::sqrt(squares / std::max<double>(1, static_cast<double>(expected.size())));
  comparison c = compare(expected, found, allowed.elements_share,
                         [&](double) { return allowed.rms_share * rms; });
  c.rms = rms;
  return c;
}

comparison compare_f32(std::span<const float> expected, std::span<const float> found,
                       const tolerance& allowed) {
  // Values that cancel to almost nothing are held to the last digits of 1, not of themselves.
  constexpr double tiny = 1e-7;
  return compare(expected, found, allowed.elements_share,
                 [&](double e) { return allowed.relative * std::abs(e) + tiny; });
}

comparison compare_i32(std::span<const std::int32_t> expected,
                       std::span<const std::int32_t> found) {
  return compare(expected, found, 0, [](double) { return 0.0; });
}

} // namespace di::engine
