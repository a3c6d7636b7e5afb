// SPDX-License-Identifier: Apache-2.0
// Certificate and key as OpenSSL holds them.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/http/options.hpp"

#include <memory>

struct ssl_ctx_st;

namespace di::http {

using tls_context = std::shared_ptr<ssl_ctx_st>;

/// TLS 1.2 and 1.3, server side, ALPN http/1.1.
/// @errors bad_config: a file is missing, broken, or the key does not fit the certificate
result<tls_context> load_tls(const tls_files& files);

} // namespace di::http
