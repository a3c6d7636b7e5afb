// SPDX-License-Identifier: Apache-2.0
// How many drafts of which sequence a step verifies: the search of the verify planner, apart from
// where times and survivals come from. Pure.
//
// For K drafts in all, the K largest survivals are best, and because survivals fall along a
// sequence they are a prefix of each. So: sort once, walk over every K (tokens per millisecond has
// many local maxima), take the best. Before that, the uniform plans, in which every sequence gets k
// drafts, are compared without sorting; only if some K could beat the best of them is it looked
// for. @source decode.md A.3.1, A.3.2
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace di::engine {

struct verify_plan {
  /// How the lengths were found.
  enum class kind : std::uint8_t {
    none,    ///< no drafts are verified
    all,     ///< all that could be
    uniform, ///< the same number for each sequence, as far as it has them
    trimmed, ///< the likeliest over all sequences
  };
  std::vector<std::uint32_t> lengths; ///< [offers] drafts to verify, a prefix of each
  std::uint32_t drafts = 0;           ///< sum of lengths
  double tokens = 0;                  ///< expected, one per offer included
  double step_ms = 0;                 ///< predicted, draft pass included; 0: no model yet
  kind how = kind::none;
};
std::string_view to_string(verify_plan::kind how) noexcept;

struct length_rules {
  double gain_min = 0.01;     ///< what a trimmed plan must gain over the best uniform one
  double trim_ms = 0;         ///< [ms] that a trimmed plan costs beyond a uniform one
  double survival_min = 1e-6; ///< drafts below are never verified
};

/// Keeps its memory between runs. Plans with equal rates: fewer drafts. Equal survivals: the
/// smaller position, then the smaller offer.
class length_search {
public:
  /// @param survivals  [offers] of [at least counts[i]]: chance that drafts 0..j are all accepted;
  ///                   NaN and all behind it is not used, a rise counts as level
  /// @param counts     [offers] drafts that may be verified
  /// @param step_ms    > 0; step_ms[K]: the step with K drafts; its size - 1 is the most drafts
  /// @param tokens     expected without drafts
  void run(std::span<const std::span<const float>> survivals, std::span<const std::uint32_t> counts,
           std::span<const double> step_ms, double tokens, const length_rules& rules,
           verify_plan& plan);

private:
  struct slot {
    float survival;
    std::uint32_t offer;
  };
  struct level { ///< a uniform plan
    std::uint32_t drafts;
    double survivals; ///< their sum
  };
  void flatten(std::span<const std::span<const float>> survivals,
               std::span<const std::uint32_t> counts, double survival_min);
  bool could_beat(double rate, std::span<const double> step_ms, double tokens,
                  double trim_ms) const;
  void sort_slots();
  void trim(std::size_t cap, std::span<const double> step_ms, double tokens, double rate,
            double trim_ms, verify_plan& plan);

  std::vector<slot> slots_, spare_;
  std::vector<level> level_; // [k]: k drafts each
  std::vector<std::uint32_t> usable_;
  std::vector<float> last_;
};

} // namespace di::engine
