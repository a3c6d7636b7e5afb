// SPDX-License-Identifier: Apache-2.0
// A shared object that includes the kit and registers nothing.
#include "actors/kit.hpp"
