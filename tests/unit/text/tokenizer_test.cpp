// SPDX-License-Identifier: Apache-2.0
// Goal: the scanner and the merge loop against obviously right twins, and every defect of a file
// named by its place.
#include "engine/text/pre_tokenizer.hpp"
#include "engine/text/tokenizer.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <map>
#include <random>

namespace di::engine {
namespace {

using json = nlohmann::json;

const std::string tiny_path = DI_SOURCE_DIR "/tests/golden/data/tokenizer/tiny/tokenizer.json";

const json& tiny_json() {
  static const json file = [] {
    std::ifstream in{tiny_path};
    return json::parse(in);
  }();
  return file;
}

const tokenizer& tiny() {
  static const tokenizer t = tokenizer::load(tiny_path).value();
  return t;
}

std::vector<std::string> pieces_of(const std::string& text) {
  std::vector<std::size_t> ends;
  cut_pieces(text, ends);
  std::vector<std::string> out;
  for (std::size_t begin = 0; const std::size_t end : ends) {
    out.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return out;
}

using words = std::vector<std::string>;

TEST(pre_tokenizer, groups_digits_by_three_from_the_left) {
  EXPECT_EQ(pieces_of("1234567"), (words{"123", "456", "7"}));
  EXPECT_EQ(pieces_of("½½٣٤"), (words{"½½٣", "٤"}));
}

TEST(pre_tokenizer, leaves_the_last_blank_to_a_word_but_not_to_a_digit) {
  EXPECT_EQ(pieces_of("a  b"), (words{"a", " ", " b"}));
  EXPECT_EQ(pieces_of("a  1"), (words{"a", "  ", "1"}));
  EXPECT_EQ(pieces_of("a \n  b"), (words{"a", " \n", " ", " b"}));
  EXPECT_EQ(pieces_of("a  "), (words{"a", "  "}));
}

TEST(pre_tokenizer, cuts_ideographs_from_letters_and_signs_inside_kana) {
  EXPECT_EQ(pieces_of("ab漢字c"), (words{"ab", "漢字", "c"}));
  EXPECT_EQ(pieces_of("ア・イ"), (words{"ア", "・", "イ"}));
}

TEST(pre_tokenizer, takes_one_ascii_sign_with_ascii_letters_only) {
  EXPECT_EQ(pieces_of("'re (été"), (words{"'re", " (", "été"}));
  EXPECT_EQ(pieces_of("_aé"), (words{"_a", "é"}));
  EXPECT_EQ(pieces_of("x!!\n\ny"), (words{"x", "!!\n\n", "y"}));
}

TEST(pre_tokenizer, keeps_what_nothing_matches_as_one_gap) {
  EXPECT_EQ(pieces_of("\x01\x02\x03"), (words{"\x01\x02\x03"}));
  EXPECT_EQ(pieces_of("\x01\x02z"), (words{"\x01", "\x02z"}));
  EXPECT_EQ(pieces_of(""), (words{}));
}

// The slow twin: literally "lowest rank, leftmost, replace, repeat".
std::vector<token_id> merge_slowly(const std::string& piece) {
  static const auto ranks = [] {
    std::map<std::pair<std::string, std::string>, std::size_t> out;
    for (const json& m : tiny_json()["model"]["merges"]) {
      const auto text = m.get<std::string>();
      const std::size_t blank = text.find(' ');
      out.emplace(std::pair{text.substr(0, blank), text.substr(blank + 1)}, out.size());
    }
    return out;
  }();
  const auto spelled =
      [](char c) { // by way of the file itself: the single-byte entries are ids 3..258
        for (const auto& [spelling, id] : tiny_json()["model"]["vocab"].items())
          if (const auto i = id.get<token_id>();
              i >= 3 && i <= 258 && tiny().token_bytes(i)[0] == c)
            return spelling;
        return std::string{};
      };
  std::vector<std::string> symbols;
  for (const char c : piece)
    symbols.push_back(spelled(c));
  for (;;) {
    std::size_t best = ranks.size(), at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
      if (const auto it = ranks.find({symbols[i], symbols[i + 1]});
          it != ranks.end() && it->second < best) {
        best = it->second;
        at = i;
      }
    if (best == ranks.size())
      break;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<token_id> out;
  for (const std::string& s : symbols)
    out.push_back(tiny_json()["model"]["vocab"][s].get<token_id>());
  return out;
}

TEST(byte_pairs, merges_words_short_and_long_like_the_slow_twin) {
  std::mt19937 random{11};
  const std::string letters = "theranisoxyz";
  for (const unsigned size : {1U, 2U, 5U, 12U, 39U, 40U, 41U, 42U, 90U, 200U})
    for (int round = 0; round < 12; ++round) {
      std::string word;
      for (unsigned i = 0; i < size; ++i)
        word += letters[random() % (round % 2 == 0 ? 5 : letters.size())];
      ASSERT_EQ(tiny().encode(word, encode_mode::plain).value(), merge_slowly(word)) << word;
    }
}

TEST(byte_pairs, does_not_grow_quadratically_with_one_long_piece) {
  const std::string word(4'000'000, 'a'); // a quadratic loop would need hours
  const std::vector<token_id> ids = tiny().encode(word, encode_mode::plain).value();
  EXPECT_EQ(tiny().bytes(ids), word);
}

TEST(tokenizer, counts_control_spellings_only_in_full_mode) {
  const std::string text = "<｜User｜>hi";
  EXPECT_EQ(tiny().encode(text, encode_mode::full).value()[0], 954);
  EXPECT_EQ(tiny().added_token("<｜User｜>"), 954);
  EXPECT_EQ(tiny().added_token("<｜User｜>x"), std::nullopt);
  const std::vector<token_id> plain = tiny().encode(text, encode_mode::plain).value();
  for (const token_id id : plain)
    EXPECT_FALSE(tiny().is_added(id)) << id;
}

TEST(tokenizer, refuses_text_that_is_not_utf8_and_names_the_byte) {
  const auto r = tiny().encode("ab\xFFz", encode_mode::full);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().render(), "bad_format: text is not UTF-8: byte 2 of 4 is 0xFF");
}

TEST(tokenizer, gives_nothing_for_ids_that_do_not_exist) {
  const std::vector<token_id> ids{-1, 1024, 2'000'000'000, std::numeric_limits<token_id>::min()};
  EXPECT_EQ(tiny().bytes(ids, special_tokens::skip), "");
}

TEST(tokenizer, loads_the_demo_model_and_returns_its_texts) {
  const tokenizer demo =
      tokenizer::load(DI_SOURCE_DIR "/launch/models/demo/tokenizer.json").value();
  EXPECT_EQ(demo.size(), 2048U);
  for (const std::string text :
       {"What is the capital of France?", "<｜User｜>1 + 1<｜Assistant｜></think>", "日本語 and 😀"})
    for (const encode_mode mode : {encode_mode::plain, encode_mode::full})
      EXPECT_EQ(demo.bytes(demo.encode(text, mode).value()), text);
}

// Each row changes one place of a good file; the error must name that place.
struct defect {
  const char* pointer;
  json value;
  ec code;
  const char* text;
};

TEST(tokenizer_file, names_the_place_of_every_defect) {
  const std::vector<defect> defects{
      {"/model/type", "WordPiece", ec::bad_format,
       "model.type: expected \"BPE\", found \"WordPiece\""},
      {"/model/dropout", 0.1, ec::bad_format, "model.dropout: expected null, found 0.1"},
      {"/model/byte_fallback", true, ec::bad_format,
       "model.byte_fallback: expected false, found true"},
      {"/model/vocab/A", -1, ec::bad_format,
       "model.vocab[\"A\"]: expected an id in [0, 1048576), found -1"},
      {"/model/vocab/A", 1e10, ec::bad_format, "model.vocab[\"A\"]: expected an id"},
      {"/model/vocab/A", json::array({1}), ec::bad_format, "model.vocab[\"A\"]: expected an id"},
      {"/model/vocab/A", 260, ec::duplicate, "token id 260 is given to two tokens"},
      {"/model/vocab/ｘ", 700, ec::bad_format,
       "model.vocab[\"ｘ\"]: not spelled in the byte alphabet"},
      {"/model/vocab/ab c", 950, ec::bad_format, "id 950 is the added token"},
      {"/model/merges/3", "one", ec::bad_format,
       "model.merges[3]: expected \"left right\", found \"one\""},
      {"/model/merges/3", 7, ec::bad_format, "model.merges[3]: expected \"left right\", found 7"},
      {"/model/merges/3", "a qqqq", ec::bad_format,
       "model.merges[3]: \"qqqq\" is not in model.vocab"},
      {"/model/merges/3", tiny_json()["model"]["merges"][1], ec::duplicate,
       "merge 3 repeats merge 1"},
      {"/added_tokens/5/id", "x", ec::bad_format, "added_tokens[5].id: expected an id"},
      {"/added_tokens/5/content", "", ec::bad_format, "added_tokens[5].content: expected a text"},
      {"/added_tokens/5/lstrip", true, ec::bad_format,
       "added_tokens[5].lstrip: expected false, found true"},
      {"/added_tokens/5/content", "<think>", ec::duplicate, "has the content of another one"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\d", ec::bad_format,
       "pre_tokenizer.pretokenizers[0].pattern"},
      {"/pre_tokenizer/pretokenizers/2/behavior", "Removed", ec::bad_format,
       "pretokenizers[2].behavior"},
      {"/pre_tokenizer/pretokenizers/3/add_prefix_space", true, ec::bad_format,
       "pretokenizers[3].add_prefix_space"},
      {"/pre_tokenizer/pretokenizers", json::array(), ec::bad_format, "expected 4 stages, found 0"},
      {"/normalizer/type", "NFC", ec::bad_format, "normalizer: expected"},
      {"/decoder/type", "Fuse", ec::bad_format, "decoder.type"},
  };
  for (const defect& d : defects) {
    json file = tiny_json();
    file[json::json_pointer{d.pointer}] = d.value;
    const auto r = tokenizer::parse(file.dump(), "t.json");
    ASSERT_FALSE(r.ok()) << d.pointer;
    EXPECT_EQ(r.error().code, d.code) << d.pointer << ' ' << r.error().what;
    EXPECT_EQ(r.error().what.rfind("t.json: ", 0), 0U) << r.error().what;
    EXPECT_NE(r.error().what.find(d.text), std::string::npos) << d.pointer << ' ' << r.error().what;
  }
}

TEST(tokenizer_file, names_a_missing_byte_and_a_missing_list) {
  json file = tiny_json();
  file["model"]["vocab"].erase("A");
  EXPECT_NE(tokenizer::parse(file.dump(), "t.json")
                .error()
                .what.find("no entry for the single byte 0x41"),
            std::string::npos);
  file["model"].erase("vocab");
  EXPECT_NE(tokenizer::parse(file.dump(), "t.json")
                .error()
                .what.find("no entry for the single byte 0x00"),
            std::string::npos);
  EXPECT_EQ(tokenizer::load("/nowhere/t.json").error().render(),
            "io_error: /nowhere/t.json: cannot be read");
}

TEST(tokenizer_file, survives_every_cut_of_a_small_file_and_repeated_spellings) {
  std::ifstream in{tiny_path};
  const std::string text{std::istreambuf_iterator<char>{in}, {}};
  for (std::size_t size = 0; size < text.size() - 2; size += 211)
    EXPECT_EQ(tokenizer::parse(text.substr(0, size), "t").error().code, ec::bad_format) << size;
  std::string twice = text;
  twice.insert(twice.find("\"A\":"), "\"A\": 36, ");
  EXPECT_NE(tokenizer::parse(twice, "t").error().what.find("stands there twice"),
            std::string::npos);
}

} // namespace
} // namespace di::engine
