// SPDX-License-Identifier: Apache-2.0
// Certificate and key as OpenSSL holds them.
#include "messaging/http/tls.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>

namespace di::http {

namespace {

std::string openssl_reason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0)
    return "no reason given";
  char text[256] = {};
  ERR_error_string_n(code, text, sizeof text);
  return text;
}

/// Picks http/1.1 if the client offers it; a client that offers only others is served without.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_bytes,
                    const unsigned char* offered, unsigned offered_bytes, void*) {
  static const unsigned char ours[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_bytes, ours, sizeof ours - 1, offered, offered_bytes)
      != OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_NOACK;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

} // namespace

result<tls_context> load_tls(const tls_files& files) {
  ERR_clear_error();
  tls_context context{SSL_CTX_new(TLS_server_method()), SSL_CTX_free};
  SSL_CTX* c = context.get();
  if (c == nullptr)
    return fail(ec::bad_config, "OpenSSL gives no TLS context: {}", openssl_reason());
  SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
  SSL_CTX_set_options(c, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION
                             | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(c, choose_protocol, nullptr);
  if (SSL_CTX_use_certificate_chain_file(c, files.certificate.c_str()) != 1)
    return fail(ec::bad_config, "TLS certificate {}: {}", files.certificate, openssl_reason());
  if (SSL_CTX_use_PrivateKey_file(c, files.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return fail(ec::bad_config, "TLS key {}: {}", files.key, openssl_reason());
  if (SSL_CTX_check_private_key(c) != 1)
    return fail(ec::bad_config, "TLS key {} does not belong to certificate {}: {}", files.key,
                files.certificate, openssl_reason());
  return context;
}

} // namespace di::http
