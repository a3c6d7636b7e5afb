// SPDX-License-Identifier: Apache-2.0
// A checkpoint directory: config, shards mapped read-only, every tensor checked against what the
// configuration demands.
#pragma once

#include "engine/model/problems.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/spec.hpp"
#include "engine/model/tensor.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// An open checkpoint. Owns the mappings: views from find() live as long as it does. Moves, does
/// not copy. Reading is safe from any thread.
///
/// Files of a directory: config.json; model.safetensors.index.json with its shards, or else
/// model.safetensors; with Engram layers engram_token_map.i32 and, if present, engram_meta.json.
class checkpoint {
public:
  /// Opens and checks everything that headers can tell; data pages are not read but for a few.
  ///
  /// @errors  every defect in one error, one line each: "file: tensor X: expected ..., found ...";
  ///          the code is that of the first
  /// @cost    proportional to the headers: 96,085 tensors (475 GiB) take about a second
  static result<checkpoint> open(const std::string& dir);

  /// Like open(), but keeps what could be read although there are defects. None if the
  /// configuration itself is unusable.
  static std::optional<checkpoint> inspect(const std::string& dir, problem_list& problems);

  const model_spec& spec() const noexcept { return spec_; }

  /// A tensor by its canonical name ("layers.3.attn.wq_a.weight", "head.weight"), or null.
  const tensor_view* find(std::string_view name) const noexcept;

  /// [vocab_size] compressed class of every token id; empty without Engram layers.
  std::span<const std::int32_t> engram_token_map() const noexcept { return token_map_; }

  /// The part of the contract id that stands for the weights: 64 hexadecimal digits. SHA-256 over
  /// config.json, the token map, and for every tensor in name order its name, type and shape; 64
  /// bytes from the middle of each tensor but experts other than number 0. So it does not depend on
  /// how tensors are spread over shards, and it touches about 1,800 pages of a real model.
  std::string hash() const;

  struct named_tensor {
    std::string name; ///< canonical
    tensor_view view;
    std::uint32_t file = 0; ///< index into files()
  };
  std::span<const named_tensor> tensors() const noexcept { return tensors_; } ///< by name
  /// Whether bytes lie in one of the mapped shards.
  bool is_mapped(const void* data, std::size_t size) const noexcept;
  std::span<const std::string> files() const noexcept { return files_; } ///< shard names
  std::uint64_t data_bytes() const noexcept { return data_bytes_; }      ///< [bytes] of all tensors

  /// Oddities that are no defects: unknown config keys, a total_size that does not add up.
  std::span<const std::string> notes() const noexcept { return notes_; }

private:
  friend class checkpoint_opener;

  model_spec spec_;
  std::vector<mapped_file> maps_; ///< shards in the order of files_
  std::vector<std::string> files_;
  std::vector<named_tensor> tensors_;
  mapped_file config_;
  mapped_file token_map_file_;
  std::span<const std::int32_t> token_map_;
  std::uint64_t data_bytes_ = 0;
  std::vector<std::string> notes_;
};

/// The weight map of model.safetensors.index.json, by tensor name as spelled in the file.
struct checkpoint_index {
  std::vector<std::pair<std::string, std::string>> shard_of; ///< tensor -> file, by tensor name
  std::optional<std::uint64_t> total_size;                   ///< [bytes] as claimed
};

/// Parses an index from untrusted text. File names must be plain: no folders, no "..".
/// @errors ec::bad_format, ec::duplicate, ec::limit_exceeded
result<checkpoint_index> parse_checkpoint_index(std::string_view text, std::string_view file);

/// "model.layers.0.x" -> "layers.0.x", "lm_head.weight" -> "head.weight".
std::string canonical_tensor_name(std::string_view name);

} // namespace di::engine
