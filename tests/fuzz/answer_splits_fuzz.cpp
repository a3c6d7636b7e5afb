// SPDX-License-Identifier: Apache-2.0
// Model outputs of any bytes and of markers, cut anywhere, in all protocols: the rules of
// tests/support/answer_cases.hpp, and no crash of the strict parser either. The hash of an
// input says which of them it is for: text, tokens or strict. A mutation of it takes another.
#include "engine/chat/output_parser.hpp"
#include "tests/support/answer_cases.hpp"
#include "tests/support/fuzz_driver.hpp"

#include <algorithm>
#include <array>

namespace {

using di::engine::testing::answer_case, di::engine::testing::broken_in_text,
    di::engine::testing::broken_in_tokens, di::engine::testing::cut_text,
    di::engine::testing::make_answer_case, di::engine::testing::stream_text;

// [bytes] of a text at most, one of them by its hash: most are cheap, some hold several calls.
constexpr std::array<std::size_t, 8> text_bytes_max{24, 32, 32, 48, 48, 64, 96, 320};

const di::engine::tokenizer& words() {
  static const di::engine::tokenizer t =
      di::engine::tokenizer::load(DI_SOURCE_DIR "/tests/golden/data/tokenizer/tiny/tokenizer.json")
          .value();
  return t;
}

// The numbers that make a case come from the input, behind its end from its hash.
class numbers {
public:
  numbers(std::span<const std::byte> input, std::uint64_t hash) : input_{input}, behind_{hash} {}
  std::size_t below(std::size_t n) {
    if (at_ >= input_.size())
      return behind_.below(n);
    const auto value = std::to_integer<std::size_t>(input_[at_++]);
    return n == 0 ? 0 : value % n;
  }
  std::span<const std::byte> rest() const { return input_.subspan(std::min(at_, input_.size())); }

private:
  std::span<const std::byte> input_;
  std::size_t at_ = 0;
  di::testing::fuzz_random behind_;
};

// The kinds of output in a row: what inputs are told apart by. Without events, so it costs little.
std::uint64_t kinds_of(const answer_case& c) {
  di::engine::output_parser parser{c.recipe.parsing, {}};
  std::vector<di::engine::output_piece> pieces;
  parser.text(c.text, 1, pieces);
  parser.end_chunk(pieces);
  parser.finish(pieces);
  std::string kinds;
  for (const auto& p : pieces) {
    const char kind = static_cast<char>('a' + static_cast<int>(p.kind));
    if (kinds.empty() || kinds.back() != kind)
      kinds += kind;
  }
  return di::testing::fuzz_signature(kinds) * 8 + static_cast<std::uint64_t>(c.recipe.protocol);
}

// The strict parser has no rules but those of memory: every cut must end.
void run_strict(answer_case c, const std::function<std::size_t(std::size_t)>& below) {
  c.recipe.parsing.strict = true;
  di::engine::answer_stream stream{std::make_shared<const di::engine::answer_recipe>(c.recipe),
                                   &words()};
  stream_text(stream, cut_text(c.text, below), c.why);
  DI_CHECK(stream.ended() && stream.final().is_object());
}

std::uint64_t run(std::span<const std::byte> input) {
  const std::string_view bytes{reinterpret_cast<const char*>(input.data()), input.size()};
  const std::uint64_t hash = di::testing::fuzz_random{di::testing::fuzz_signature(bytes)}.next();
  numbers from{input.first(std::min<std::size_t>(input.size(), 96)), hash};
  const auto below = [&](std::size_t n) { return from.below(n); };
  answer_case c = make_answer_case(below);
  const auto rest = from.rest();
  c.text += di::utf8_lossy({reinterpret_cast<const char*>(rest.data()), rest.size()});
  const std::size_t most = text_bytes_max[(hash >> 8) % text_bytes_max.size()];
  c.text.resize(di::utf8_valid_prefix(std::string_view{c.text}.substr(0, most)));
  std::string broken;
  if (hash % 4 == 0)
    run_strict(c, below);
  else if (hash % 4 == 1)
    broken = broken_in_tokens(c, words(), below);
  else
    broken = broken_in_text(c, words(), below, 1);
  if (!broken.empty()) {
    std::fprintf(stderr, "%s\n%s\n%s\n", broken.c_str(), c.recipe.to_json().c_str(),
                 di::engine::json(c.text).dump().c_str());
    DI_CHECK(broken.empty());
  }
  return kinds_of(c);
}

} // namespace

DI_FUZZ_MAIN("answer_splits", run)
