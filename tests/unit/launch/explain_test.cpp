// SPDX-License-Identifier: Apache-2.0
// The key table is complete, prints itself, and equals the committed document.
#include "launch/explain.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace di::launch {
TEST(explain, has_each_key_once_and_below_a_known_section) {
  std::set<std::string_view> seen;
  for (const auto& r : all_keys()) {
    EXPECT_TRUE(seen.insert(r.key).second) << r.key;
    EXPECT_FALSE(r.doc.empty()) << r.key;
    auto parent = r.key.substr(0, r.key.rfind('.'));
    if (parent.ends_with("[]"))
      parent.remove_suffix(2);
    if (parent != r.key) {
      EXPECT_TRUE(seen.contains(parent)) << r.key;
    }
  }
}

TEST(explain, has_defaults_that_the_parser_accepts) {
  const auto out = read_topology("apiVersion: di/v1\nmodel: {path: m}\n"
                                 "cluster: {nodes: [{ranks: 2}]}\n"
                                 "actors: [{kind: a, at: /x}]\n",
                                 "t.yaml");
  EXPECT_EQ(render(out.problems, "t.yaml", {}), "");
  ASSERT_TRUE(out.value);
  EXPECT_EQ(out.value->actors.at(0).restart_max, 5U);
  EXPECT_EQ(out.value->nodes.at(0).hosts, "localhost");
  EXPECT_EQ(out.value->start_timeout, std::chrono::seconds{60});
}

TEST(explain, shows_type_default_and_bounds) {
  const auto text = explain("cluster.nodes[3].ranks").value();
  EXPECT_NE(text.find("cluster.nodes[].ranks"), std::string::npos) << text;
  EXPECT_NE(text.find("1 to 1024"), std::string::npos) << text;
  EXPECT_NE(explain("supervisor.heartbeat").value().find("suspect"), std::string::npos);
  EXPECT_NE(explain("").value().find("roles.decode.ep"), std::string::npos);
}

TEST(explain, suggests_a_key_for_an_unknown_one) {
  EXPECT_EQ(explain("roles.decode.epp").error().what,
            "no topology key roles.decode.epp; did you mean roles.decode.ep?");
  EXPECT_EQ(explain("ep").error().what, "no topology key ep; did you mean roles.decode.ep?");
}

TEST(explain, equals_the_document_in_doc) {
  std::ifstream in{DI_SOURCE_DIR "/doc/topology.md"};
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), topology_markdown())
      << "run: dilaunch explain --markdown > doc/topology.md";
}

} // namespace di::launch
