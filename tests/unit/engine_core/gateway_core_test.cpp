// SPDX-License-Identifier: Apache-2.0
// GATEWAY's batch: phases, and requests that it ends by itself.
#include "engine/core/gateway_core.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

using std::chrono::milliseconds;
using test::only, test::sent;

proto::request_spec request(std::uint64_t id) {
  proto::request_spec spec;
  spec.request = request_id{id};
  spec.gateway = "/gateway/0";
  spec.prompt.assign(3, 1);
  spec.sampling.max_tokens = 4;
  return spec;
}

TEST(gateway_core, begins_a_phase_when_the_one_before_has_ended) {
  gateway_options o;
  o.submit = {{0, true}, {0, false}, {1, false}, {1, false}, {0, false}};
  gateway_core core{o, {request(1), request(2), request(3), request(4), request(5)}};
  outbox out;
  instant now;
  const auto opened = [&] {
    std::vector<std::uint64_t> found;
    for (const auto& [to, m] : sent<proto::open_request>(out))
      found.push_back(m.spec.request.v);
    out.take();
    return found;
  };
  const auto release = [&](std::uint64_t id, std::uint32_t first, std::vector<token_id> tokens,
                           bool ended) {
    proto::tokens_released m;
    m.request = request_id{id};
    m.first_index = first;
    m.tokens = std::move(tokens);
    m.end.reason = ended ? proto::finish_reason::length : proto::finish_reason::none;
    now = now + milliseconds{5};
    ASSERT_TRUE(core.on(m, now, out));
    core.check();
  };
  ASSERT_TRUE(core.on(proto::start_batch{}, now, out));
  EXPECT_EQ(opened(), (std::vector<std::uint64_t>{1, 2}));
  release(1, 0, {7, 8}, false);
  release(1, 2, {9}, true);
  EXPECT_EQ(opened(), std::vector<std::uint64_t>{});
  release(2, 0, {7}, true);
  EXPECT_EQ(opened(), (std::vector<std::uint64_t>{3, 4}));
  release(4, 0, {}, true);
  release(3, 0, {}, true);
  EXPECT_EQ(opened(), std::vector<std::uint64_t>{5});
  const auto first = core.take_finished();
  EXPECT_EQ(first->at(0).token_us, (std::vector<std::uint64_t>{5'000, 5'000, 10'000}));
  EXPECT_EQ(core.take_finished()->at(0).token_us.size(), 0U); // not asked for
  EXPECT_EQ(core.take_finished()->at(0).submitted_us, 15'000U);
}

TEST(gateway_core, ends_a_request_itself_if_nobody_else_does) {
  gateway_options o;
  o.deadline_grace = milliseconds{200};
  auto spec = request(1);
  spec.deadline_ms = 300;
  gateway_core core{o, {spec, request(2)}};
  outbox out;
  ASSERT_TRUE(core.on(proto::start_batch{}, {}, out));
  proto::tokens_released some;
  some.request = request_id{1};
  some.tokens = {4, 5};
  ASSERT_TRUE(core.on(some, {}, out));
  out.take();
  ASSERT_TRUE(core.on_due({2, 1}, instant{} + milliseconds{500}, out));
  EXPECT_EQ(only<proto::cancel_request>(out).request, request_id{1});
  const auto choices = core.take_finished();
  ASSERT_TRUE(choices);
  EXPECT_EQ(choices->at(0).end.code, ec::deadline_exceeded);
  EXPECT_EQ(choices->at(0).end.kept_tokens, 2U);
  core.check();
  out.take();
  some.first_index = 2; // late tokens are acknowledged, so that JOURNAL can forget them
  some.end.reason = proto::finish_reason::cancelled;
  ASSERT_TRUE(core.on(some, {}, out));
  EXPECT_EQ(only<proto::release_acknowledged>(out).next_index, 4U);
  EXPECT_TRUE(only<proto::release_acknowledged>(out).ended);
  EXPECT_EQ(core.state().failed, 1U);
  EXPECT_EQ(core.state().open, 1U); // request 2 has no deadline
}

} // namespace
} // namespace di::engine
