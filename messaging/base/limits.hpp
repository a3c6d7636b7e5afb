// SPDX-License-Identifier: Apache-2.0
// Every bound of messaging, with unit and reason. What a topology may change has its default here;
// nothing may pass a bound that is not configurable.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace di::limits {

// --- names ------------------------------------------------------------------------------------

/// [bytes] of an actor's path; lengths are u16 on the wire, and log lines stay readable.
inline constexpr std::size_t address_bytes_max = 255;
/// Actors bound in one process; a runaway spawn loop hits this before memory.
inline constexpr std::size_t bindings_max = 65'536;
/// Watches held by one process, local and remote ones together.
inline constexpr std::size_t watches_max = 65'536;

// --- message bodies ---------------------------------------------------------------------------

/// [bytes] of an encoded body: the longest prompt (1 Mi ids of at most 5 bytes) with room to spare.
inline constexpr std::size_t body_bytes_max = 16u << 20;
/// [bytes] of memory that decoding one body may take, by sizeof of its elements: an element can be
/// one byte on the wire, so the body's size alone is no bound.
inline constexpr std::size_t decoded_bytes_max = 128u << 20;
/// Nested structs and containers in one body; deeper ones are a mistake or an attack.
inline constexpr std::size_t depth_max = 16;
/// shared_bytes per message: codes, scales and a few more.
inline constexpr std::size_t attachments_max = 64;
/// [bytes] of one attachment: a KV hand-over or the rows of a long prefill chunk.
inline constexpr std::size_t attachment_bytes_max = 256u << 20;
/// Elements of a container that printing shows; logs are for people.
inline constexpr std::size_t printed_elements_max = 16;
/// [bytes] of a string that printing shows.
inline constexpr std::size_t printed_string_bytes_max = 256;

// --- frames -----------------------------------------------------------------------------------

/// [bytes] of a mail that may ride in a batch frame; larger ones gain nothing from company.
inline constexpr std::size_t batch_item_bytes_max = 4u << 10;
/// [bytes] of a batch frame: amortises the socket's cost per frame, still short to copy.
inline constexpr std::size_t batch_bytes_max = 256u << 10;
/// [bytes] of a control frame that a socket accepts: one body, two paths, header.
inline constexpr std::size_t control_frame_bytes_max = body_bytes_max + (64u << 10);

// --- requests ---------------------------------------------------------------------------------

/// Requests of one process that wait for an answer.
inline constexpr std::size_t pending_requests_max = 1u << 20;
/// Requests of other processes that actors of this one have not answered.
inline constexpr std::size_t inbound_requests_max = 1u << 20;
/// Longest time a request may wait; a mistaken deadline must not live for ever.
inline constexpr std::chrono::nanoseconds request_timeout_max = std::chrono::hours{24};

// --- links ------------------------------------------------------------------------------------

/// Processes that one process may exchange mail with: EP1024 with its nodes, four times over.
inline constexpr std::size_t peers_max = 4'096;
/// Default of post_office_options::peers: EP64 with nodes, control, gateways and replacements.
inline constexpr std::size_t peers_default = 256;
/// Descriptors one peer can cost: two sockets out, two in, one monitor; each a mailbox and a
/// stream.
inline constexpr std::size_t descriptors_per_peer = 10;
/// Descriptors of a process that are not the bus's: logs, checkpoint shards, pidfds, clients.
inline constexpr std::size_t descriptors_other = 256;
/// ZeroMQ sockets per peer: two dealers and both ends of one monitor.
inline constexpr std::size_t sockets_per_peer = 4;
/// ZeroMQ sockets of a process that belong to no peer.
inline constexpr std::size_t sockets_other = 16;
/// Lives that were replaced or removed and whose frames are refused; oldest forgotten first.
inline constexpr std::size_t retired_lives_max = 4'096;

/// [bytes] in flight per peer on the control socket; heartbeats and plans, never rows.
inline constexpr std::size_t control_credit_bytes = 16u << 20;
/// Envelopes in flight per peer on the control socket.
inline constexpr std::size_t control_credit_mails = 65'536;
/// [bytes] in flight per peer on the bulk socket: several layers of expert rows.
inline constexpr std::size_t bulk_credit_bytes = 64u << 20;
/// Envelopes in flight per peer on the bulk socket.
inline constexpr std::size_t bulk_credit_mails = 4'096;
/// A receiver grants credit after this part of it was taken: 1/8 keeps the sender flowing at one
/// grant per 8 MiB.
inline constexpr std::size_t credit_grant_divisor = 8;
/// Frames that ZeroMQ may hold per socket; a backstop below the credits.
inline constexpr int socket_frames_max = 1'024;
/// Frames taken from one socket before the others get their turn.
inline constexpr std::size_t frames_per_turn = 64;
/// Envelopes delivered from one socket before the others get their turn; a batch is not split.
inline constexpr std::size_t mails_per_turn = 2'048;

/// A peer that was never reached for this long after the first mail is taken as lost: it died
/// before we met. Long, as 64 processes that start on two cores may answer late.
inline constexpr std::chrono::milliseconds connect_grace{10'000};
/// A peer that does not reconnect for this long after a disconnect is taken as lost, on one host.
inline constexpr std::chrono::milliseconds reconnect_grace_ipc{60};
/// The same between hosts, where a link may blink.
inline constexpr std::chrono::milliseconds reconnect_grace_tcp{500};
/// First and longest wait between attempts to connect.
inline constexpr std::chrono::milliseconds reconnect_wait{20};
inline constexpr std::chrono::milliseconds reconnect_wait_max{500};
/// A link that waits for credit asks for it this often: grants may be lost with a connection.
inline constexpr std::chrono::milliseconds credit_probe_wait{100};
/// How long closing sockets may try to send what was posted.
inline constexpr std::chrono::milliseconds linger{200};
/// Handshake of a new connection, with CURVE.
inline constexpr std::chrono::milliseconds handshake_timeout{3'000};
/// Transport heartbeats on tcp; ipc links carry none.
inline constexpr std::chrono::milliseconds tcp_heartbeat{500};
inline constexpr std::chrono::milliseconds tcp_heartbeat_timeout{2'000};

// --- shared memory ----------------------------------------------------------------------------

/// [bytes] of a send segment: at least a few rows, at most what one address space has to spare for
/// 64 of them.
inline constexpr std::size_t segment_bytes_min = 64u << 10;
inline constexpr std::size_t segment_bytes_max = std::size_t{16} << 30;
/// Slots of one segment that readers hold at the same time: finding room stays quick.
inline constexpr std::size_t segment_slots_max = 4'096;
/// [bytes] of attachments of a mail that travel through the segment; below, parts of a message
/// cost as much (doc/operations.md has the measurement).
inline constexpr std::size_t segment_mail_bytes_min = 512;
/// Slots that a reader gives back in one message.
inline constexpr std::size_t segment_releases_bundled = 16;
/// Slots named in one release message.
inline constexpr std::size_t segment_releases_max = segment_slots_max;

/// [bytes] of a unix socket's path, without the closing zero.
inline constexpr std::size_t socket_path_bytes_max = 107;

} // namespace di::limits
