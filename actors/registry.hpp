// SPDX-License-Identifier: Apache-2.0
// Kind -> actor type, for the `actors:` of a topology. Users' types come from DI_REGISTER_ACTOR,
// linked in or loaded as shared objects; the kinds of built-in actors are listed in registry.cpp.
#pragma once

#include "actors/actor_type.hpp"

#include <map>
#include <string>

namespace di::actors {

/// Filled at start, then only read. Not thread-safe while it is filled.
class registry {
public:
  /// @errors duplicate (kind taken or built in, wire id taken), bad_argument (a message of its own
  /// outside the users' numbers)
  result<void> add(const actor_type& type);
  /// @errors not_found, naming the known kinds
  result<const actor_type*> find(std::string_view kind) const;
  /// Builds a core. @errors not_found, bad_config, internal
  result<std::unique_ptr<core_handle>> make(std::string_view kind,
                                            const actor_context& context) const;
  std::vector<std::string> kinds() const;

  /// All built-in messages and those of the added types, for post_office_options::codecs. A copy:
  /// later types are not in it.
  std::shared_ptr<const wire::codec_table> codecs() const;

private:
  std::map<std::string, actor_type, std::less<>> types_;
  wire::codec_table messages_ = wire::builtin_codecs();
};

/// A registry with the types that code linked into this program has enrolled.
result<registry> make_registry();

/// Loads a shared object and adds the actor types that it enrolls. It stays loaded for ever.
/// @errors not_found (no such file), bad_format (no plugin of this kit, other ABI version), and
/// those of registry::add
result<void> load_plugin(const std::string& path, registry& into);

} // namespace di::actors
