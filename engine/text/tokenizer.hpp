// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE tokenizer in the form that DeepSeek releases: text to token ids and back.
#pragma once

#include "engine/text/added_tokens.hpp"
#include "engine/text/byte_pairs.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"
#include "messaging/base/utf8.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// Whether spellings of added tokens inside a text count as these tokens.
enum class encode_mode : std::uint8_t {
  plain, ///< they are ordinary characters; for everything that users, tools or the model wrote
  full,  ///< they become their token; only for text that the caller itself composed
};

/// Whether tokens with the "special" flag appear in decoded text.
enum class special_tokens : std::uint8_t { keep, skip };

/// Text to tokens and back. Immutable after loading; one instance serves all threads.
///
/// Encoding adds nothing (no begin-of-sentence token). For every text, the bytes of its ids joined
/// are the text.
/// @source   tokenizer specification; golden cases under tests/golden/data/tokenizer
class tokenizer {
public:
  /// One token as a file defines it.
  struct entry {
    token_id id = 0;
    std::string bytes;
    bool added = false;   ///< found in text in full mode
    bool special = false; ///< left out by special_tokens::skip
  };

  /// Reads a Hugging Face tokenizer.json.
  ///
  /// @errors   ec::io_error, ec::bad_format, ec::duplicate, ec::limit_exceeded; the text names
  /// file, place in the
  ///           file (e.g. `model.merges[17]`), what was expected and what was found
  static result<tokenizer> load(const std::filesystem::path& file);

  /// The same from memory; `name` stands for the file in errors.
  static result<tokenizer> parse(std::string_view json, std::string_view name);

  /// Makes one from its parts. @errors ec::duplicate, ec::bad_argument, ec::limit_exceeded
  static result<tokenizer> build(std::vector<entry> entries,
                                 const std::array<token_id, 256>& byte_ids,
                                 std::vector<merge_rule> merges);

  /// Token ids of a text.
  ///
  /// @errors   ec::bad_format if the text is not well-formed UTF-8 (names the byte); utf8_lossy()
  /// repairs it
  /// @cost     n log n in the bytes of the longest piece; measured by
  /// tests/bench/tokenizer_bench.cpp
  result<std::vector<token_id>> encode(std::string_view text, encode_mode mode) const;

  /// Bytes of the tokens joined; ids without an entry give nothing.
  std::string bytes(std::span<const token_id> ids,
                    special_tokens special = special_tokens::keep) const;

  /// The same as text: every maximal ill-formed part is U+FFFD.
  std::string decode(std::span<const token_id> ids,
                     special_tokens special = special_tokens::keep) const;

  /// Bytes of one token, empty if there is none with this id. Valid while the tokenizer lives.
  std::string_view token_bytes(token_id id) const noexcept;

  /// Whether the id is an added token with the "special" flag.
  bool is_special(token_id id) const noexcept;

  /// Whether the id is an added token (control tokens; most of them do not carry the "special"
  /// flag).
  bool is_added(token_id id) const noexcept;

  /// Id of the added token with this content, e.g. "<｜User｜>".
  std::optional<token_id> added_token(std::string_view content) const;

  /// One past the highest id.
  std::size_t size() const noexcept { return begins_.empty() ? 0 : begins_.size() - 1; }

private:
  void encode_stretch(std::string_view text, std::vector<std::size_t>& ends,
                      std::vector<token_id>& out) const;
  token_id whole_piece(std::string_view piece) const noexcept;
  void index_whole_pieces(const std::vector<entry>& entries);

  byte_pairs pairs_;
  added_token_finder finder_;
  std::string blob_;                  // bytes of all tokens by rising id
  std::vector<std::uint32_t> begins_; // [ids + 1] where each token's bytes begin in blob_
  std::vector<std::uint8_t> flags_;   // [ids] bit 0: added, bit 1: special
  std::vector<std::uint64_t>
      whole_slots_; // pieces that merge into one token: hash in the high half, id in the low one
};

/// Turns a growing list of ids into text as it comes; never emits half a character.
///
/// Copyable value, one per output stream. The tokenizer must outlive it.
class stream_decoder {
public:
  explicit stream_decoder(const tokenizer& words, special_tokens special = special_tokens::keep)
      : words_{&words}, special_{special} {}

  /// Text that became certain with this id; may be empty.
  std::string push(token_id id);

  /// Ends the stream: U+FFFD if an incomplete character is left, else nothing.
  std::string flush();

private:
  const tokenizer* words_;
  special_tokens special_;
  utf8_reassembler text_;
};

} // namespace di::engine
