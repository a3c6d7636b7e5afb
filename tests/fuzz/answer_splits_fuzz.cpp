// SPDX-License-Identifier: Apache-2.0
// Model outputs of any bytes and of markers, cut anywhere, in all protocols: the rules of
// tests/support/answer_cases.hpp, and no crash of the strict parser either.
#include "tests/support/answer_cases.hpp"
#include "tests/support/fuzz_driver.hpp"

#include <algorithm>

namespace {

using di::engine::testing::answer_case, di::engine::testing::broken_rule,
    di::engine::testing::cut_text, di::engine::testing::make_answer_case,
    di::engine::testing::stream_text;

const di::engine::tokenizer& words() {
  static const di::engine::tokenizer t =
      di::engine::tokenizer::load(DI_SOURCE_DIR "/tests/golden/data/tokenizer/tiny/tokenizer.json")
          .value();
  return t;
}

// The numbers that make a case come from the input; behind its end all are 0.
class numbers {
public:
  explicit numbers(std::span<const std::byte> input) : input_{input} {}
  std::size_t below(std::size_t n) {
    const auto value = at_ < input_.size() ? std::to_integer<std::size_t>(input_[at_++]) : 0;
    return n == 0 ? 0 : value % n;
  }
  std::span<const std::byte> rest() const { return input_.subspan(std::min(at_, input_.size())); }

private:
  std::span<const std::byte> input_;
  std::size_t at_ = 0;
};

// The strict parser has no rules but those of memory: every cut must end. @return what came out
std::uint64_t run_strict(answer_case c, const std::function<std::size_t(std::size_t)>& below) {
  c.recipe.parsing.strict = true;
  di::engine::answer_stream stream{std::make_shared<const di::engine::answer_recipe>(c.recipe),
                                   &words()};
  std::string kinds;
  std::string last;
  for (const auto& e : stream_text(stream, cut_text(c.text, below), c.why)) {
    std::string kind = e.name;
    if (e.data.contains("choices") && !e.data["choices"].empty())
      for (const auto& [key, value] : e.data["choices"][0].items())
        kind += value.is_object() ? value.begin().key() : key.substr(0, 1);
    if (kind != last)
      kinds += kind;
    last = std::move(kind);
  }
  DI_CHECK(stream.final().is_object());
  return di::testing::fuzz_signature(kinds) * 8 + static_cast<std::uint64_t>(c.recipe.protocol);
}

std::uint64_t run(std::span<const std::byte> input) {
  numbers from{input.first(std::min<std::size_t>(input.size(), 96))};
  const auto below = [&](std::size_t n) { return from.below(n); };
  answer_case c = make_answer_case(below);
  const auto rest = from.rest();
  c.text += di::utf8_lossy({reinterpret_cast<const char*>(rest.data()), rest.size()});
  const std::string broken = broken_rule(c, words(), below, 1);
  if (!broken.empty()) {
    std::fprintf(stderr, "%s\n%s\n%s\n", broken.c_str(), c.recipe.to_json().c_str(),
                 di::engine::json(c.text).dump().c_str());
    DI_CHECK(broken.empty());
  }
  return run_strict(c, below);
}

} // namespace

DI_FUZZ_MAIN("answer_splits", run)
