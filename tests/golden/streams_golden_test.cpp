// SPDX-License-Identifier: Apache-2.0
// Every stored model output of the recipe, cut in every stored way: events and whole answers of the
// strict parser equal those of the reference.
#include "tests/support/recipe_streams.hpp"

#include <regex>

namespace di::engine::testing {
namespace {

const tokenizer& large() {
  static const tokenizer words = [] {
    result<tokenizer> r = tokenizer::load(DI_BINARY_DIR "/tests/golden/tokenizer/tokenizer.json");
    if (!r.ok())
      ADD_FAILURE() << r.error().render();
    return std::move(r).value();
  }();
  return words;
}

// As the vectors were stored: call ids without their random part, the response object of Responses
// cut.
json comparable(const json& event, bool last) {
  json out = event;
  if (out.contains("response")) {
    json cut = json::object();
    for (const char* key : {"id", "status", "output", "usage", "incomplete_details", "error"})
      if (!last || std::string_view{key} != "output")
        cut[key] = out["response"][key];
    out["response"] = std::move(cut);
  }
  static const std::regex random{"(call_[0-9]{2}_)[0-9A-Za-z]{24}"};
  return json::parse(std::regex_replace(out.dump(), random, "$1#"));
}

bool ends_response(const json& event) {
  const json type = event.value("type", json());
  return type == "response.completed" || type == "response.incomplete";
}

json comparable(const answer_events& events) {
  json out = json::array();
  for (const answer_event& e : events)
    out.push_back(comparable(e.data, ends_response(e.data)));
  return out;
}

class run_check {
public:
  run_check(const json& row, const json& run)
      : row_{row},
        run_{run},
        stream_{std::make_shared<const answer_recipe>(recipe_of(row, true)), &large()} {}

  // The first difference, or nothing.
  std::string difference() {
    if (!row_["ready"].is_null())
      compare(stream_.ready(row_["ready"][0].get<std::uint64_t>(),
                            row_["ready"][1].get<std::uint64_t>()),
              "ready");
    for (const json& chunk : run_["chunks"]) {
      if (stream_.ended())
        break;
      compare(push_chunk(stream_, chunk), chunk.dump());
    }
    if (!stream_.ended() && !row_["finish"].is_null())
      compare(stream_.finish(end_of(row_["finish"])), "finish");
    compare(stream_.close(), "close");
    if (push_ != run_["events"].size())
      note("pushes", run_["events"].size(), push_);
    json expected = row_["final"];
    const auto split = run_["split"].get<std::string>();
    if (row_.contains("finals") && row_["finals"].contains(split))
      expected = row_["finals"][split];
    if (row_.contains("usage_by_split") && row_["usage_by_split"].contains(split))
      expected["usage"] = row_["usage_by_split"][split];
    const json found = comparable(stream_.final(), false);
    if (found != expected)
      note("final", expected, found);
    return difference_;
  }

private:
  void note(const std::string& at, const json& expected, const json& found) {
    if (difference_.empty())
      difference_ = "at " + at + "\n  expected " + expected.dump() + "\n  found    " + found.dump();
  }

  void compare(const answer_events& events, const std::string& at) {
    if (push_ >= run_["events"].size()) {
      ++push_;
      return note(at, nullptr, comparable(events));
    }
    const json found = comparable(events);
    if (found != run_["events"][push_])
      note(at, run_["events"][push_], found);
    ++push_;
  }

  const json& row_;
  const json& run_;
  answer_stream stream_;
  std::size_t push_ = 0;
  std::string difference_;
};

void check_family(const std::string& family, std::size_t rows, std::size_t runs) {
  const std::vector<json> all = stream_rows(family);
  ASSERT_EQ(all.size(), rows);
  std::size_t checked = 0;
  std::size_t shown = 0;
  for (const json& row : all)
    for (const json& run : row["runs"]) {
      ++checked;
      const std::string difference = run_check{row, run}.difference();
      if (!difference.empty() && ++shown <= 8)
        ADD_FAILURE() << row["id"] << ' ' << row["cat"] << ' ' << row["mode"] << ' ' << run["split"]
                      << ": " << row["text"] << '\n'
                      << difference;
    }
  EXPECT_EQ(shown, 0U) << "runs that differ";
  EXPECT_EQ(checked, runs);
}

TEST(streams_golden, chat_events_equal_the_reference_at_every_split) {
  check_family("chat", 219, 655);
}

TEST(streams_golden, responses_events_equal_the_reference_at_every_split) {
  check_family("responses", 123, 366);
}

TEST(streams_golden, messages_events_equal_the_reference_at_every_split) {
  check_family("messages", 134, 399);
}

} // namespace
} // namespace di::engine::testing
