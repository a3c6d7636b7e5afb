// SPDX-License-Identifier: Apache-2.0
#include "messaging/base/env.hpp"

#include <random>

namespace di {
namespace {

class real final : public env {
public:
  instant now() const override {
    const auto t = std::chrono::steady_clock::now().time_since_epoch();
    return {std::chrono::duration_cast<duration>(t).count()};
  }
  std::uint64_t random() override {
    thread_local std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }
};

} // namespace

env& real_env() {
  static real instance;
  return instance;
}

} // namespace di
