// See link.h.
#include "bridge/link.h"

#include <assert.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/time.h"

static const uint64_t SILENCE_NS = 10000000000u, STRANGER_NS = 5000000000u, LAST_MESSAGE_NS = 1000000000u,
                      TCP_INFO_NS = 2000000000u, STALL_NS = 60000000u;

enum { UNREAD_BYTES_MAX = 64 << 10 }; // posted and unsent, beyond the largest message

static void receive_more(struct farm_link *link);
static void send_more(struct farm_link *link);

// ---- life ----

enum farm_status farm_link_make(struct farm_link *link, const struct farm_engine_ops *ops, struct farm_engine *engine,
                                uint32_t socket, bool server, const struct farm_tls_context *context,
                                const struct farm_link_owner *owner, struct farm_error *err) {
    *link = (struct farm_link){.state = FARM_LINK_CONNECTING,
                               .socket = socket,
                               .ops = ops,
                               .engine = engine,
                               .owner = *owner,
                               .server = server};
    const enum farm_status status = context ? farm_tls_make(context, &link->tls, err) : FARM_OK;
    if (status) link->state = FARM_LINK_VACANT;
    return status;
}

static uint64_t tls_copied_bytes(const struct farm_link *link) {
    return link->tls ? farm_tls_copied_bytes(link->tls) : 0;
}

static void vacate_link(struct farm_link *link) {
    link->figures.copied_bytes += tls_copied_bytes(link);
    farm_tls_free(link->tls);
    free(link->message);
    free(link->posted.at);
    free(link->posted_out.at);
    link->tls = NULL;
    link->message = link->posted.at = link->posted_out.at = NULL;
    link->state = FARM_LINK_VACANT;
}

void farm_link_close(struct farm_link *link, const char *format, ...) {
    if (link->state == FARM_LINK_VACANT || link->state == FARM_LINK_CLOSING) return;
    if (format) {
        va_list args;
        va_start(args, format);
        vsnprintf(link->why, sizeof link->why, format, args);
        va_end(args);
    }
    link->state = FARM_LINK_CLOSING;
    link->ops->close(link->engine, link->socket);
}

// Bytes that the kernel has received count as heard, even if the engine has not delivered them yet. A path is cut if
// sent bytes stay unacknowledged for several round trips.
static void read_tcp_info(struct farm_link *link, uint64_t now_ns) {
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    if (link->fd <= 0 || getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes)) return;
    if (bytes < offsetof(struct tcp_info, tcpi_bytes_received) + 8) return; // Linux 4.1
    if (info.tcpi_bytes_received != link->heard_bytes) {
        link->heard_bytes = info.tcpi_bytes_received;
        link->heard_ns = now_ns;
    }
    // TCP uses the clock, whatever time the caller passes. Each call accounts for a short time only, because this
    // process may have been stopped in between.
    const bool moves = !info.tcpi_unacked || info.tcpi_bytes_acked != link->acked_bytes;
    const uint64_t clock_ns = farm_now_ns(), passed_ns = clock_ns - link->tcp_info_ns;
    link->stalled_ns = moves ? 0 : link->stalled_ns + (passed_ns < STALL_NS / 2 ? passed_ns : STALL_NS / 2);
    link->tcp_info_ns = clock_ns;
    link->acked_bytes = info.tcpi_bytes_acked;
    link->rtt_ns = (uint64_t)info.tcpi_rtt * 1000;
}

bool farm_link_is_stalled(const struct farm_link *link) {
    return link->state == FARM_LINK_OPEN && link->stalled_ns > STALL_NS + 4 * link->rtt_ns;
}

void farm_link_tick(struct farm_link *link, uint64_t now_ns) {
    if (link->state == FARM_LINK_VACANT || link->state == FARM_LINK_CLOSING) return;
    if (!link->server || now_ns - link->heard_ns > TCP_INFO_NS) read_tcp_info(link, now_ns);
    if (link->ends && !link->close_at_ns) link->close_at_ns = now_ns + LAST_MESSAGE_NS;
    if (link->close_at_ns && now_ns >= link->close_at_ns) farm_link_close(link, NULL);
    if (now_ns - link->heard_ns > SILENCE_NS) farm_link_close(link, "received nothing for 10 s");
    if (!link->known && now_ns - link->begun_ns > STRANGER_NS) farm_link_close(link, "received no HELLO within 5 s");
}

// ---- receiving ----

static size_t head_wanted(const struct farm_link *link) {
    return link->header_known ? farm_wire_head_bytes(link->header_in.entries) : FARM_WIRE_HEADER_BYTES;
}

