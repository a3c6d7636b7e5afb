// SPDX-License-Identifier: Apache-2.0
#include "engine/model/problems.hpp"

namespace di::engine {

void problem_list::add_text(ec code, std::string text) {
  ++total_;
  if (kept_.size() < kept_max)
    kept_.push_back({code, std::move(text)});
}

error problem_list::to_error() const {
  DI_CHECK(!empty());
  error all{kept_.front().code, kept_.front().what};
  for (std::size_t i = 1; i < kept_.size(); ++i)
    all.what += "\n" + kept_[i].what;
  if (total_ > kept_.size())
    all.what += fmt::format("\nand {} more defects", total_ - kept_.size());
  return all;
}

} // namespace di::engine
