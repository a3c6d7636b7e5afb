// SPDX-License-Identifier: Apache-2.0
// Topology files: what is accepted, and that every defect is found at its exact place.
#include "launch/plan.hpp"
#include "launch/topology.hpp"

#include <gtest/gtest.h>

namespace di::launch {
namespace {

std::string errors(const std::string& text, const std::vector<std::string>& sets = {}) {
  return render(read_topology(text, "t.yaml", sets).problems, "t.yaml", sets);
}

/// A good file plus more lines from line 5 on.
std::string good(const std::string& more = "") {
  return "apiVersion: di/v1\nname: n\nmodel: {path: ../models/demo}\n"
         "cluster: {nodes: [{host: localhost, ranks: 4}]}\n"
         + more;
}

} // namespace

TEST(topology, reads_five_lines) {
  const auto out = read_topology(good("roles: {decode: {ep: 4}}\n"), "/a/b/t.yaml");
  ASSERT_TRUE(out.value) << render(out.problems, "t", {});
  EXPECT_EQ(out.value->name, "n");
  EXPECT_EQ(out.value->model_path, "/a/models/demo");
  EXPECT_EQ(out.value->ep, 4U);
  EXPECT_EQ(out.value->page_tokens, 128U);
  EXPECT_EQ(out.value->port_base, 29500U);
  EXPECT_EQ(out.value->speculation, "off");
  EXPECT_EQ(out.value->ssh_command, (std::vector<std::string>{"ssh", "-o", "BatchMode=yes"}));
}

TEST(topology, takes_ep_from_the_nodes_if_it_is_not_given) {
  const auto out = read_topology("apiVersion: di/v1\nmodel: {path: m}\n"
                                 "cluster: {nodes: [{host: 'gpu[01-03]', ranks: 8}, {ranks: 1}]}\n",
                                 "my-cluster.yaml");
  ASSERT_TRUE(out.value) << render(out.problems, "t", {});
  EXPECT_EQ(out.value->ep, 25U);
  EXPECT_EQ(out.value->name, "my-cluster");
}

TEST(topology, reads_actors_plugins_and_nested_config) {
  const auto out =
      read_topology(good("plugins: [build/libacme.so]\n"
                         "actors:\n"
                         "  - {kind: token_meter, at: /cluster/meter, listen: [tokens_released],\n"
                         "     config: {tokens_max: 500, deep: {x: 'a b'}},\n"
                         "     restart: {max: 3, window_ms: 10000}}\n"),
                    "/t/t.yaml");
  ASSERT_TRUE(out.value) << render(out.problems, "t", {});
  EXPECT_EQ(out.value->plugins, std::vector<std::string>{"/t/build/libacme.so"});
  const auto& a = out.value->actors.at(0);
  EXPECT_EQ(a.kind, "token_meter");
  EXPECT_EQ(a.listen, std::vector<std::string>{"tokens_released"});
  EXPECT_EQ(a.config.at(0), (std::pair<std::string, std::string>{"tokens_max", "500"}));
  EXPECT_EQ(a.config.at(1), (std::pair<std::string, std::string>{"deep.x", "a b"}));
  EXPECT_EQ(a.restart_max, 3U);
  EXPECT_EQ(a.restart_window_ms, 10000U);
}

TEST(topology, reports_all_defects_at_once_with_their_places) {
  EXPECT_EQ(errors("apiVersion: di/v2\n"
                   "modle: {path: x}\n"
                   "cluster:\n"
                   "  nodes:\n"
                   "    - {host: a, gpus: 8}\n"
                   "  start_timeout: 60\n"
                   "supervisor:\n"
                   "  on_rank_loss: explode\n"
                   "  rejoin: yes\n"),
            "t.yaml:1:1: model is missing: The checkpoint to serve.\n"
            "t.yaml:1:13: apiVersion: di/v2 is not known; choose di/v1\n"
            "t.yaml:2:1: unknown key modle; did you mean model?\n"
            "t.yaml:5:7: cluster.nodes[0].ranks is missing: Ranks (processes) on each host of this "
            "entry.\n"
            "t.yaml:5:17: unknown key cluster.nodes[0].gpus; did you mean cluster.nodes[].ranks?\n"
            "t.yaml:6:18: cluster.start_timeout: time \"60\" has no unit: write e.g. 60ms\n"
            "t.yaml:8:17: supervisor.on_rank_loss: explode is not known; choose shrink, "
            "restart_smaller, restart\n"
            "t.yaml:9:11: supervisor.rejoin: yes is not known; choose auto, manual");
}

TEST(topology, suggests_near_words_foreign_words_and_the_right_place) {
  EXPECT_EQ(errors(good("roles: {decode: {redundant_expert: 4}}\n")),
            "t.yaml:5:18: unknown key roles.decode.redundant_expert; did you mean "
            "roles.decode.redundant_experts?");
  EXPECT_EQ(errors(good("kv: {block: 64}\n")),
            "t.yaml:5:6: unknown key kv.block; did you mean kv.page_tokens?");
  EXPECT_EQ(errors(good("ep: 4\n")), "t.yaml:5:1: unknown key ep; did you mean roles.decode.ep?");
  EXPECT_EQ(errors(good("kv: {zzzzzz: 64}\n")),
            "t.yaml:5:6: unknown key kv.zzzzzz; known here: page_tokens, room, prefix, snapshots, "
            "replicas, replica_bandwidth, replica_room");
}

TEST(topology, knows_only_true_and_false) {
  for (const char* word : {"yes", "on", "True", "'true'", "1"})
    EXPECT_NE(errors(good("determinism: {batch_invariant: " + std::string{word} + "}\n")), "")
        << word;
  EXPECT_EQ(errors(good("determinism: {batch_invariant: true}\n")), "");
  EXPECT_EQ(errors(good("determinism: {batch_invariant: off}\n")),
            "t.yaml:5:32: determinism.batch_invariant: off is no boolean: write true or false");
}

TEST(topology, refuses_batch_variance_on_cpu) {
  EXPECT_EQ(errors(good("determinism: {batch_invariant: false}\n")),
            "t.yaml:5:32: determinism.batch_invariant: false is refused: the CPU backend is always "
            "batch invariant");
}

TEST(topology, reads_when_experts_move) {
  const auto of = [](const std::string& keys) {
    const auto out = read_topology(good("roles: {decode: {" + keys + "}}\n"), "t.yaml");
    EXPECT_TRUE(out.value) << render(out.problems, "t", {});
    return rebalance_of(*out.value).value();
  };
  EXPECT_EQ(of("threads: 1").mode, engine::rebalance_mode::off);
  const auto by_load = of("rebalance: auto, rebalance_window: 2, rebalance_interval: 9, "
                          "rebalance_moves: 7");
  EXPECT_EQ(by_load.mode, engine::rebalance_mode::automatic);
  EXPECT_EQ(by_load.window_steps, 2U);
  EXPECT_EQ(by_load.bins, 2U);
  EXPECT_EQ(by_load.interval_steps, 9U);
  EXPECT_EQ(by_load.moves_max, 7U);
  const auto forced = of("rebalance: 'forced:3', rebalance_interval: 9");
  EXPECT_EQ(forced.mode, engine::rebalance_mode::forced);
  EXPECT_EQ(forced.window_steps, 3U);
  EXPECT_EQ(forced.interval_steps, 3U);
  EXPECT_EQ(errors(good("roles: {decode: {rebalance: forced:0}}\n")),
            "t.yaml:5:29: roles.decode.rebalance: 'forced:0' is none of off, observe, auto, "
            "forced, forced:STEPS (1 to 1000000)");
}

TEST(topology, reads_how_steps_are_computed) {
  const auto out =
      read_topology(good("roles: {decode: {speculation: fixed:5, step_time: 60ms, profile: 0s, "
                         "steps_in_flight: 1, prefill: compact, prefill_keep: 140}}\n"
                         "kv: {prefix: bounded, snapshots: 1MiB, replicas: 2, "
                         "replica_bandwidth: 1MiB, replica_room: 2MiB}\n"),
                    "t.yaml");
  ASSERT_TRUE(out.value) << render(out.problems, "t", {});
  EXPECT_EQ(out.value->speculation, "fixed:5");
  EXPECT_EQ(out.value->step_time, std::chrono::milliseconds{60});
  EXPECT_EQ(out.value->profile, nanoseconds{});
  EXPECT_EQ(out.value->steps_in_flight, 1U);
  EXPECT_EQ(out.value->prefill, proto::prefill_mode::compact);
  EXPECT_EQ(out.value->prefill_keep, 140U);
  EXPECT_EQ(out.value->prefix, proto::prefix_mode::bounded);
  EXPECT_EQ(out.value->snapshot_bytes, 1U << 20);
  EXPECT_EQ(out.value->kv_replicas, 2U);
  EXPECT_EQ(out.value->kv_replica_bandwidth, 1U << 20);
  EXPECT_EQ(out.value->kv_replica_room, 2U << 20);
  const auto plain = read_topology(good(), "t.yaml");
  ASSERT_TRUE(plain.value);
  EXPECT_EQ(plain.value->step_time, std::chrono::milliseconds{100});
  EXPECT_EQ(plain.value->profile, std::chrono::milliseconds{40});
  EXPECT_EQ(plain.value->steps_in_flight, 2U);
  EXPECT_EQ(plain.value->prefill, proto::prefill_mode::full);
  EXPECT_EQ(plain.value->prefill_keep, 0U);
  EXPECT_EQ(plain.value->prefix, proto::prefix_mode::exact);
  EXPECT_EQ(plain.value->snapshot_bytes, 16U << 20);
  EXPECT_EQ(plain.value->kv_replicas, 0U);
}

TEST(topology, refuses_wrong_words_for_how_steps_are_computed) {
  EXPECT_EQ(errors(good("kv: {prefix: on}\n")),
            "t.yaml:5:14: kv.prefix: on is not known; choose off, exact, bounded");
  EXPECT_EQ(errors(good("kv: {prefix_cache: exact}\n")),
            "t.yaml:5:6: unknown key kv.prefix_cache; did you mean kv.prefix?");
  EXPECT_EQ(errors(good("roles: {decode: {prefill: mask}}\n")),
            "t.yaml:5:27: roles.decode.prefill: mask is not known; choose full, compact");
  EXPECT_EQ(errors(good("roles: {decode: {prefill_keep: 140}}\n")),
            "t.yaml:5:32: roles.decode.prefill_keep is 140, but roles.decode.prefill is full; "
            "write prefill: compact");
  EXPECT_EQ(errors(good("roles: {decode: {step_time: 60}}\n")),
            "t.yaml:5:29: roles.decode.step_time: time \"60\" has no unit: write e.g. 60ms");
  EXPECT_EQ(errors(good("roles: {decode: {steps_in_flight: 3}}\n")),
            "t.yaml:5:35: roles.decode.steps_in_flight: 3 is outside 1 to 2");
  EXPECT_EQ(errors(good("roles: {decode: {speculative: varlen}}\n")),
            "t.yaml:5:18: unknown key roles.decode.speculative; did you mean "
            "roles.decode.speculation?");
}

TEST(topology, knows_the_words_of_speculation) {
  for (const char* word : {"off", "fixed:1", "fixed:16", "varlen"})
    EXPECT_EQ(errors(good("roles: {decode: {speculation: " + std::string{word} + "}}\n")), "");
  for (const char* word : {"on", "fixed", "fixed:", "fixed:0", "fixed:5x", "fixed:-1", "varlan"})
    EXPECT_EQ(errors(good("roles: {decode: {speculation: '" + std::string{word} + "'}}\n")),
              "t.yaml:5:31: roles.decode.speculation: " + std::string{word}
                  + " is not known; choose off, fixed:N (N from 1 to 16) or varlen");
  EXPECT_EQ(errors(good("roles: {decode: {speculation: fixed:17}}\n")),
            "t.yaml:5:31: roles.decode.speculation: fixed:17 is not known; choose off, fixed:N (N "
            "from 1 to 16) or varlen");
}

TEST(topology, refuses_an_ep_that_differs_from_the_ranks) {
  EXPECT_EQ(errors(good("roles: {decode: {ep: 3}}\n")),
            "t.yaml:5:22: roles.decode.ep is 3, but cluster.nodes has 4 ranks");
}

TEST(topology, refuses_numbers_out_of_range_with_the_range) {
  EXPECT_EQ(errors(good("roles: {decode: {step_rows: 0, threads: 1.5}}\n")),
            "t.yaml:5:29: roles.decode.step_rows: 0 is outside 2 to 65536\n"
            "t.yaml:5:41: roles.decode.threads: \"1.5\" is no whole number");
  EXPECT_EQ(errors(good("kv: {room: 1KiB}\n")),
            "t.yaml:5:12: kv.room: 1KiB is outside 64KiB to 9223372036854775807B");
}

TEST(topology, refuses_a_key_given_twice) {
  EXPECT_EQ(errors(good("name: m\n")), "t.yaml:5:1: key name is given twice; first at line 2");
}

TEST(topology, overrides_by_set_and_locates_their_defects) {
  const auto out = read_topology(good(), "t.yaml",
                                 {"cluster.nodes[0].ranks=2", "cluster.nodes[1].ranks=3",
                                  "roles.decode.ep=5", "cluster.ports={base: 0}", "name='x'"});
  ASSERT_TRUE(out.value) << render(out.problems, "t", {});
  EXPECT_EQ(out.value->ep, 5U);
  EXPECT_EQ(out.value->nodes.size(), 2U);
  EXPECT_EQ(out.value->port_base, 0U);
  EXPECT_EQ(out.value->name, "x");
  EXPECT_EQ(errors(good(), {"roles.decode.ep=9", "roles.decod.ep=4", "nonsense",
                            "cluster.nodes[7].ranks=1"}),
            "--set roles.decod.ep=4: unknown key roles.decod; did you mean roles.decode?\n"
            "--set nonsense: write --set key=value\n"
            "--set cluster.nodes[7].ranks=1: no list entry [7]; the list has 1");
  EXPECT_EQ(errors(good(), {"roles.decode.ep=9"}),
            "--set roles.decode.ep=9: roles.decode.ep is 9, but cluster.nodes has 4 ranks");
}

TEST(topology, survives_what_is_no_topology) {
  EXPECT_EQ(errors(""), "t.yaml:1:1: expected keys like model: and cluster:, found nothing");
  EXPECT_EQ(errors("[1, 2]"), "t.yaml:1:1: expected keys like model: and cluster:, found a list");
  EXPECT_NE(errors("a: [1, 2"), "");
  EXPECT_NE(errors("a: 'x"), "");
  EXPECT_NE(errors(std::string(5000, '[')), "");
  EXPECT_NE(errors(std::string("\0\xff\xfe", 3)), "");
  EXPECT_NE(errors("? {a: b}\n: c\n"), "");
  EXPECT_NE(errors(std::string(2U << 20U, ' ')), "");
}

TEST(topology, refuses_aliases_anchors_tags_and_second_documents) {
  EXPECT_NE(errors("a: &x [1]\nb: *x\n").find("t.yaml:2:4: aliases"), std::string::npos);
  EXPECT_NE(errors("name: !!str x\n").find("tag"), std::string::npos);
  EXPECT_NE(errors(good("---\nname: x\n")).find("more than one document"), std::string::npos);
  EXPECT_NE(
      errors(
          "a: {b: {c: {d: {e: {f: {g: {h: {i: {j: {k: {l: {m: {n: {o: {p: {q: 1}}}}}}}}}}}}}}}}}}")
          .find("more than 16 nested levels"),
      std::string::npos);
}

TEST(topology, keeps_actor_paths_out_of_the_runtime_s_own) {
  EXPECT_EQ(errors(good("actors: [{kind: a, at: /rank/0}]\n")),
            "t.yaml:5:24: actor path /rank/0: /rank belongs to the runtime; write e.g. "
            "/cluster/meter");
  EXPECT_NE(errors(good("actors: [{kind: a, at: /x}, {kind: b, at: /x}]\n")).find("twice"),
            std::string::npos);
}

TEST(topology, wants_enough_ports_for_several_nodes) {
  EXPECT_NE(errors(good(), {"cluster.nodes[1].ranks=2", "cluster.ports.range=13"})
                .find("14 ports are needed from 29500"),
            std::string::npos);
}

TEST(topology, says_that_ports_end) {
  EXPECT_EQ(errors(good(), {"cluster.nodes[1].ranks=1", "cluster.ports.base=65533"}),
            "--set cluster.ports.base=65533: cluster.ports.base is 65533: 12 ports are needed, up "
            "to 65544; ports end at 65535");
}

TEST(topology, locates_contradictions_at_the_key_or_the_override) {
  EXPECT_EQ(errors(good("roles: {decode: {prefill_rows: 99, step_rows: 9}}\n")),
            "t.yaml:5:32: roles.decode.prefill_rows (99) exceeds step_rows (9)");
  EXPECT_EQ(errors(good(), {"roles.decode.step_rows=9"}),
            "--set roles.decode.step_rows=9: roles.decode.prefill_rows (64) exceeds step_rows (9)");
  EXPECT_EQ(errors(good("supervisor: {lease: 100ms}\n")),
            "t.yaml:5:21: supervisor.lease_renew (200ms) must be less than lease (100ms)");
  EXPECT_EQ(errors(good("roles: {decode: {ep: 4}}\n"), {"cluster.nodes[0].ranks=2"}),
            "--set cluster.nodes[0].ranks=2: roles.decode.ep is 4, but cluster.nodes has 2 ranks");
  EXPECT_EQ(errors(good(), {"cluster.nodes[0].host=a[2-1]"}).find("--set cluster.nodes[0].host="),
            0U);
  EXPECT_EQ(errors(good("supervisor: {min_ep: 5}\n")),
            "t.yaml:5:22: supervisor.min_ep is 5, more than the 4 ranks");
  EXPECT_EQ(errors(good("kv: {page_tokens: 64}\n")),
            "t.yaml:5:19: kv.page_tokens: 64 is not part of this build; write 128");
}

TEST(topology, ships_files_that_are_right) {
  for (const char* name : {"local1", "local2", "local4", "local8", "ep64", "two_nodes"}) {
    const auto t = load_topology(std::string{DI_SOURCE_DIR "/launch/topologies/"} + name + ".yaml");
    ASSERT_TRUE(t.ok()) << t.error().what;
    EXPECT_EQ(t->name, name);
    EXPECT_EQ(t->model_path, DI_SOURCE_DIR "/launch/models/demo");
  }
  EXPECT_EQ(load_topology("/nowhere.yaml").error().code, ec::io_error);
}

TEST(topology, has_gateways_with_a_name_of_the_model) {
  const auto t = read_topology(good(), "t.yaml").value;
  ASSERT_TRUE(t);
  EXPECT_EQ(t->gateway.replicas, 1U);
  EXPECT_EQ(t->gateway.http_port, 8000U);
  EXPECT_TRUE(t->gateway.share_port);
  EXPECT_EQ(t->gateway.model_names, (std::vector<std::string>{"demo", "n"}));
  EXPECT_FALSE(t->gateway.tls());
}

TEST(topology, refuses_ports_of_gateways_that_collide) {
  EXPECT_EQ(errors(good(), {"cluster.ports.http=8000", "cluster.ports.admin=8000"}),
            "--set cluster.ports.admin=8000: cluster.ports.admin is 8000, which "
            "cluster.ports.http takes");
  EXPECT_EQ(errors(good(), {"cluster.ports.http=65535", "gateway.share_port=false",
                            "roles.gateway.replicas=2"}),
            "--set roles.gateway.replicas=2: 2 gateways need ports 65535 to 65536; ports end at "
            "65535");
}

TEST(topology, refuses_a_certificate_without_its_key) {
  EXPECT_EQ(errors(good(), {"gateway.tls.cert=a.pem"}),
            "--set gateway.tls.cert=a.pem: gateway.tls.key is missing: TLS needs both");
}

} // namespace di::launch