static bool place_message(struct farm_link *link, struct farm_error *err) {
    const uint32_t bytes = link->header_in.bytes - FARM_WIRE_ENTRY_BYTES;
    if (bytes > link->message_room) {
        uint8_t *larger = realloc(link->message, bytes);
        if (!larger) return farm_fail(err, FARM_E_LIMIT, "no memory for a message of %u bytes", bytes), false;
        link->message = larger;
        link->message_room = bytes;
    }
    link->message_bytes = bytes;
    link->parts_in[0] = (struct iovec){link->message, bytes};
    link->parts_in_count = link->entry_parts[0] = bytes != 0;
    return true;
}

// The owner places each payload; their sum must match the header.
static bool place_payloads(struct farm_link *link, struct farm_error *err) {
    const struct farm_wire_header *header = &link->header_in;
    size_t bytes = 0;
    link->parts_in_count = 0;
    if (farm_wire_is_message(header->type)) {
        if (!place_message(link, err)) return false;
    } else {
        for (uint32_t i = 0; i < header->entries; i++) {
            struct iovec *parts = &link->parts_in[link->parts_in_count];
            uint32_t count = 0;
            if (!link->owner.place(link->owner.context, link, header, &link->entries_in[i], parts,
                                   FARM_LINK_PARTS_MAX - link->parts_in_count, &count, err))
                return false;
            link->entry_parts[i] = (uint16_t)count;
            link->parts_in_count += count;
        }
    }
    for (uint32_t p = 0; p < link->parts_in_count; p++) bytes += link->parts_in[p].iov_len;
    link->payload_left = header->bytes - (size_t)header->entries * FARM_WIRE_ENTRY_BYTES;
    if (bytes != link->payload_left)
        return farm_fail(err, FARM_E_FORMAT, "a %s frame has %zu bytes of payload instead of %zu",
                         farm_wire_type_name(header->type), link->payload_left, bytes),
               false;
    memcpy(link->rest_in, link->parts_in, link->parts_in_count * sizeof *link->rest_in);
    link->rest_from = 0;
    return true;
}

// After header and entries are in `head`.
static bool begin_payload(struct farm_link *link, struct farm_error *err) {
    if (farm_wire_get_entries(link->head, &link->header_in, link->tls, link->entries_in, err)) return false;
    if (link->header_in.frame != link->frame_in)
        return farm_fail(err, FARM_E_FORMAT, "frame %llu arrived instead of %llu",
                         (unsigned long long)link->header_in.frame, (unsigned long long)link->frame_in),
               false;
    if (!place_payloads(link, err)) return false;
    link->frame_in++;
    link->head_bytes = 0;
    link->header_known = false;
    link->reading_payload = true;
    return true;
}

// `bytes` more of the payload are in place.
static void advance_payload(struct farm_link *link, size_t bytes) {
    struct iovec *part = &link->rest_in[link->rest_from];
    link->payload_left -= bytes;
    part->iov_base = (char *)part->iov_base + bytes;
    part->iov_len -= bytes;
    if (!part->iov_len) link->rest_from++;
}

static bool payload_crcs_match(const struct farm_link *link) {
    const struct iovec *part = link->parts_in;
    for (uint32_t i = 0; i < link->header_in.entries; i++) {
        uint32_t crc = 0;
        for (uint32_t p = 0; p < link->entry_parts[i]; p++, part++)
            crc = farm_crc32c(crc, part->iov_base, part->iov_len);
        if (crc != link->entries_in[i].crc) return false;
    }
    return true;
}

static bool finish_frame(struct farm_link *link, struct farm_error *err) {
    link->reading_payload = false;
    link->figures.frames_in++;
    if (!link->tls && !payload_crcs_match(link))
        return farm_fail(err, FARM_E_FORMAT, "wrong checksum of a %s frame", farm_wire_type_name(link->header_in.type)),
               false;
    return link->owner.arrived(link->owner.context, link, &link->header_in, link->entries_in, err);
}

// Takes up to `bytes` of what has been received. *got 0: more must be received first.
static bool take_received(struct farm_link *link, void *to, size_t bytes, size_t *got, struct farm_error *err) {
    if (link->tls) return farm_tls_read(link->tls, to, bytes, got, err) == FARM_OK;
    const size_t there = link->ahead_to - link->ahead_from;
    *got = bytes < there ? bytes : there;
    memcpy(to, link->ahead + link->ahead_from, *got);
    link->ahead_from += (uint32_t)*got;
    if (link->reading_payload) link->figures.copied_bytes += *got;
    return true;
}

