// SPDX-License-Identifier: Apache-2.0
// Actor types with mistakes; each DI_CASE must not compile, and the compiler must say the sentence
// that kit.hpp promises. Case 0 has none, to prove that the rest would compile.
#include "actors/kit.hpp"

struct order {
  static constexpr di::wire_id wire{0x8401};
  DI_FIELDS(order)
};
struct bill {
  static constexpr di::wire_id wire{0x8402};
  DI_FIELDS(bill)
};

struct shop_core {
#if DI_CASE == 3
  explicit shop_core(int) {
  }
#endif
#if DI_CASE == 2
  di::result<order> on(const order&) {
    return order{};
  }
#elif DI_CASE != 1
  di::result<bill> on(const order&) {
    return bill{};
  }
#endif
};

struct shop {
  static constexpr auto kind = "shop";
  using core = shop_core;
#if DI_CASE == 4
  using protocol = di::protocol<di::replies_to<order>::with<bill>, di::reacts_to<order>>;
#elif DI_CASE == 5
  using protocol = di::protocol<di::replies_to<order>::with<bill>, di::reacts_to<bill>>;
#else
  using protocol = di::protocol<di::replies_to<order>::with<bill>>;
#endif
};

DI_REGISTER_ACTOR(shop)
