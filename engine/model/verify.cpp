// SPDX-License-Identifier: Apache-2.0
// End-to-end check of logits and greedy tokens, and the walk over a folder of golden vectors.
#include "engine/model/verify.hpp"

#include "engine/model/expert_runner.hpp"
#include "engine/model/forward.hpp"
#include "engine/model/sequence_state.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace di::engine {

void verify_report::add_failure(std::string text) {
  if (failures_total++ < failures_max)
    failures.push_back(std::move(text));
}

namespace {

/// One prompt's run: a sequence and all it needs.
class prompt_run {
public:
  prompt_run(const verify_subject& subject, const kv_layout& layout, page_pool& pool)
      : sequence_{layout, pool},
        steps_{make_forward(subject.model, subject.ops, subject.stream)},
        experts_{make_expert_runner(subject.model, subject.ops, subject.stream)},
        loop_{*steps_, *experts_} {}

  /// Logits of all rows: [rows, vocab], valid until the next call.
  result<std::span<const float>> run(std::span<const std::int32_t> tokens) {
    step_segment segment;
    segment.sequence = &sequence_;
    segment.first_position = static_cast<std::uint32_t>(sequence_.length());
    segment.tokens = tokens;
    segment.logits = logits_wanted::all;
    DI_TRY_VOID(loop_.run({&segment, 1}));
    return steps_->logits(0);
  }

private:
  sequence_state sequence_;
  std::unique_ptr<forward> steps_;
  std::unique_ptr<expert_runner> experts_;
  local_expert_loop loop_;
};

std::int32_t best(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class logits_check {
public:
  logits_check(const verify_subject& subject, const golden_vectors& golden, verify_report& report,
               const verify_limits& limits)
      : subject_{subject},
        golden_{golden},
        report_{report},
        limits_{limits},
        vocab_{static_cast<std::size_t>(subject.model.spec().vocab_size)},
        layout_{make_kv_layout(subject.model.spec())} {}

  result<void> run() {
    for (const auto& [name, view] : golden_.tensors())
      if (name.ends_with(".tokens") && view.type == dtype::i32)
        DI_TRY_VOID(check_prompt(name.substr(0, name.size() - 7)));
    std::sort(row_rms_.begin(), row_rms_.end());
    if (row_rms_.empty())
      return fail(ec::not_found, "{}: no prompt with logits", golden_.path());
    const double median = row_rms_[row_rms_.size() / 2];
    report_.summaries.push_back(fmt::format(
        "{}: {} rows, row rms median {:.4f} max {:.4f}, largest difference {:.4f}; {} "
        "greedy steps",
        golden_.path(), row_rms_.size(), median, row_rms_.back(), largest_, report_.steps));
    if (median > limits_.row_rms_median)
      report_.add_failure(fmt::format("{}: median row rms {:.4f} exceeds {}", golden_.path(),
                                      median, limits_.row_rms_median));
    return {};
  }

private:
  /// Expected values of one row against ours.
  void compare_row(const std::string& where, std::span<const float> expected,
                   std::span<const float> found) {
    double squares = 0;
    double largest = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double d = std::abs(static_cast<double>(expected[i]) - static_cast<double>(found[i]));
      squares += d * d;
      if (!(d <= largest)) {
        largest = d;
        at = i;
      }
    }
    const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
    ++report_.rows;
    row_rms_.push_back(rms);
    largest_ = std::max(largest_, largest);
    if (!(rms <= limits_.row_rms_max) || !(largest <= limits_.element_max))
      report_.add_failure(fmt::format(
          "{}: {}: row rms {:.4f} ({:.0f} % of the tolerance), largest {:.4f} ({:.0f} %) at column "
          "{}: expected {:.5f}, found {:.5f}",
          golden_.path(), where, rms, 100 * rms / limits_.row_rms_max, largest,
          100 * largest / limits_.element_max, at, static_cast<double>(expected[at]),
          static_cast<double>(found[at])));
  }

  /// Stored rows [rows, vocab] of a tensor, if it is there.
  void compare_rows(const std::string& name, std::span<const float> found) {
    const auto expected = golden_.elements<float>(name);
    const std::size_t rows = expected.size() / vocab_;
    for (std::size_t r = 0; r < rows && (r + 1) * vocab_ <= found.size(); ++r)
      compare_row(fmt::format("{} row {}", name, r), expected.subspan(r * vocab_, vocab_),
                  found.subspan(r * vocab_, vocab_));
  }

  /// Step k: row k of `rows` predicts greedy[k].
  void compare_steps(const std::string& prompt, std::span<const float> rows) {
    const auto greedy = golden_.elements<std::int32_t>(prompt + ".greedy");
    const auto ids = golden_.elements<std::int32_t>(prompt + ".step_top16_ids");
    const auto top = golden_.elements<float>(prompt + ".step_top16_logits");
    for (std::size_t k = 0; k < greedy.size() && (k + 1) * 16 <= ids.size(); ++k) {
      const auto row = rows.subspan(k * vocab_, vocab_);
      std::vector<float> found;
      for (std::size_t i = 0; i < 16; ++i)
        found.push_back(row[static_cast<std::size_t>(ids[k * 16 + i])]);
      compare_row(fmt::format("{}.step_top16_logits row {}", prompt, k), top.subspan(k * 16, 16),
                  found);
      ++report_.steps;
      const auto margin = static_cast<double>(top[k * 16] - top[k * 16 + 1]);
      const std::int32_t pick = best(row);
      if (pick != greedy[k] && margin > limits_.margin)
        report_.add_failure(
            fmt::format("{}: {}: teacher-forced step {} picks {}, expected {} with margin {:.3f}",
                        golden_.path(), prompt, k, pick, greedy[k], margin));
    }
  }

  /// Free-running greedy must agree up to the first step of low margin.
  result<void> check_free_run(const std::string& prompt, std::span<const std::int32_t> tokens,
                              page_pool& pool) {
    const auto greedy = golden_.elements<std::int32_t>(prompt + ".greedy");
    const auto top = golden_.elements<float>(prompt + ".step_top16_logits");
    prompt_run run{subject_, layout_, pool};
    std::vector<std::int32_t> next{tokens.begin(), tokens.end()};
    for (std::size_t k = 0; k < greedy.size(); ++k) {
      if (static_cast<double>(top[k * 16] - top[k * 16 + 1]) <= limits_.margin)
        return {};
      DI_TRY(const std::span<const float> rows, run.run(next));
      const std::int32_t pick = best(rows.last(vocab_));
      if (pick != greedy[k]) {
        report_.add_failure(fmt::format("{}: {}: free-running step {} gives {}, expected {}",
                                        golden_.path(), prompt, k, pick, greedy[k]));
        return {};
      }
      next.assign(1, pick);
    }
    return {};
  }

  result<void> check_prompt(const std::string& prompt) {
    const auto tokens = golden_.elements<std::int32_t>(prompt + ".tokens");
    const auto greedy = golden_.elements<std::int32_t>(prompt + ".greedy");
    if (tokens.empty() || greedy.empty())
      return fail(ec::bad_format, "{}: prompt {} lacks tokens or greedy tokens", golden_.path(),
                  prompt);
    if (golden_.elements<float>(prompt + ".prefill_logits_last").size() != vocab_)
      return fail(ec::bad_shape, "{}: {}.prefill_logits_last is not of a vocabulary of {}",
                  golden_.path(), prompt, vocab_);
    const auto length = static_cast<std::int64_t>(tokens.size() + greedy.size());
    DI_TRY(const std::unique_ptr<page_pool> pool,
           page_pool::create(std::max<std::size_t>(layout_.page_bytes, 1),
                             static_cast<std::uint32_t>(2 * layout_.pages_for(length))));
    prompt_run run{subject_, layout_, *pool};
    DI_TRY(std::span<const float> rows, run.run(tokens));
    compare_rows(prompt + ".prefill_logits_all", rows);
    compare_rows(prompt + ".prefill_logits_last", rows.last(vocab_));
    std::vector<float> steps{rows.last(vocab_).begin(), rows.last(vocab_).end()};
    if (greedy.size() > 1) {
      DI_TRY(rows, run.run(greedy.first(greedy.size() - 1)));
      steps.insert(steps.end(), rows.begin(), rows.end());
    }
    compare_rows(prompt + ".step_logits", steps);
    compare_steps(prompt, steps);
    return check_free_run(prompt, tokens, *pool);
  }

  const verify_subject& subject_;
  const golden_vectors& golden_;
  verify_report& report_;
  const verify_limits& limits_;
  std::size_t vocab_;
  kv_layout layout_;
  std::vector<double> row_rms_;
  double largest_ = 0;
};

} // namespace