// Reads header and entries. *more: more must be received first.
static bool read_head(struct farm_link *link, bool *more, struct farm_error *err) {
    while (link->head_bytes < head_wanted(link)) {
        size_t got;
        if (!take_received(link, link->head + link->head_bytes, head_wanted(link) - link->head_bytes, &got, err))
            return false;
        link->head_bytes += (uint32_t)got;
        *more = !got;
        if (*more) return true;
        if (link->head_bytes != FARM_WIRE_HEADER_BYTES) continue;
        if (farm_wire_get_header(link->head, &link->header_in, err)) return false;
        link->header_known = true;
    }
    return begin_payload(link, err);
}

static bool read_payload(struct farm_link *link, bool *more, struct farm_error *err) {
    while (link->payload_left) {
        const struct iovec *part = &link->rest_in[link->rest_from];
        size_t got = 0;
        if (part->iov_len && !take_received(link, part->iov_base, part->iov_len, &got, err)) return false;
        *more = part->iov_len && !got;
        if (*more) return true;
        advance_payload(link, got);
    }
    return finish_frame(link, err);
}

static bool read_received(struct farm_link *link, struct farm_error *err) {
    bool done = link->state == FARM_LINK_OPEN, more = false;
    if (!done && farm_tls_handshake(link->tls, &done, err)) return false;
    if (done) link->state = FARM_LINK_OPEN;
    while (link->state == FARM_LINK_OPEN && !more) {
        if (!link->reading_payload && !read_head(link, &more, err)) return false;
        if (link->reading_payload && !read_payload(link, &more, err)) return false;
    }
    return true;
}

// In the clear a payload goes straight to its place; a head is received with the bytes behind it.
static void receive_more(struct farm_link *link) {
    if (link->receiving || link->state == FARM_LINK_VACANT || link->state == FARM_LINK_CLOSING) return;
    link->receiving = true;
    if (!link->tls && link->reading_payload) {
        link->ops->receive(link->engine, link->socket, link->rest_in + link->rest_from,
                           link->parts_in_count - link->rest_from, link->payload_left);
        return;
    }
    size_t least = 1;
    if (link->tls) {
        link->one_in.iov_base = farm_tls_input(link->tls, &link->one_in.iov_len);
    } else {
        least = head_wanted(link) - link->head_bytes;
        link->ahead_from = link->ahead_to = 0; // all of it is read
        link->one_in = (struct iovec){link->ahead, least + FARM_LINK_READ_AHEAD};
    }
    link->ops->receive(link->engine, link->socket, &link->one_in, 1, least);
}

// If TLS has an alert for the peer, the connection closes after it is sent.
static void fail_link(struct farm_link *link, const struct farm_error *err) {
    snprintf(link->why, sizeof link->why, "%.*s", (int)sizeof link->why - 1, err->message);
    link->status = err->status;
    link->fails = link->ends = true;
    if (link->tls && !link->sending) send_more(link);
    if (!link->tls || !link->sending) farm_link_close(link, NULL);
}

static void read_frames(struct farm_link *link) {
    struct farm_error err = {0};
    if (!read_received(link, &err)) {
        fail_link(link, &err);
        return;
    }
    send_more(link);
    receive_more(link);
}

static void handle_received(struct farm_link *link, int64_t bytes) {
    link->receiving = false;
    if (bytes <= 0) {
        // A learner closes silently if the keys differ.
        const bool stranger = link->tls && !link->server && link->state == FARM_LINK_CONNECTING;
        farm_link_close(link, "%s%s", bytes ? strerror((int)-bytes) : "the peer has closed the connection",
                        stranger ? " before the handshake was over: are the keys the same?" : "");
        return;
    }
    link->figures.bytes_in += (uint64_t)bytes;
    if (link->tls)
        farm_tls_received(link->tls, (size_t)bytes);
    else if (link->reading_payload)
        link->payload_left -= (size_t)bytes; // all of it: the engine has used up rest_in
    else
        link->ahead_to = (uint32_t)bytes;
    read_frames(link);
}

// ---- sending ----

static void send_one(struct farm_link *link, const void *at, size_t bytes) {
    link->one_out = (struct iovec){(void *)(uintptr_t)at, bytes};
    link->sending = true;
    link->ops->send(link->engine, link->socket, &link->one_out, 1);
}

static bool encrypt(struct farm_link *link, const struct iovec *parts, uint32_t count, size_t *taken) {
    struct farm_error err;
    if (!farm_tls_write(link->tls, parts, count, taken, &err)) return true;
    farm_link_close(link, "%s", err.message);
    return false;
}

