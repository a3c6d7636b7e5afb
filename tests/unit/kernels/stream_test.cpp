// SPDX-License-Identifier: Apache-2.0
#include "kernels/check.hpp"
#include "kernels/stream.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

namespace di::kernels {
namespace {

using counts = std::vector<std::atomic<int>>;

void count_units(void* context, std::int64_t begin, std::int64_t end, unsigned) {
  auto& seen = *static_cast<counts*>(context);
  for (std::int64_t u = begin; u < end; ++u)
    seen[static_cast<std::size_t>(u)].fetch_add(1, std::memory_order_relaxed);
}

TEST(cpu_stream, runs_every_unit_exactly_once_in_thousands_of_regions) {
  for (unsigned threads = 1; threads <= 4; ++threads) {
    cpu_stream s(threads, 0);
    for (std::int64_t units = 0; units < 1500; units += 1 + units / 7) {
      counts seen(static_cast<std::size_t>(units));
      s.run(units, 1, count_units, &seen);
      for (const auto& n : seen)
        ASSERT_EQ(n.load(), 1) << units << " units, " << threads << " threads";
    }
  }
}

TEST(cpu_stream, keeps_small_regions_on_the_calling_thread) {
  cpu_stream s(3, 1000);
  const auto caller = std::this_thread::get_id();
  struct state {
    std::thread::id caller;
    std::atomic<bool> elsewhere{false};
  } st{caller, {}};
  for (int i = 0; i < 100; ++i)
    s.run(
        50, 999,
        [](void* context, std::int64_t, std::int64_t, unsigned worker) {
          auto& t = *static_cast<state*>(context);
          if (worker != 0 || std::this_thread::get_id() != t.caller)
            t.elsewhere = true;
        },
        &st);
  EXPECT_FALSE(st.elsewhere.load());
}

TEST(cpu_stream, lets_another_thread_help_when_the_caller_is_stuck) {
  // The unit of the caller waits for a unit that only another thread can take.
  cpu_stream s(2, 0);
  struct state {
    std::atomic<int> helped{0};
  } st;
  s.run(
      2, 1'000'000,
      [](void* context, std::int64_t, std::int64_t, unsigned worker) {
        auto& t = *static_cast<state*>(context);
        if (worker == 0) {
          t.helped.wait(0);
        } else {
          t.helped.fetch_add(1);
          t.helped.notify_all();
        }
      },
      &st);
  EXPECT_GE(st.helped.load(), 1);
}

TEST(cpu_stream, works_alone_for_a_while_after_a_helper_kept_it_waiting) {
  cpu_stream s(2, 0);
  struct state {
    std::atomic<bool> stalled{false};
    std::atomic<bool> elsewhere{false};
  } st;
  const auto body = [](void* context, std::int64_t, std::int64_t, unsigned worker) {
    auto& t = *static_cast<state*>(context);
    if (worker == 0) {
      t.stalled.wait(false); // the helper has a unit in hand
      return;
    }
    t.elsewhere = true;
    t.stalled = true;
    t.stalled.notify_all();
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(5))
      ;
  };
  EXPECT_TRUE(s.sharing());
  for (int i = 0; i < 20 && s.sharing(); ++i) { // the helper may take both units
    st.stalled = false;
    s.run(2, 1'000'000, body, &st);
  }
  ASSERT_FALSE(s.sharing());
  st.elsewhere = false;
  st.stalled = true;
  s.run(2, 1'000'000, body, &st);
  EXPECT_FALSE(st.elsewhere.load());
}

TEST(cpu_stream, gives_each_worker_aligned_scratch_of_its_own) {
  cpu_stream s(2);
  std::byte* a = s.worker_scratch(0, 100);
  std::byte* b = s.worker_scratch(1, 100);
  EXPECT_NE(a, b);
  for (const std::size_t bytes : {1U, 1000U, 1000000U})
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(s.worker_scratch(0, bytes)) % 64, 0U);
  EXPECT_NE(s.shared_scratch(cpu_stream::shared::plan, 64),
            s.shared_scratch(cpu_stream::shared::input, 64));
}

#if defined(__x86_64__)
TEST(cpu_stream, computes_subnormals_on_every_thread_though_the_caller_flushes_them) {
  const unsigned saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved | 0x8040U); // flush to zero, denormals are zero
  cpu_stream s(2, 0);
  const auto x = static_cast<bf16>(0x0001); // the smallest subnormal
  const std::vector<bf16> row(64, x);
  const std::vector<float> one(64 * 40, 1.0F);
  std::vector<float> y(40 * 40);
  std::vector<bf16> rows;
  for (int i = 0; i < 40; ++i)
    rows.insert(rows.end(), row.begin(), row.end());
  linear_job j;
  j.w = {weight_kind::f32, one.data(), nullptr, 40, 64};
  j.x = rows.data();
  j.x_stride = 64;
  j.rows = 40;
  j.y = y.data();
  j.y_f32 = true;
  j.y_stride = 40;
  EXPECT_EQ(best_cpu_ops().linear(s, {&j, 1}), status::ok);
  const unsigned after = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved);
  EXPECT_EQ(after & 0x8040U, 0x8040U) << "the caller's setting comes back";
  for (const float v : y)
    ASSERT_EQ(v, 64 * 0x1p-133F);
}
#endif

} // namespace
} // namespace di::kernels
