// SPDX-License-Identifier: Apache-2.0
// Encode and decode over the tables; reading tokenizer.json is in tokenizer_file.cpp.
#include "engine/text/tokenizer.hpp"

#include "engine/text/pre_tokenizer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace di::engine {
namespace {

constexpr std::uint8_t flag_added = 1, flag_special = 2;
constexpr std::uint64_t empty_slot = ~std::uint64_t{0};

// Mixes eight bytes at a time. Only spreads table places: equality is checked on the bytes
// themselves.
std::uint64_t hash_of(std::string_view bytes) noexcept {
  std::uint64_t h = bytes.size() * 0x9E3779B97F4A7C15U;
  while (bytes.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    h = (h ^ word) * 0xFF51AFD7ED558CCDU;
    h ^= h >> 32;
    bytes.remove_prefix(8);
  }
  std::uint64_t rest = 0;
  for (const char c : bytes)
    rest = rest << 8 | static_cast<std::uint8_t>(c);
  h = (h ^ rest) * 0xC4CEB9FE1A85EC53U;
  return h ^ h >> 29;
}

} // namespace

result<tokenizer> tokenizer::build(std::vector<entry> entries,
                                   const std::array<token_id, 256>& byte_ids,
                                   std::vector<merge_rule> merges) {
  tokenizer t;
  DI_TRY(t.pairs_, byte_pairs::build(byte_ids, std::move(merges)));
  std::sort(entries.begin(), entries.end(),
            [](const entry& a, const entry& b) { return a.id < b.id; });
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const entry& e = entries[i];
    if (e.id < 0 || static_cast<std::uint32_t>(e.id) >= byte_pairs::ids_max)
      return fail(ec::bad_argument, "token id {} lies outside [0, {})", e.id, byte_pairs::ids_max);
    if (i > 0 && entries[i - 1].id == e.id)
      return fail(ec::duplicate, "token id {} is given to two tokens", e.id);
    if (t.blob_.size() + e.bytes.size() > ~std::uint32_t{0})
      return fail(ec::limit_exceeded, "tokens hold more than {} bytes", ~std::uint32_t{0});
    if (e.bytes.empty())
      return fail(ec::bad_argument, "token id {} has no content", e.id);
    t.begins_.resize(static_cast<std::size_t>(e.id) + 1,
                     static_cast<std::uint32_t>(t.blob_.size()));
    t.flags_.resize(static_cast<std::size_t>(e.id) + 1, 0);
    t.blob_ += e.bytes;
    t.flags_.back() =
        static_cast<std::uint8_t>((e.added ? flag_added : 0) | (e.special ? flag_special : 0));
    if (e.added && !t.finder_.insert(e.bytes, e.id))
      return fail(ec::duplicate, "added token id {} has the content of another one", e.id);
  }
  t.begins_.push_back(static_cast<std::uint32_t>(t.blob_.size()));
  t.index_whole_pieces(entries);
  return t;
}

// Most words of a text are one token. Which ones is found by merging every entry once, here.
void tokenizer::index_whole_pieces(const std::vector<entry>& entries) {
  whole_slots_.assign(std::bit_ceil(entries.size() * 2 + 16), empty_slot);
  std::vector<token_id> merged;
  for (const entry& e : entries) {
    merged.clear();
    pairs_.merge(e.bytes, merged);
    if (merged.size() != 1 || merged[0] != e.id)
      continue;
    const std::uint64_t hash = hash_of(e.bytes);
    std::size_t place = hash & (whole_slots_.size() - 1);
    while (whole_slots_[place] != empty_slot)
      place = (place + 1) & (whole_slots_.size() - 1);
    whole_slots_[place] = (hash >> 32) << 32 | static_cast<std::uint32_t>(e.id);
  }
}

token_id tokenizer::whole_piece(std::string_view piece) const noexcept {
  const std::uint64_t hash = hash_of(piece);
  const std::size_t mask = whole_slots_.size() - 1;
  for (std::size_t place = hash & mask;; place = (place + 1) & mask) {
    const std::uint64_t slot = whole_slots_[place];
    if (slot == empty_slot)
      return -1;
    if (slot >> 32 != hash >> 32)
      continue;
    const auto id = static_cast<token_id>(slot & 0xFFFFFFFFU);
    if (token_bytes(id) == piece)
      return id;
  }
}

void tokenizer::encode_stretch(std::string_view text, std::vector<std::size_t>& ends,
                               std::vector<token_id>& out) const {
  cut_pieces(text, ends);
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    const std::string_view piece = text.substr(begin, end - begin);
    begin = end;
    if (const token_id id = whole_piece(piece); id >= 0)
      out.push_back(id);
    else
      pairs_.merge(piece, out);
  }
}

result<std::vector<token_id>> tokenizer::encode(std::string_view text, encode_mode mode) const {
  if (const std::size_t good = utf8_valid_prefix(text); good != text.size())
    return fail(ec::bad_format, "text is not UTF-8: byte {} of {} is 0x{:02X}", good, text.size(),
                static_cast<unsigned>(static_cast<std::uint8_t>(text[good])));
  std::vector<token_id> out;
  out.reserve(text.size() / 4 + 1);
  std::vector<std::size_t> ends;
  if (mode == encode_mode::plain) {
    encode_stretch(text, ends, out);
    return out;
  }
  for (std::size_t at = 0; at < text.size();) {
    const added_token_finder::hit hit = finder_.find(text, at);
    encode_stretch(text.substr(at, hit.begin - at), ends, out);
    if (hit.begin != hit.end)
      out.push_back(hit.id);
    at = hit.end;
  }
  return out;
}

std::string_view tokenizer::token_bytes(token_id id) const noexcept {
  if (id < 0 || static_cast<std::size_t>(id) >= size())
    return {};
  const auto i = static_cast<std::size_t>(id);
  return std::string_view{blob_}.substr(begins_[i], begins_[i + 1] - begins_[i]);
}

bool tokenizer::is_special(token_id id) const noexcept {
  return id >= 0 && static_cast<std::size_t>(id) < size()
         && (flags_[static_cast<std::size_t>(id)] & flag_special) != 0;
}

bool tokenizer::is_added(token_id id) const noexcept {
  return id >= 0 && static_cast<std::size_t>(id) < size()
         && (flags_[static_cast<std::size_t>(id)] & flag_added) != 0;
}

std::optional<token_id> tokenizer::added_token(std::string_view content) const {
  const added_token_finder::hit hit = finder_.find(content, 0);
  if (hit.begin == 0 && hit.end == content.size() && !content.empty())
    return hit.id;
  return std::nullopt;
}

std::string tokenizer::bytes(std::span<const token_id> ids, special_tokens special) const {
  std::string out;
  for (const token_id id : ids)
    if (special == special_tokens::keep || !is_special(id))
      out += token_bytes(id);
  return out;
}

std::string tokenizer::decode(std::span<const token_id> ids, special_tokens special) const {
  return utf8_lossy(bytes(ids, special));
}

std::string stream_decoder::push(token_id id) {
  std::string out;
  if (special_ == special_tokens::keep || !words_->is_special(id))
    text_.push(words_->token_bytes(id), out);
  return out;
}

std::string stream_decoder::flush() {
  std::string out;
  text_.flush(out);
  return out;
}

} // namespace di::engine
