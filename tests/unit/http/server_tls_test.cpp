// SPDX-License-Identifier: Apache-2.0
// The server over TLS, with certificates made on the spot.
#include "messaging/http/server.hpp"
#include "tests/support/http_client.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/unit/http/server_fixture.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace di::http {
namespace {

using testing::http_client;
using namespace std::chrono_literals;

/// A key and a certificate of its own, as PEM files.
tls_files make_certificate(const std::string& folder, const std::string& name) {
  const tls_files files{folder + "/" + name + ".crt", folder + "/" + name + ".key"};
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* x = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
  X509_gmtime_adj(X509_getm_notBefore(x), -60);
  X509_gmtime_adj(X509_getm_notAfter(x), 3600);
  X509_set_pubkey(x, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(x, X509_get_subject_name(x));
  X509_sign(x, key, EVP_sha256());
  std::FILE* f = std::fopen(files.certificate.c_str(), "w");
  PEM_write_X509(f, x);
  std::fclose(f);
  f = std::fopen(files.key.c_str(), "w");
  PEM_write_PrivateKey(f, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(f);
  X509_free(x);
  EVP_PKEY_free(key);
  return files;
}

/// TLS over a client's socket.
class tls_client {
public:
  explicit tls_client(std::uint16_t port) : socket_{port} {
    const timeval patience{10, 0};
    ::setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    context_ = SSL_CTX_new(TLS_client_method());
    ssl_ = SSL_new(context_);
    SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>("\x02h2\x08http/1.1"), 12);
    SSL_set_fd(ssl_, socket_.fd());
    connected_ = SSL_connect(ssl_) == 1;
  }
  ~tls_client() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  bool connected() const { return connected_; }
  void send(std::string_view text) { SSL_write(ssl_, text.data(), static_cast<int>(text.size())); }
  std::string read_until(std::string_view text) {
    while (got_.find(text) == got_.npos) {
      char bytes[16384];
      const int n = SSL_read(ssl_, bytes, sizeof bytes);
      if (n <= 0)
        break;
      got_.append(bytes, static_cast<std::size_t>(n));
    }
    return got_;
  }
  bool ended() {
    char byte;
    return SSL_read(ssl_, &byte, 1) <= 0 && SSL_get_shutdown(ssl_) == SSL_RECEIVED_SHUTDOWN;
  }
  std::string protocol() const {
    const unsigned char* p = nullptr;
    unsigned n = 0;
    SSL_get0_alpn_selected(ssl_, &p, &n);
    return {reinterpret_cast<const char*>(p), n};
  }
  std::string server_name() const {
    X509* x = SSL_get1_peer_certificate(ssl_);
    char text[64] = {};
    X509_NAME_get_text_by_NID(X509_get_subject_name(x), NID_commonName, text, sizeof text);
    X509_free(x);
    return text;
  }
  void shutdown() { SSL_shutdown(ssl_); }
  http_client& socket() { return socket_; }

private:
  http_client socket_;
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
  std::string got_;
  bool connected_ = false;
};

const std::string get = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";

struct tls_test : ::testing::Test {
  testing::temporary_directory folder{"http_tls"};
  options with(const std::string& name) {
    options o = quick();
    o.tls = make_certificate(folder.path(), name);
    return o;
  }
};

TEST_F(tls_test, answers_and_streams) {
  waiting w;
  served s{w.handler(), with("one")};
  tls_client c{s.port()};
  ASSERT_TRUE(c.connected());
  EXPECT_EQ(c.protocol(), "http/1.1");
  c.send(get);
  w.next()->respond(200, {}, std::string(300'000, 'x') + "end");
  EXPECT_TRUE(c.read_until("end").starts_with("HTTP/1.1 200"));
  c.send(get);
  const auto e = w.next();
  EXPECT_TRUE(w.requests.back().tls);
  e->begin_stream(200, {});
  e->write("first");
  EXPECT_NE(c.read_until("first").find("first"), std::string::npos);
  e->write("second");
  EXPECT_NE(c.read_until("second").find("second"), std::string::npos);
  e->end(true);
  c.read_until("0\r\n\r\n");
  EXPECT_TRUE(c.ended()) << "with a proper close_notify";
}

TEST_F(tls_test, notices_that_the_client_left) {
  waiting w;
  served s{w.handler(), with("one")};
  for (const int how : {0, 1, 2}) {
    tls_client c{s.port()};
    c.send(get);
    const auto e = w.next();
    event<gone> told;
    e->on_gone([&](gone g) { told.set(g); });
    if (how == 0)
      c.shutdown();
    else
      how == 1 ? c.socket().close() : c.socket().reset();
    EXPECT_TRUE(told.wait().has_value()) << how;
  }
}

TEST_F(tls_test, gives_up_a_handshake_that_does_not_come) {
  auto o = with("one");
  o.timeouts.header = 100ms;
  served s{[](request, exchange_ptr) {}, o};
  http_client silent{s.port()}, plain{s.port()};
  plain.send(get);
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(plain.closed());
  EXPECT_TRUE(s.eventually([&] { return s->count().open == 0; }));
}

TEST_F(tls_test, takes_a_new_certificate_while_running) {
  served s{[](request, exchange_ptr e) { e->respond(200, {}, "ok"); }, with("one")};
  tls_client before{s.port()};
  EXPECT_EQ(before.server_name(), "one");
  const auto next = make_certificate(folder.path(), "two");
  const auto broken = s->reload_tls({next.certificate, folder.path() + "/one.key"});
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code, ec::bad_config);
  EXPECT_EQ(tls_client{s.port()}.server_name(), "one") << "the old one stays";
  EXPECT_TRUE(s->reload_tls(next).ok());
  EXPECT_EQ(tls_client{s.port()}.server_name(), "two");
  before.send(get);
  EXPECT_NE(before.read_until("ok").find("ok"), std::string::npos);
}

TEST_F(tls_test, says_what_is_wrong_with_the_files) {
  auto o = quick();
  o.tls = {folder.path() + "/none.crt", folder.path() + "/none.key"};
  auto s = server::start(o, {[](request, exchange_ptr) {}, {}, {}});
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.error().code, ec::bad_config);
  EXPECT_NE(s.error().what.find("none.crt"), std::string::npos);
}

} // namespace
} // namespace di::http