// Encrypts the waiting frame, or else the posted messages, into the TLS output buffer.
static void encrypt_next(struct farm_link *link) {
    if (link->state != FARM_LINK_OPEN || link->fails) return;
    if (link->frame_waits) {
        if (encrypt(link, link->parts_out, link->parts_out_count, &link->taken_out) &&
            link->taken_out == farm_wire_head_bytes(link->header_out.entries) + link->payload_out)
            link->frame_waits = false; // all of it is encrypted: its memory may change
    } else if (link->posted.bytes) {
        const struct iovec part = {link->posted.at, link->posted.bytes};
        size_t taken = 0;
        if (!encrypt(link, &part, 1, &taken)) return;
        memmove(link->posted.at, link->posted.at + taken, link->posted.bytes -= taken);
    }
}

static void send_more(struct farm_link *link) {
    if (link->sending || link->state == FARM_LINK_VACANT || link->state == FARM_LINK_CLOSING) return;
    if (link->tls) {
        size_t bytes;
        const void *output = farm_tls_output(link->tls, &bytes);
        if (!bytes) {
            encrypt_next(link);
            if (link->state == FARM_LINK_CLOSING) return;
            output = farm_tls_output(link->tls, &bytes);
        }
        if (bytes) send_one(link, output, bytes);
    } else if (link->state != FARM_LINK_OPEN) {
        return;
    } else if (link->frame_waits) {
        link->sending = true;
        link->ops->send(link->engine, link->socket, link->parts_out, link->parts_out_count);
    } else if (link->posted.bytes) {
        const struct farm_link_buffer out = link->posted;
        link->posted = link->posted_out;
        link->posted.bytes = 0;
        link->posted_out = out;
        send_one(link, out.at, out.bytes);
    }
}

static void handle_sent(struct farm_link *link, int64_t bytes) {
    link->sending = false;
    if (bytes < 0) {
        farm_link_close(link, "%s", strerror((int)-bytes));
        return;
    }
    link->figures.bytes_out += (uint64_t)bytes;
    if (link->tls)
        farm_tls_sent(link->tls);
    else if (link->frame_waits && !link->posted_out.bytes)
        link->frame_waits = false;
    link->posted_out.bytes = 0;
    send_more(link);
    if (link->fails && !link->sending) farm_link_close(link, NULL);
}

void farm_link_frame(struct farm_link *link, enum farm_wire_type type) {
    assert(farm_link_can_send(link));
    link->header_out = (struct farm_wire_header){.type = type};
    link->parts_out_count = 1; // the head
    link->payload_out = link->taken_out = 0;
}

bool farm_link_add(struct farm_link *link, const struct farm_wire_entry *entry, const struct iovec *parts,
                   uint32_t count) {
    struct farm_wire_header *header = &link->header_out;
    size_t bytes = 0;
    for (uint32_t p = 0; p < count; p++) bytes += parts[p].iov_len;
    const size_t all = farm_wire_head_bytes((uint16_t)(header->entries + 1)) + link->payload_out + bytes;
    if (header->entries && (header->entries == FARM_WIRE_ENTRIES_MAX || all > FARM_WIRE_FRAME_BYTES ||
                            link->parts_out_count + count > FARM_LINK_PARTS_MAX))
        return false;
    struct farm_wire_entry *own = &link->entries_out[header->entries++];
    *own = *entry;
    own->crc = 0;
    for (uint32_t p = 0; p < count; p++) {
        link->parts_out[link->parts_out_count++] = parts[p];
        if (!link->tls) own->crc = farm_crc32c(own->crc, parts[p].iov_base, parts[p].iov_len);
    }
    link->payload_out += bytes;
    return true;
}

void farm_link_commit(struct farm_link *link) {
    struct farm_wire_header *header = &link->header_out;
    const size_t head = farm_wire_head_bytes(header->entries);
    header->frame = link->frame_out++;
    header->bytes = (uint32_t)(head - FARM_WIRE_HEADER_BYTES + link->payload_out);
    farm_wire_put(header, link->entries_out, link->tls, link->head_out);
    link->parts_out[0] = (struct iovec){link->head_out, head};
    link->frame_waits = true;
    link->figures.frames_out++;
    send_more(link);
}

