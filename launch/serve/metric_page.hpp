// SPDX-License-Identifier: Apache-2.0
// A page of metrics for Prometheus: families of counters, gauges and histograms, and their text.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace di::serve {

using metric_labels = std::vector<std::pair<std::string, std::string>>;

/// Counts values in buckets; any thread, without locks. Values are whole numbers of a small unit
/// (e.g. [us]), so that the sum is one atomic addition too.
class atomic_histogram {
public:
  /// @param bounds  upper bounds, ascending, in units of the page (e.g. [s])
  /// @param units   whole units that make one unit of the page, e.g. 1e6 for [us] -> [s]
  atomic_histogram(std::vector<double> bounds, double units);
  /// @param times  counts the same value so often
  void observe(std::uint64_t value, std::uint64_t times = 1) noexcept;

  struct reading {
    std::vector<double> bounds;
    std::vector<std::uint64_t> cumulative; ///< [bounds + 1]; the last one is the count
    double sum = 0;                        ///< in units of the page
  };
  reading read() const;

private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> limits_; ///< bounds_ in whole units
  double units_;
  std::vector<std::atomic<std::uint64_t>> counts_; ///< [bounds + 1]
  std::atomic<std::uint64_t> sum_{0};              ///< whole units
};

/// Families in the order in which they were added. Not thread-safe.
class metric_page {
public:
  explicit metric_page(metric_labels common = {}); ///< labels of every series
  ~metric_page();
  metric_page(const metric_page&) = delete;
  metric_page& operator=(const metric_page&) = delete;

  /// Begins a family; the series that follow belong to it. @pre no family has that name yet
  metric_page& counter(std::string name, std::string help);
  metric_page& gauge(std::string name, std::string help);
  metric_page& histogram(std::string name, std::string help);
  bool has(std::string_view name) const; ///< a family of that name was begun
  /// A series of the family begun last, of its kind.
  metric_page& series(double value, metric_labels labels = {});
  metric_page& series(const atomic_histogram::reading& value, metric_labels labels = {});

  /// Prometheus text format 0.0.4. Families without a series are left out.
  std::string text() const;

private:
  struct families;
  std::unique_ptr<families> families_;
  metric_labels common_;
};

} // namespace di::serve
