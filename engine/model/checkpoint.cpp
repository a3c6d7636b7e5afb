// SPDX-License-Identifier: Apache-2.0
#include "engine/model/checkpoint.hpp"

#include "engine/model/bounded_json.hpp"
#include "engine/model/sha256.hpp"
#include "engine/model/tensor_table.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <unordered_map>

namespace di::engine {
namespace {

constexpr const char* config_name = "config.json";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* single_name = "model.safetensors";
constexpr const char* token_map_name = "engram_token_map.i32";
constexpr const char* engram_meta_name = "engram_meta.json";
constexpr std::size_t sample_bytes = 64;
constexpr std::size_t table_slack =
    65536; ///< [tensors] beyond those stored that are listed one by one

/// "layers.2.ffn.experts.17.w1.weight" and alike, but not expert 0.
bool is_later_expert(std::string_view name) {
  const auto at = name.find(".experts.");
  return at != std::string_view::npos && name.substr(at + 9, 2) != "0.";
}

} // namespace

/// The steps of opening; each adds its defects and goes on with what is sound.
class checkpoint_opener {
public:
  checkpoint_opener(const std::string& dir, problem_list& problems)
      : dir_{dir}, problems_{problems} {}

  std::optional<checkpoint> run() {
    if (!config())
      return std::nullopt;
    const auto before = problems_.total();
    shards();
    // A tensor of a file that could not be read is not missing: the file was reported.
    complete_ = problems_.total() == before;
    if (index_)
      against_index(*index_);
    std::sort(c_.tensors_.begin(), c_.tensors_.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    duplicates();
    against_table();
    if (!c_.spec_.engram_layer_ids.empty()) {
      token_map();
      engram_meta();
    }
    return std::move(c_);
  }

private:
  std::string path(std::string_view name) const { return dir_ + "/" + std::string{name}; }

  bool config() {
    auto file = mapped_file::open(path(config_name));
    if (!file.ok()) {
      problems_.add(file.error());
      return false;
    }
    c_.config_ = std::move(*file);
    auto spec = parse_model_spec(c_.config_.text(), config_name);
    if (!spec.ok()) {
      problems_.add(spec.error());
      return false;
    }
    c_.spec_ = std::move(*spec);
    for (const auto& key : c_.spec_.unknown_keys)
      c_.notes_.push_back(
          fmt::format("{}: key {} is not known and has no effect", config_name, key));
    return true;
  }

  void shards() {
    auto text = mapped_file::open(path(index_name));
    if (!text.ok()) {
      if (text.error().code != ec::not_found)
        problems_.add(text.error());
      else if (!shard(single_name))
        problems_.add(ec::not_found, "{}: expected {} or {}, found neither", dir_, index_name,
                      single_name);
      where_ = single_name;
      return;
    }
    where_ = index_name;
    auto index = parse_checkpoint_index(text->text(), index_name);
    if (!index.ok()) {
      problems_.add(index.error());
      return;
    }
    index_ = std::move(*index);
    std::vector<std::string> names;
    for (const auto& [tensor, file] : index_->shard_of)
      names.push_back(file);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    for (const auto& name : names)
      if (!shard(name))
        problems_.add(ec::not_found, "{}: expected shard {}, found no such file", index_name, name);
  }

  /// Maps one file and lists its tensors. False if there is no such file.
  bool shard(const std::string& name) {
    auto map = mapped_file::open(path(name));
    if (!map.ok()) {
      if (map.error().code == ec::not_found)
        return false;
      problems_.add(map.error());
      return true;
    }
    const auto number = static_cast<std::uint32_t>(c_.files_.size());
    const auto header =
        parse_safetensors_header(map->bytes(), map->bytes().size(), name, problems_);
    for (const auto& e : header.tensors) {
      stored_in_[e.name] = number;
      c_.tensors_.push_back(
          {canonical_tensor_name(e.name),
           {e.type, e.shape, map->bytes().data() + header.data_start + e.begin, e.end - e.begin},
           number});
      c_.data_bytes_ += e.end - e.begin;
    }
    c_.files_.push_back(name);
    c_.maps_.push_back(std::move(*map));
    return true;
  }

  void against_index(const checkpoint_index& index) {
    std::size_t matched = 0;
    for (const auto& [tensor, file] : index.shard_of) {
      const auto it = stored_in_.find(tensor);
      if (it == stored_in_.end()) {
        if (complete_)
          problems_.add(ec::not_found, "{}: tensor {}: expected in {}, found in no shard",
                        index_name, tensor, file);
        continue;
      }
      ++matched;
      if (c_.files_[it->second] != file)
        problems_.add(ec::bad_format, "{}: tensor {}: expected in {}, found in {}", index_name,
                      tensor, file, c_.files_[it->second]);
    }
    if (matched < stored_in_.size()) {
      for (const auto& [tensor, file] : stored_in_)
        if (!std::binary_search(index.shard_of.begin(), index.shard_of.end(),
                                std::pair<std::string, std::string>{tensor, {}},
                                [](const auto& a, const auto& b) { return a.first < b.first; }))
          problems_.add(ec::bad_format, "{}: tensor {}: expected in {}, found no entry", index_name,
                        tensor, c_.files_[file]);
    }
    if (index.total_size && *index.total_size != c_.data_bytes_)
      c_.notes_.push_back(fmt::format("{}: total_size {} differs from the {} bytes of all tensors",
                                      index_name, *index.total_size, c_.data_bytes_));
  }

  void duplicates() {
    auto& t = c_.tensors_;
    for (std::size_t i = 1; i < t.size(); ++i)
      if (t[i].name == t[i - 1].name)
        problems_.add(ec::duplicate, "{}: tensor {}: expected once, found in {} too",
                      c_.files_[t[i].file], t[i].name, c_.files_[t[i - 1].file]);
  }

  void against_table() {
    // A small config may demand millions of tensors; the table may grow with the files only.
    const auto& spec = c_.spec_;
    const auto experts = spec.num_hidden_layers * spec.n_routed_experts
                         + spec.draft_layers() * spec.dspark_n_routed_experts;
    if (static_cast<std::size_t>(6 * experts) > c_.tensors_.size() + table_slack) {
      problems_.add(ec::bad_config,
                    "{}: expected {} tensors of routed experts, found {} tensors in "
                    "all",
                    config_name, 6 * experts, c_.tensors_.size());
      return;
    }
    auto table = expected_tensors(c_.spec_);
    std::sort(table.begin(), table.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    auto want = table.begin();
    auto have = c_.tensors_.begin();
    while (want != table.end() || have != c_.tensors_.end()) {
      if (have == c_.tensors_.end() || (want != table.end() && want->name < have->name)) {
        if (!want->optional && complete_)
          problems_.add(ec::not_found, "{}: tensor {}: expected {} {}, found none", where_,
                        want->name, to_string(want->type), to_string(want->shape));
        ++want;
      } else if (want == table.end() || have->name < want->name) {
        const bool again = have != c_.tensors_.begin() && (have - 1)->name == have->name;
        if (!again) // reported as a duplicate
          problems_.add(ec::bad_format, "{}: tensor {}: expected no such tensor, found {} {}",
                        c_.files_[have->file], have->name.substr(0, 120),
                        to_string(have->view.type), to_string(have->view.shape));
        ++have;
      } else {
        if (!type_fits(want->type, have->view.type) || want->shape != have->view.shape)
          problems_.add(ec::bad_shape, "{}: tensor {}: expected {} {}, found {} {}",
                        c_.files_[have->file], have->name, to_string(want->type),
                        to_string(want->shape), to_string(have->view.type),
                        to_string(have->view.shape));
        ++want;
        ++have;
      }
    }
  }

  void token_map() {
    const auto vocab = static_cast<std::size_t>(c_.spec_.vocab_size);
    auto map = mapped_file::open(path(token_map_name));
    if (!map.ok()) {
      if (map.error().code == ec::not_found)
        problems_.add(
            ec::not_found,
            "{}: expected {} little-endian int32 (class of every token id), found no file",
            token_map_name, vocab);
      else
        problems_.add(map.error());
      return;
    }
    if (map->bytes().size() != vocab * 4) {
      problems_.add(ec::bad_format, "{}: expected {} bytes, 4 per token id, found {}",
                    token_map_name, vocab * 4, map->bytes().size());
      return;
    }
    const std::span<const std::int32_t> ids{
        reinterpret_cast<const std::int32_t*>(map->bytes().data()), vocab};
    for (std::size_t i = 0; i < vocab; ++i)
      if (ids[i] < 0 || ids[i] >= c_.spec_.engram_compressed_vocab_size) {
        problems_.add(ec::bad_format, "{}: token id {}: expected a class in 0..{}, found {}",
                      token_map_name, i, c_.spec_.engram_compressed_vocab_size - 1, ids[i]);
        return;
      }
    c_.token_map_file_ = std::move(*map);
    c_.token_map_ = ids;
  }

  /// The file is a copy of what follows from the configuration; it must say the same.
  void engram_meta() {
    const auto file = mapped_file::open(path(engram_meta_name));
    if (!file.ok()) {
      if (file.error().code != ec::not_found)
        problems_.add(file.error());
      return;
    }
    const auto root = parse_bounded_json(file->text(), engram_meta_name);
    if (!root.ok()) {
      problems_.add(root.error());
      return;
    }
    const auto& computed = c_.spec_.engram;
    const auto same = [&](const char* key, const nlohmann::json& expected) {
      if (!root->is_object() || root->value(key, nlohmann::json{}) != expected)
        problems_.add(ec::bad_config,
                      "{}: {}: expected the numbers that follow from {}, {}, found "
                      "others",
                      engram_meta_name, key, config_name, expected.dump().substr(0, 200));
    };
    same("primes", computed.primes);
    same("multipliers", computed.multipliers);
  }

  const std::string& dir_;
  problem_list& problems_;
  checkpoint c_;
  std::optional<checkpoint_index> index_;
  bool complete_ = true; ///< all files were read and have sound headers
  std::string where_;    ///< the file that is to blame for a missing tensor
  std::unordered_map<std::string, std::uint32_t> stored_in_; ///< name as spelled -> file
};

std::optional<checkpoint> checkpoint::inspect(const std::string& dir, problem_list& problems) {
  return checkpoint_opener{dir, problems}.run();
}

result<checkpoint> checkpoint::open(const std::string& dir) {
  problem_list problems;
  auto c = inspect(dir, problems);
  if (!problems.empty()) {
    auto e = problems.to_error();
    e.what = dir + ": " + e.what;
    return fail(std::move(e));
  }
  return std::move(*c);
}

const tensor_view* checkpoint::find(std::string_view name) const noexcept {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const named_tensor& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &it->view : nullptr;
}

bool checkpoint::is_mapped(const void* data, std::size_t size) const noexcept {
  const auto* first = static_cast<const std::byte*>(data);
  for (const mapped_file& m : maps_) {
    const auto all = m.bytes();
    const std::less_equal<const std::byte*> before;
    if (!all.empty() && before(all.data(), first) && before(first, all.data() + all.size()))
      return size <= static_cast<std::size_t>(all.data() + all.size() - first);
  }
  return false;
}

std::string checkpoint::hash() const {
  sha256 h;
  h.update(config_.bytes());
  h.update(token_map_file_.bytes());
  for (const auto& m : maps_)
    m.expect_scattered(true); // or each sample reads megabytes around it
  for (const auto& t : tensors_) {
    h.update(fmt::format("\n{} {} {}\n", t.name, to_string(t.view.type), to_string(t.view.shape)));
    if (is_later_expert(t.name))
      continue;
    const std::uint64_t n = std::min<std::uint64_t>(sample_bytes, t.view.bytes);
    h.update({t.view.data + (t.view.bytes - n) / 2, static_cast<std::size_t>(n)});
  }
  for (const auto& m : maps_)
    m.expect_scattered(false);
  return h.hex();
}

} // namespace di::engine
