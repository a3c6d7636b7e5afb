// SPDX-License-Identifier: Apache-2.0
// Test-only: checkpoints to run on. Synthetic ones are written once into the build tree.
#pragma once

#include "engine/model/expert_runner.hpp"
#include "engine/model/forward.hpp"
#include "engine/model/loaded_model.hpp"
#include "engine/model/sequence_state.hpp"
#include "engine/model/synthetic.hpp"

#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

namespace di::testing {

/// Folder of a synthetic checkpoint, seed 1. Programs that run at the same time may ask for the
/// same one: each writes beside it and renames. Throws std::runtime_error.
inline std::string synthetic_checkpoint(const std::string& name, std::string config) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path{DI_BINARY_DIR} / "test_models" / name;
  if (fs::exists(dir / "config.json"))
    return dir.string();
  const fs::path draft = dir.string() + "." + std::to_string(::getpid());
  fs::create_directories(draft);
  engine::synthetic_options options;
  options.config_text = std::move(config);
  options.threads = 2;
  if (const auto done = engine::write_synthetic(options, draft.string()); !done.ok())
    throw std::runtime_error(done.error().render());
  std::error_code lost_the_race;
  fs::rename(draft, dir, lost_the_race);
  if (lost_the_race)
    fs::remove_all(draft);
  return dir.string();
}

inline std::string preset_checkpoint(const std::string& preset) {
  return synthetic_checkpoint(preset, std::string{*engine::preset_config(preset)});
}

inline std::string demo_checkpoint() {
  return std::string{DI_SOURCE_DIR} + "/launch/models/demo";
}

inline std::unique_ptr<engine::loaded_model> load_model(const std::string& folder) {
  auto model = engine::loaded_model::load(folder);
  if (!model.ok())
    throw std::runtime_error(model.error().render());
  return std::move(*model);
}

/// All that is needed to run steps of a model on one rank.
struct test_engine {
  explicit test_engine(const engine::loaded_model& m, unsigned threads = 1,
                       const kernels::op_table& o = kernels::best_cpu_ops(),
                       std::uint32_t pages = 256)
      : model{m},
        ops{o},
        stream{kernels::make_cpu_stream(threads)},
        layout{engine::make_kv_layout(m.spec())},
        pool{std::move(
            *engine::page_pool::create(std::max<std::size_t>(layout.page_bytes, 1), pages))},
        steps{engine::make_forward(m, o, *stream)},
        experts{engine::make_expert_runner(m, o, *stream)},
        loop{*steps, *experts} {}

  std::unique_ptr<engine::sequence_state> sequence() {
    return std::make_unique<engine::sequence_state>(layout, *pool);
  }

  /// One step of one sequence; logits of all its rows [rows, vocab].
  std::vector<float> run(engine::sequence_state& sequence, std::span<const token_id> tokens) {
    engine::step_segment segment;
    segment.sequence = &sequence;
    segment.first_position = static_cast<std::uint32_t>(sequence.length());
    segment.tokens = tokens;
    segment.logits = engine::logits_wanted::all;
    if (const auto done = loop.run({&segment, 1}); !done.ok())
      throw std::runtime_error(done.error().render());
    const auto logits = steps->logits(0);
    return {logits.begin(), logits.end()};
  }

  const engine::loaded_model& model;
  const kernels::op_table& ops;
  std::unique_ptr<kernels::stream> stream;
  engine::kv_layout layout;
  std::unique_ptr<engine::page_pool> pool;
  std::unique_ptr<engine::forward> steps;
  std::unique_ptr<engine::expert_runner> experts;
  engine::local_expert_loop loop;
};

} // namespace di::testing
