// SPDX-License-Identifier: Apache-2.0
// The one place that sees prometheus-cpp: its metric families, and its text serializer.
#include "launch/serve/metric_page.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sstream>

namespace di::serve {

atomic_histogram::atomic_histogram(std::vector<double> bounds, double units)
    : bounds_{std::move(bounds)}, units_{units}, counts_(bounds_.size() + 1) {
  for (const double b : bounds_)
    limits_.push_back(static_cast<std::uint64_t>(std::llround(b * units)));
}

void atomic_histogram::observe(std::uint64_t value, std::uint64_t times) noexcept {
  const auto at = std::lower_bound(limits_.begin(), limits_.end(), value) - limits_.begin();
  counts_[static_cast<std::size_t>(at)].fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(value * times, std::memory_order_relaxed);
}

atomic_histogram::reading atomic_histogram::read() const {
  reading r;
  r.bounds = bounds_;
  std::uint64_t below = 0;
  for (const auto& c : counts_)
    r.cumulative.push_back(below += c.load(std::memory_order_relaxed));
  r.sum = static_cast<double>(sum_.load(std::memory_order_relaxed)) / units_;
  return r;
}

struct metric_page::families {
  std::vector<prometheus::MetricFamily> all;
  void begin(std::string name, std::string help, prometheus::MetricType type) {
    all.push_back({std::move(name), std::move(help), type, {}});
  }
};

metric_page::metric_page(metric_labels common)
    : families_{std::make_unique<families>()}, common_{std::move(common)} {
}

metric_page::~metric_page() = default;

metric_page& metric_page::counter(std::string name, std::string help) {
  families_->begin(std::move(name), std::move(help), prometheus::MetricType::Counter);
  return *this;
}

metric_page& metric_page::gauge(std::string name, std::string help) {
  families_->begin(std::move(name), std::move(help), prometheus::MetricType::Gauge);
  return *this;
}

metric_page& metric_page::histogram(std::string name, std::string help) {
  families_->begin(std::move(name), std::move(help), prometheus::MetricType::Histogram);
  return *this;
}

bool metric_page::has(std::string_view name) const {
  return std::any_of(families_->all.begin(), families_->all.end(),
                     [&](const auto& f) { return f.name == name; });
}

namespace {

std::vector<prometheus::ClientMetric::Label> labels_of(const metric_labels& common,
                                                       metric_labels own) {
  std::vector<prometheus::ClientMetric::Label> all;
  for (const auto& [name, value] : common)
    all.push_back({name, value});
  for (auto& [name, value] : own)
    all.push_back({std::move(name), std::move(value)});
  return all;
}

} // namespace

metric_page& metric_page::series(double value, metric_labels labels) {
  prometheus::ClientMetric m;
  m.label = labels_of(common_, std::move(labels));
  auto& family = families_->all.back();
  if (family.type == prometheus::MetricType::Counter)
    m.counter.value = value;
  else
    m.gauge.value = value;
  family.metric.push_back(std::move(m));
  return *this;
}

metric_page& metric_page::series(const atomic_histogram::reading& value, metric_labels labels) {
  prometheus::ClientMetric m;
  m.label = labels_of(common_, std::move(labels));
  for (std::size_t i = 0; i < value.bounds.size(); ++i)
    m.histogram.bucket.push_back({value.cumulative[i], value.bounds[i]});
  m.histogram.bucket.push_back({value.cumulative.back(), std::numeric_limits<double>::infinity()});
  m.histogram.sample_count = value.cumulative.back();
  m.histogram.sample_sum = value.sum;
  families_->all.back().metric.push_back(std::move(m));
  return *this;
}

std::string metric_page::text() const {
  std::vector<prometheus::MetricFamily> said;
  for (const auto& f : families_->all)
    if (!f.metric.empty())
      said.push_back(f);
  std::ostringstream out;
  prometheus::TextSerializer{}.Serialize(out, said);
  return std::move(out).str();
}

} // namespace di::serve
