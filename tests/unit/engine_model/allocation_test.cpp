// SPDX-License-Identifier: Apache-2.0
// A step of a size that was seen before allocates nothing. A program of its own: it counts every
// operator new of the process.
#include "engine/model/draft_runner.hpp"
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::int64_t> allocations{0};
} // namespace

// Not inlined: the compiler would see free() on what some other operator new returned and complain.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes))
    return memory;
  throw std::bad_alloc{};
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const auto align = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align))
    return memory;
  throw std::bad_alloc{};
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace di::engine {
namespace {

TEST(step_memory, a_decode_step_allocates_nothing_once_warm) {
  const auto model = di::testing::load_model(di::testing::preset_checkpoint("tiny"));
  di::testing::test_engine engine{*model, 2};
  const std::vector<token_id> prompt(40, 7);
  const auto a = engine.sequence();
  const auto b = engine.sequence();
  engine.run(*a, prompt);
  engine.run(*b, prompt);
  std::vector<expert_job> jobs;
  std::int64_t counted = 0;
  const std::array rows{token_id{9}};
  for (int step = 0; step < 12; ++step) {
    std::array<step_segment, 2> segments;
    for (std::size_t i = 0; i < 2; ++i) {
      segments[i].sequence = i == 0 ? a.get() : b.get();
      segments[i].first_position = static_cast<std::uint32_t>(segments[i].sequence->length());
      segments[i].tokens = rows;
    }
    std::int64_t before = allocations;
    auto state = engine.steps->start(segments);
    ASSERT_TRUE(state.ok());
    while (*state == step_state::needs_experts) {
      const std::int64_t inside = allocations - before;
      const std::size_t count = group_by_expert(engine.steps->demand(), jobs);
      ASSERT_TRUE(engine.experts->run(std::span{jobs}.first(count)).ok());
      before = allocations - inside;
      ASSERT_TRUE(engine.steps->work_while_waiting().ok());
      state = engine.steps->resume();
      ASSERT_TRUE(state.ok());
    }
    if (step >= 6) // the first ones grow the buffers
      counted += allocations - before;
  }
  EXPECT_EQ(counted, 0);
}

TEST(step_memory, a_round_of_feeding_and_drafting_allocates_nothing_once_warm) {
  const auto model = di::testing::load_model(di::testing::preset_checkpoint("tiny"));
  di::testing::test_engine engine{*model, 2};
  engine.steps->want_taps(true);
  const auto drafts = make_draft_runner(*model, engine.ops, *engine.stream);
  const draft_picker pick = [](std::size_t, std::size_t k, std::span<const float>) {
    return result<token_id>{static_cast<token_id>(k)};
  };
  const auto a = engine.sequence();
  const auto b = engine.sequence();
  std::vector<expert_job> jobs;
  std::int64_t counted = 0;
  for (int round = 0; round < 8; ++round) {
    const std::vector<token_id> rows(round == 0 ? 40 : 6, 7);
    std::array<step_segment, 2> segments;
    std::array<draft_feed, 2> feeds;
    std::array<draft_segment, 2> passes;
    for (std::size_t i = 0; i < 2; ++i) {
      sequence_state* const sequence = i == 0 ? a.get() : b.get();
      segments[i] = {sequence, static_cast<std::uint32_t>(sequence->length()), rows};
      feeds[i] = {sequence, sequence->length(), {}};
      passes[i] = {sequence, 9};
    }
    ASSERT_TRUE(engine.loop.run(segments).ok());
    for (std::size_t i = 0; i < 2; ++i)
      feeds[i].taps = engine.steps->taps(i);
    std::int64_t before = allocations;
    ASSERT_TRUE(drafts->feed(feeds).ok());
    auto state = drafts->start(passes);
    while (state.ok() && *state == step_state::needs_experts) {
      const std::int64_t inside = allocations - before;
      const std::size_t count = group_by_expert(drafts->demand(), jobs);
      ASSERT_TRUE(engine.experts->run(std::span{jobs}.first(count)).ok());
      before = allocations - inside;
      ASSERT_TRUE(drafts->work_while_waiting().ok());
      state = drafts->resume();
    }
    ASSERT_TRUE(state.ok());
    ASSERT_TRUE(drafts->draw(pick).ok());
    if (round >= 2)
      counted += allocations - before;
  }
  EXPECT_EQ(counted, 0);
}

} // namespace
} // namespace di::engine
