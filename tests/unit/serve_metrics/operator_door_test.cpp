// SPDX-License-Identifier: Apache-2.0
// Which orders are taken over HTTP, from whom, and with which status they are answered.
#include "launch/serve/operator_door.hpp"
#include "launch/serve/ui_page.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace di::serve {
namespace {

TEST(operator_door, knows_the_orders) {
  EXPECT_TRUE(is_order("/admin/drain"));
  EXPECT_FALSE(is_order("/admin/status"));
  EXPECT_FALSE(is_order("/admin/"));
  EXPECT_FALSE(is_order("/admin/drain/3"));
}

TEST(operator_door, makes_lines_of_bodies_and_queries) {
  EXPECT_EQ(*order_line("kill", R"({"rank":3})", {}, {}), R"({"command":"kill","rank":3})");
  EXPECT_EQ(*order_line("kill", "", "3", {}), R"({"command":"kill","rank":3})");
  EXPECT_EQ(*order_line("scale", R"({"ranks":2,"rank":9})", {}, {}),
            R"({"command":"scale","ranks":2})");
  EXPECT_EQ(*order_line("scale", "", {}, "2"), R"({"command":"scale","ranks":2})");
  EXPECT_EQ(*order_line("upgrade", "", {}, {}), R"({"command":"upgrade"})");
}

TEST(operator_door, refuses_orders_without_a_number) {
  EXPECT_FALSE(order_line("kill", "", {}, {}).ok());
  EXPECT_FALSE(order_line("kill", "[1]", {}, {}).ok());
  EXPECT_FALSE(order_line("kill", "{\"rank\":", {}, {}).ok());
  EXPECT_FALSE(order_line("kill", "{}", {}, {}).ok());
  EXPECT_FALSE(order_line("kill", "", "3x", {}).ok());
  EXPECT_FALSE(order_line("kill", "", "-1", {}).ok());
  EXPECT_FALSE(order_line("kill", "", "", {}).ok());
  EXPECT_FALSE(order_line("scale", R"({"rank":3})", {}, {}).ok());
}

TEST(operator_door, takes_no_orders_of_foreign_pages) {
  EXPECT_EQ(foreign("", "127.0.0.1:9000", "127.0.0.1"), ""); // no browser
  EXPECT_EQ(foreign("http://127.0.0.1:9000", "127.0.0.1:9000", "127.0.0.1"), "");
  EXPECT_EQ(foreign("http://[::1]:9000", "[::1]:9000", "x"), "");
  EXPECT_EQ(foreign("http://localhost:9000", "localhost:9000", "x"), "");
  EXPECT_EQ(foreign("https://ops.example", "ops.example", "ops.example"), "");
  EXPECT_NE(foreign("http://evil.example", "127.0.0.1:9000", "127.0.0.1"), "");
  EXPECT_NE(foreign("null", "127.0.0.1:9000", "127.0.0.1"), "");
  EXPECT_NE(foreign("http://evil.example:9000", "evil.example:9000", "127.0.0.1"), "")
      << "a name of its own that leads here";
  EXPECT_NE(foreign("http://127.0.0.1:8000", "127.0.0.1:9000", "127.0.0.1"), "");
}

TEST(operator_door, says_outcomes_as_statuses) {
  EXPECT_EQ(status_of(R"({"ok":true})"), 200);
  EXPECT_EQ(status_of(R"({"ok":false,"code":"bad_argument"})"), 400);
  EXPECT_EQ(status_of(R"({"ok":false,"code":"unavailable"})"), 503);
  EXPECT_EQ(status_of(R"({"ok":false,"code":"not_found"})"), 404);
  EXPECT_EQ(status_of(R"({"ok":false,"code":"deadline_exceeded"})"), 504);
  EXPECT_EQ(status_of("what"), 500);
}

TEST(ui_page, is_the_file_and_asks_nobody_else) {
  std::ifstream in{DI_SOURCE_DIR "/launch/serve/ui.html"};
  const std::string file{std::istreambuf_iterator<char>{in}, {}};
  EXPECT_EQ(ui_page(), file);
  for (const char* away : {"http://", "https://", "src=", "@import", "url(", "<link"})
    EXPECT_EQ(file.find(away), std::string::npos) << away;
}

} // namespace
} // namespace di::serve
