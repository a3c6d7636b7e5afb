// SPDX-License-Identifier: Apache-2.0
// Milliseconds of a step by its rows (or of a draft pass by its sequences): profiled at start,
// refined by every step. The planner's steps-per-second table.
//
// Buckets: each size up to 8, then four per octave. A bucket holds the mean size and the level of
// what fell into it. Between buckets the table interpolates; sizes up to `padded_to` take the next
// bucket's value instead (a step function, for devices that pad to captured sizes). Beyond the
// last bucket the slope of the upper half goes on. A running maximum over sizes makes it monotone:
// noise must not make a larger step look cheaper.
//
// A level is relative to a common speed that every observation moves a little. A machine that slows
// down as a whole so moves buckets that have not been seen for long.
//
// Why there is no term for the expected number of distinct experts: it is a function of the rows,
// and each bucket has measured it, flattening included. It could help beyond the last bucket only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace di::engine {

struct step_table_options {
  std::uint32_t padded_to = 0; ///< [rows] step function up to here
  double learn = 0.05;         ///< share by which an observation moves its bucket
  double learn_speed = 0.1;    ///< and the common speed
  double clip_spreads = 3;     ///< an observation further off than so many mean deviations counts
                               ///< as this far
};

class step_table {
public:
  static constexpr std::size_t buckets = 64;

  explicit step_table(step_table_options options = {});

  /// Sets a bucket: the median of a few timed dummy steps. Bad values are ignored.
  void profile(std::uint32_t rows, double ms) noexcept;
  /// A measured step; fills an empty bucket.
  void observe(std::uint32_t rows, double ms) noexcept;

  /// Buckets with a value. Below two the slope is unknown.
  std::size_t known() const noexcept { return known_; }
  /// [ms] monotone in rows, >= 0; 0 for 0 rows or an empty table.
  double ms(std::uint32_t rows) const noexcept;
  /// out[i] = ms(first + i), in one walk.
  void fill(std::uint32_t first, std::span<double> out) const noexcept;
  /// "8: 1.31 ms, 16: 1.90 ms, ..." without empty buckets.
  std::string to_string() const;

private:
  struct bucket {
    double rows = 0, level = 0; ///< mean size; [ms] / speed
    bool known = false;
  };
  static std::size_t index(std::uint32_t rows) noexcept;
  void rebuild() noexcept;

  step_table_options options_;
  std::array<bucket, buckets> buckets_{};
  std::vector<bucket> nodes_; ///< known ones, ascending, monotone; of ms()
  double speed_ = 1;
  double spread_ = 0.1;  // [log] mean deviation of observations, clipped
  double slope_ = 0;     // [ms/row] beyond the last node
  double stair_end_ = 0; // [ms] at padded_to
  std::size_t known_ = 0;
};

} // namespace di::engine
