// SPDX-License-Identifier: Apache-2.0
// The list of built-in actor types, the book of enrolled ones, and the loading of plugins.
#include "actors/registry.hpp"

#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <unistd.h>

namespace di {
namespace {

struct enrolment {
  std::uint32_t abi_version = 0;
  actor_type (*type)() = nullptr;
};

// What static objects have enrolled, by where it came from: a program may build several registries,
// but the static objects of a file run only once.
struct enrolled_book {
  std::mutex guard;
  std::vector<enrolment> fresh;                      // not yet asked for
  std::vector<enrolment> linked_in;                  // came with the program
  std::map<void*, std::vector<enrolment>> by_plugin; // dlopen handle -> its types
};

// A function, not an object: static objects of other files may enroll before this file's exist.
enrolled_book& enrolled() {
  static enrolled_book book;
  return book;
}

// Files what is fresh under `plugin`, or as linked in if null, and returns all of that origin.
std::vector<enrolment> enrolled_by(void* plugin) {
  auto& book = enrolled();
  const std::lock_guard lock{book.guard};
  auto& of = plugin ? book.by_plugin[plugin] : book.linked_in;
  of.insert(of.end(), book.fresh.begin(), book.fresh.end());
  book.fresh.clear();
  return of;
}

} // namespace

void enroll_actor(std::uint32_t abi_version, actor_type (*type)()) {
  auto& book = enrolled();
  const std::lock_guard lock{book.guard};
  book.fresh.push_back({abi_version, type});
}

} // namespace di

namespace di::actors {
namespace {

// Kinds of our own actors, by name: each is spawned by the code that owns its devices and routes,
// and no user type may pass for one of them.
constexpr std::string_view built_in_kinds[] = {"directory",  "expert_shard", "gateway", "journal",
                                               "kv_agent",   "membership",   "node",    "rank",
                                               "rebalancer", "registrar",    "sampler", "scheduler",
                                               "supervisor", "telemetry",    "topic"};

constexpr std::uint16_t first_user_id = 0x8000;

bool same(const wire::codec& a, const wire::codec& b) {
  return a.name == b.name && a.fields == b.fields;
}

failure taken(const actor_type& type, const wire::codec& by, const wire::codec& m) {
  return fail(ec::duplicate, "actor kind '{}': wire id {:#06x} of message {} is taken by {}",
              type.kind, m.id.v, m.name, by.name);
}

result<void> check_abi(std::uint32_t theirs, const std::string& where) {
  if (theirs == kit_abi_version)
    return {};
  return fail(ec::bad_format,
              "{}: built against kit ABI version {}, this program has {}; rebuild it", where,
              theirs, kit_abi_version);
}

result<void> add_enrolled(registry& into, const std::string& where,
                          const std::vector<enrolment>& types) {
  for (const auto& e : types) {
    DI_TRY_VOID(check_abi(e.abi_version, where));
    if (auto outcome = into.add(e.type()); !outcome)
      return fail(outcome.error().code, "{}: {}", where, outcome.error().what);
  }
  return {};
}

} // namespace

result<void> registry::add(const actor_type& type) {
  if (std::find(std::begin(built_in_kinds), std::end(built_in_kinds), type.kind)
      != std::end(built_in_kinds))
    return fail(ec::duplicate, "actor kind '{}' is built in", type.kind);
  if (types_.contains(type.kind))
    return fail(ec::duplicate, "actor kind '{}' exists already", type.kind);
  auto messages = messages_; // a refused type leaves no trace
  for (const auto& m : type.messages) {
    if (const auto* known = messages.find(m.id); known && !same(*known, m))
      return taken(type, *known, m);
    if (m.id.v < first_user_id && !messages.find(m.id))
      return fail(ec::bad_argument,
                  "actor kind '{}': message {} has wire id {:#06x}; users have {:#06x} and up",
                  type.kind, m.name, m.id.v, first_user_id);
    DI_TRY_VOID(messages.add(m));
  }
  messages_ = std::move(messages);
  types_.emplace(type.kind, type);
  return {};
}

result<const actor_type*> registry::find(std::string_view kind) const {
  const auto found = types_.find(kind);
  if (found != types_.end())
    return &found->second;
  std::string known;
  for (const auto& k : kinds())
    known += (known.empty() ? "" : ", ") + k;
  return fail(ec::not_found, "unknown actor kind '{}'; known are {}", kind,
              known.empty() ? "none" : known);
}

result<std::unique_ptr<core_handle>> registry::make(std::string_view kind,
                                                    const actor_context& context) const {
  DI_TRY(const auto* type, find(kind));
  return type->make(context);
}

std::vector<std::string> registry::kinds() const {
  std::vector<std::string> all;
  for (const auto& [kind, type] : types_)
    all.push_back(kind);
  return all;
}

std::shared_ptr<const wire::codec_table> registry::codecs() const {
  return std::make_shared<const wire::codec_table>(messages_);
}

result<registry> make_registry() {
  registry made;
  DI_TRY_VOID(add_enrolled(made, "this program", enrolled_by(nullptr)));
  return made;
}

result<void> load_plugin(const std::string& path, registry& into) {
  if (::access(path.c_str(), R_OK) != 0)
    return fail(ec::not_found, "plugin {}: no such file, or not readable", path);
  enrolled_by(nullptr); // what is fresh now came with the program
  // Without a slash dlopen would search the system's folders.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = ::dlerror();
    return fail(ec::bad_format, "plugin {}: {}", path, why ? why : "cannot be loaded");
  }
  const auto types = enrolled_by(handle);
  const void* version = ::dlsym(handle, "di_abi_version");
  if (!version)
    return fail(ec::bad_format, "plugin {}: exports no di_abi_version; include actors/kit.hpp",
                path);
  std::uint32_t theirs = 0;
  std::memcpy(&theirs, version, sizeof theirs);
  DI_TRY_VOID(check_abi(theirs, "plugin " + path));
  if (types.empty())
    return fail(ec::bad_format, "plugin {}: registers no actor type (DI_REGISTER_ACTOR)", path);
  return add_enrolled(into, "plugin " + path, types);
}

} // namespace di::actors
