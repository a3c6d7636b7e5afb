// SPDX-License-Identifier: Apache-2.0
// RANK and EXPERT_SHARD with the demo model, driven by hand: what a failing device costs.
#include "tests/support/lone_rank.hpp"

namespace di::test {
namespace {

/// Fails its first call, then computes.
class failing_runner final : public engine::expert_runner {
public:
  explicit failing_runner(std::shared_ptr<engine::expert_runner> real) : real_{std::move(real)} {}
  result<void> run(std::span<engine::expert_job> jobs) override {
    if (!failed_) {
      failed_ = true;
      return fail(ec::device_lost, "the device is gone");
    }
    return real_->run(jobs);
  }

private:
  std::shared_ptr<engine::expert_runner> real_;
  bool failed_ = false;
};

/// Plays JOURNAL, SCHEDULER and REBALANCER: accepts everything and remembers it.
class control_core {
public:
  explicit control_core(std::map<std::uint64_t, proto::tokens_committed>* last) : last_{last} {}
  result<void> on(const proto::tokens_committed& m, instant, outbox& out) {
    auto& kept = (*last_)[m.request.v];
    kept.tokens.insert(kept.tokens.end(), m.tokens.begin(), m.tokens.end());
    kept.end = m.end;
    out.send("/rank/0/rank",
             proto::commit_accepted{m.request, m.choice, m.attempt,
                                    m.first_index + static_cast<std::uint32_t>(m.tokens.size()),
                                    m.end.reason != proto::finish_reason::none});
    return {};
  }

private:
  std::map<std::uint64_t, proto::tokens_committed>* last_;
};
struct control {
  static constexpr auto kind = "control";
  using core = control_core;
  using protocol = di::protocol<reacts_to<proto::tokens_committed>>;
};

proto::assign_request ask(std::uint64_t id) {
  proto::assign_request m;
  m.spec.request = request_id{id};
  m.spec.prompt = {5, 6, 7};
  m.spec.sampling.max_tokens = 4;
  m.spec.sampling.temperature = 0;
  m.spec.sampling.ignore_eos = true;
  m.attempt = 1;
  return m;
}

actors::rank_parts parts_of(const std::shared_ptr<const engine::loaded_model>& model) {
  const engine::model_spec& spec = model->spec();
  actors::rank_parts parts;
  parts.layout = engine::make_kv_layout(spec);
  parts.options.rank = rank_id{0};
  parts.options.vocab = static_cast<std::uint32_t>(spec.vocab_size);
  parts.options.context_tokens = 256;
  parts.options.kv_tokens = 512;
  parts.options.page_tokens = 128;
  parts.runner = engine::own_rank_runners(model, 1).steps;
  parts.samplers = engine::make_text_samplers(nullptr, static_cast<std::size_t>(spec.vocab_size),
                                              {spec.eos_token_id});
  parts.pool = engine::page_pool::create(parts.layout.page_bytes, 4).value();
  return parts;
}

template <message M>
std::vector<M> sent(outbox& out) {
  std::vector<M> all;
  for (const any_effect& e : out.take())
    if (const auto* s = std::get_if<effect::send>(&e))
      if (const M* m = s->body.as<M>())
        all.push_back(*m);
  return all;
}

TEST(rank_actor, keeps_a_failed_steps_rows_until_all_calls_to_its_own_shard_are_answered) {
  std::shared_ptr<const engine::loaded_model> model =
      engine::loaded_model::load(DI_SOURCE_DIR "/launch/models/demo").value();
  actors::rank_parts parts = parts_of(model);
  parts.answer_bytes_max = 2 * static_cast<std::size_t>(model->spec().hidden_size);
  actors::rank_actor rank{std::move(parts)};
  outbox out;
  ASSERT_TRUE(rank.on(alone(model->spec()), {}, out));
  ASSERT_TRUE(rank.on(ask(1), {}, out));
  ASSERT_EQ(sent<proto::work_due>(out).size(), 1U);
  ASSERT_TRUE(rank.on(proto::work_due{}, {}, out));
  const auto calls = sent<proto::expert_batch>(out);
  ASSERT_GE(calls.size(), 3U);                      // one entry each
  ASSERT_TRUE(rank.on(proto::work_due{}, {}, out)); // what it sent itself to overlap the wait

  ASSERT_TRUE(
      rank.on(proto::expert_failed{calls[0].call, {}, {}, ec::device_lost, "gone"}, {}, out));
  ASSERT_TRUE(rank.on(ask(2), {}, out));
  for (std::size_t i = 1; i < calls.size(); ++i) {
    EXPECT_TRUE(sent<proto::work_due>(out).empty()) << "call " << i << " is still read";
    ASSERT_TRUE(rank.on(proto::expert_rows{calls[i].call, {}, {}, {}}, {}, out));
  }
  EXPECT_EQ(sent<proto::work_due>(out).size(), 1U);
  rank.check();
}

TEST(rank_actor, ends_the_requests_of_a_failed_step_and_serves_the_next) {
  std::shared_ptr<const engine::loaded_model> model =
      engine::loaded_model::load(DI_SOURCE_DIR "/launch/models/demo").value();
  const engine::model_spec& spec = model->spec();
  std::map<std::uint64_t, proto::tokens_committed> last;
  sim_network net{1, {}};

  actors::rank_parts parts = parts_of(model);
  actors::shard_parts shard;
  shard.options.rank = rank_id{0};
  shard.options.hidden = static_cast<std::uint32_t>(spec.hidden_size);
  shard.runner = std::make_shared<failing_runner>(engine::own_expert_runner(model, 1));
  net.add("/control/journal", wrap_core<control>(&last));
  net.add("/rank/0/rank", actors::make_rank(std::move(parts)));
  net.add("/rank/0/expert_shard", actors::make_expert_shard(std::move(shard)));

  const proto::placement_published placed = alone(spec);
  net.inject("/rank/0/rank", parcel::of(placed));
  net.inject("/rank/0/expert_shard", parcel::of(placed));
  net.inject("/rank/0/rank", parcel::of(ask(1)));
  net.run([&] { return last.contains(1); }, 10'000, std::chrono::seconds{10});
  ASSERT_EQ(net.failure(), "");
  EXPECT_EQ(last[1].end.reason, proto::finish_reason::error);
  EXPECT_EQ(last[1].end.code, ec::device_lost);
  EXPECT_EQ(last[1].end.what, "rank 0: the device is gone");
  EXPECT_TRUE(last[1].tokens.empty());

  net.inject("/rank/0/rank", parcel::of(ask(2)));
  net.run([&] { return last[2].end.reason != proto::finish_reason::none; }, 100'000,
          std::chrono::seconds{10});
  ASSERT_EQ(net.failure(), "");
  EXPECT_EQ(last[2].end.reason, proto::finish_reason::length);
  EXPECT_EQ(last[2].tokens.size(), 4U);
}

} // namespace
} // namespace di::test
