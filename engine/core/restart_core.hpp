// SPDX-License-Identifier: Apache-2.0
// Decides what a supervisor does when a child ends: whom to stop, whom to start again and when, and
// when to give up. Knows neither actors nor processes, only numbers of children.
//
//   state      on_down (own death)          on_down (asked to stop)   on_due
//   running    budget left: waiting,        -                         -
//              group members: stopping
//              budget used up: down,
//              all others: stopping
//   stopping   -                            waiting, or down if all   -
//                                           are to end
//   waiting    -                            -                         running (start) once nobody
//   is
//                                                                     stopping and its time has
//                                                                     come
//   down       -                            -                         -
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

namespace di::engine {

/// Who is started again with a child that has died.
enum class restart_strategy : std::uint8_t {
  one_for_one,  ///< it alone
  one_for_all,  ///< all children
  rest_for_one, ///< it and those after it in the list
};

/// How restarts are rationed.
enum class restart_budget : std::uint8_t {
  window, ///< at most restarts_max in any span of `window`
  bucket, ///< a bucket of restarts_max that fills up evenly in `window`
};

struct restart_rule {
  restart_strategy strategy = restart_strategy::one_for_one;
  restart_budget budget = restart_budget::window;
  std::uint32_t restarts_max = 5; ///< 0: the first death gives up
  duration window = std::chrono::seconds{60};
  duration backoff_first{}; ///< wait before a restart; doubles with each death in a row
  duration backoff_max{};   ///< up to here; then up to a quarter is added by chance
};

enum class child_state : std::uint8_t { running, stopping, waiting, down };
std::string_view to_string(child_state s) noexcept;
/// "one_for_one" and so on. @errors bad_config
result<restart_strategy> parse_strategy(std::string_view name);

/// What the supervisor must do next, in order.
struct restart_action {
  enum class kind : std::uint8_t { start, stop, give_up };
  kind what = kind::start;
  std::size_t child = 0;       ///< index in the list; give_up: whose budget is used up
  std::uint64_t life = 0;      ///< start: the new life, from 1; stop: the life that ends
  std::optional<error> reason; ///< give_up only
  friend bool operator==(const restart_action&, const restart_action&) = default;
};

/// One supervisor's book. A start that fails is reported as on_down of the life that it was to be.
class restart_core {
public:
  /// @param seed  of the jitter
  restart_core(std::vector<restart_rule> children, std::uint64_t seed);

  /// Starts all, first to last.
  std::vector<restart_action> start(instant now);
  /// A life has ended, on its own or as asked. Ends of other lives are counted and ignored.
  std::vector<restart_action> on_down(std::size_t child, std::uint64_t life, const error& reason,
                                      instant now);
  std::vector<restart_action> on_due(instant now);
  /// When on_due() has work next; nothing while it waits for a stop.
  std::optional<instant> next_due() const;
  /// Ends all for good, last to first; no give_up follows.
  std::vector<restart_action> stop();

  std::size_t size() const noexcept { return children_.size(); }
  child_state state(std::size_t child) const { return children_.at(child).state; }
  std::uint64_t life(std::size_t child) const { return children_.at(child).life; }
  std::uint64_t restarts(std::size_t child) const { return children_.at(child).restarts; }
  bool all_down() const noexcept;
  std::uint64_t stale_downs() const noexcept { return stale_downs_; }
  /// Checks that the book is consistent.
  void check() const;

private:
  struct entry {
    restart_rule rule;
    child_state state = child_state::down;
    std::uint64_t life = 0, restarts = 0;
    instant started{}, ready{};
    std::deque<instant> recent; ///< restarts inside the window
    duration credit{};          ///< of the bucket; one restart costs window / restarts_max
    instant credit_at{};
    std::uint32_t deaths_in_row = 0;
  };

  bool spend(entry& e, instant now);
  duration backoff(entry& e, instant now);
  void give_up(std::size_t child, const error& reason);
  void end_all();
  void plan_group(std::size_t child, instant ready);
  void stop_marked(std::vector<restart_action>& out);
  std::vector<restart_action> proceed(instant now);
  bool anyone(child_state s) const noexcept;
  std::uint64_t random();

  std::vector<entry> children_;
  std::vector<bool> marked_; ///< running, and to be stopped in this round
  std::uint64_t seed_ = 0, stale_downs_ = 0;
  bool ending_ = false;
  std::size_t culprit_ = 0;
  std::optional<error> gave_up_; ///< until it is told
};

} // namespace di::engine
