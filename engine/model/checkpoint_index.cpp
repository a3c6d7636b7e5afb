// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json: parsing and names.
#include "engine/model/bounded_json.hpp"
#include "engine/model/checkpoint.hpp"

#include <nlohmann/json.hpp>

namespace di::engine {
namespace {

constexpr std::size_t index_bytes_max = std::size_t{256} << 20;
constexpr std::size_t file_name_max = 255; ///< [bytes] as file systems have it

bool plain_file_name(const std::string& name) {
  return !name.empty() && name.size() <= file_name_max && name.front() != '.'
         && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

} // namespace

std::string canonical_tensor_name(std::string_view name) {
  if (name.starts_with("model."))
    name.remove_prefix(6);
  if (name.starts_with("lm_head."))
    return "head." + std::string{name.substr(8)};
  return std::string{name};
}

result<checkpoint_index> parse_checkpoint_index(std::string_view text, std::string_view file) {
  DI_TRY(const nlohmann::json root, parse_bounded_json(text, file, {index_bytes_max, 4}));
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object())
    return fail(ec::bad_format, "{}: expected an object with an object weight_map, found {}", file,
                map == root.end() ? "none" : map->type_name());
  checkpoint_index index;
  for (const auto& item : map->items()) {
    const auto& shard = item.value();
    if (!shard.is_string() || !plain_file_name(shard.get_ref<const std::string&>()))
      return fail(ec::bad_format,
                  "{}: weight_map: tensor {}: expected a file name without folders, found {}", file,
                  item.key().substr(0, 120), shard.dump().substr(0, 120));
    index.shard_of.emplace_back(item.key(), shard.get<std::string>());
  }
  if (const auto meta = root.find("metadata"); meta != root.end() && meta->is_object())
    if (const auto total = meta->find("total_size");
        total != meta->end() && total->is_number_unsigned())
      index.total_size = total->get<std::uint64_t>();
  return index;
}

} // namespace di::engine