result<void> verify_logits(const verify_subject& subject, const golden_vectors& logits,
                           verify_report& report, const verify_limits& limits) {
  return logits_check{subject, logits, report, limits}.run();
}

result<verify_report> verify_golden(const verify_subject& subject, const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator{folder, ignored})
    files.push_back(entry.path().filename().string());
  std::sort(files.begin(), files.end());
  verify_report report;
  constexpr std::string_view logits_end = ".logits.safetensors";
  bool any = false;
  for (const std::string& file : files) {
    if (!file.ends_with(logits_end))
      continue;
    any = true;
    const std::string name = file.substr(0, file.size() - logits_end.size());
    DI_TRY(const golden_vectors logits, golden_vectors::open(folder + "/" + file));
    for (const std::string& captures_file : files) {
      const std::string start = name + ".layers.";
      if (!captures_file.starts_with(start) || !captures_file.ends_with(".safetensors"))
        continue;
      const std::string prompt =
          captures_file.substr(start.size(), captures_file.size() - start.size()
                                                 - std::string_view{".safetensors"}.size());
      DI_TRY(const golden_vectors captures, golden_vectors::open(folder + "/" + captures_file));
      const auto tokens = logits.elements<std::int32_t>(prompt + ".tokens");
      if (tokens.empty())
        return fail(ec::not_found, "{}/{}: no tokens of prompt {} for {}", folder, file, prompt,
                    captures_file);
      DI_TRY_VOID(verify_layers(subject, captures, tokens,
                                logits.elements<std::int32_t>(prompt + ".greedy"), report));
    }
    DI_TRY_VOID(verify_logits(subject, logits, report));
  }
  if (!any)
    return fail(ec::not_found, "{}: no file *{} there", folder, logits_end);
  return report;
}

} // namespace di::engine