static void post_frame(struct farm_link *link, enum farm_wire_type type, const struct farm_wire_entry *entry,
                       const void *payload, size_t bytes) {
    struct farm_link_buffer *posted = &link->posted;
    const size_t head = farm_wire_head_bytes(1), all = posted->bytes + head + bytes;
    if (link->state != FARM_LINK_OPEN || link->ends) return;
    if (bytes > link->message_out) link->message_out = bytes;
    if (posted->bytes > UNREAD_BYTES_MAX + link->message_out) {
        farm_link_close(link, "the peer does not read");
        return;
    }
    if (all > posted->room) {
        const size_t room = all > 4096 ? 2 * all : 4096;
        uint8_t *larger = realloc(posted->at, room);
        if (!larger) {
            farm_link_close(link, "no memory for a message of %zu bytes", bytes);
            return;
        }
        posted->at = larger;
        posted->room = room;
    }
    const struct farm_wire_header header = {
        .bytes = (uint32_t)(FARM_WIRE_ENTRY_BYTES + bytes), .type = type, .entries = 1, .frame = link->frame_out++};
    struct farm_wire_entry own = *entry;
    own.crc = link->tls ? 0 : farm_crc32c(0, payload, bytes);
    farm_wire_put(&header, &own, link->tls, posted->at + posted->bytes);
    if (bytes) memcpy(posted->at + posted->bytes + head, payload, bytes);
    posted->bytes = all;
    link->figures.frames_out++;
    send_more(link);
}

void farm_link_post(struct farm_link *link, enum farm_wire_type type, const void *payload, size_t bytes, bool last) {
    post_frame(link, type, &(struct farm_wire_entry){0}, payload, bytes);
    link->ends |= last;
}

// ---- heartbeats and figures ----

void farm_link_send_heartbeat(struct farm_link *link, uint64_t now_ns) {
    const struct farm_wire_entry ping = {.ping_ns = now_ns};
    link->heartbeat_ns = now_ns;
    post_frame(link, FARM_WIRE_HEARTBEAT, &ping, NULL, 0);
}

void farm_link_handle_heartbeat(struct farm_link *link, const struct farm_wire_entry *entry, uint64_t now_ns,
                                uint64_t *round_trip_ns) {
    if (entry->ping_ns) {
        const struct farm_wire_entry echo = {.pong_ns = entry->ping_ns};
        post_frame(link, FARM_WIRE_HEARTBEAT, &echo, NULL, 0);
    }
    if (!entry->pong_ns || entry->pong_ns > now_ns || !round_trip_ns) return;
    const uint64_t before = farm_load_relaxed(round_trip_ns), now = now_ns - entry->pong_ns;
    farm_store_relaxed(round_trip_ns, before ? before - before / 8 + now / 8 : now + 1);
}

static void add_to_counter(uint64_t *word, uint64_t now, uint64_t shown) {
    farm_store_relaxed(word, farm_load_relaxed(word) + now - shown);
}

void farm_link_add_figures(struct farm_link *link, struct farm_bridge_stats *stats, struct farm_bridge_node_stats *row,
                           uint64_t *lane_steps, uint64_t *env_steps) {
    struct farm_link_figures now = link->figures;
    const struct farm_link_figures *shown = &link->shown;
    now.copied_bytes += tls_copied_bytes(link);
    add_to_counter(&row->bytes_in, now.bytes_in, shown->bytes_in);
    add_to_counter(&row->bytes_out, now.bytes_out, shown->bytes_out);
    add_to_counter(&row->copied_bytes, now.copied_bytes, shown->copied_bytes);
    add_to_counter(&stats->frames, now.frames_in + now.frames_out, shown->frames_in + shown->frames_out);
    add_to_counter(&row->lane_steps, *lane_steps, 0);
    add_to_counter(&row->steps, *env_steps, 0);
    *lane_steps = *env_steps = 0;
    link->shown = now;
}

// ---- events ----

static void handle_connected(struct farm_link *link, int64_t result) {
    if (result < 0) {
        farm_link_close(link, "%s", strerror((int)-result));
        return;
    }
    if (!link->tls) link->state = FARM_LINK_OPEN;
    if (link->tls)
        read_frames(link); // the handshake's first message
    else
        receive_more(link);
}

void farm_link_begin(struct farm_link *link, uint64_t now_ns) {
    link->begun_ns = link->heard_ns = now_ns;
    if (link->server) handle_connected(link, 0);
}

void farm_link_event(struct farm_link *link, const struct farm_engine_event *event, uint64_t now_ns) {
    if (event->kind == FARM_ENGINE_CLOSED) vacate_link(link);
    if (link->state == FARM_LINK_VACANT || link->state == FARM_LINK_CLOSING) return;
    if (event->kind == FARM_ENGINE_CONNECTED) {
        link->reached = event->result >= 0;
        link->begun_ns = link->heard_ns = now_ns;
        handle_connected(link, event->result);
    } else if (event->kind == FARM_ENGINE_RECEIVED) {
        link->heard_ns = now_ns;
        handle_received(link, event->result);
    } else if (event->kind == FARM_ENGINE_SENT) {
        handle_sent(link, event->result);
    }
}
