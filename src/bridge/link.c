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

enum {
    PARTS_MAX = FARM_ENGINE_PARTS_MAX,
    HEAD_BYTES_MAX = FARM_WIRE_HEADER_BYTES + FARM_WIRE_ENTRIES_MAX * FARM_WIRE_ENTRY_BYTES,
    READ_AHEAD_BYTES = 4096,
    UNREAD_BYTES_MAX = 64 << 10, // posted and unsent, beyond the largest message
};

// A frame comes in three parts, each of which says how long the next one is. At every moment
//
//   read_bytes <= wanted_bytes <= bytes of the frame
//   ahead_read_bytes <= ahead_received_bytes <= sizeof ahead
//
// read: bytes of the frame in their place; wanted: the end of the part that is being read. `ahead` has received bytes
// from read_bytes on (under TLS they are in its buffer). In the clear the engine reads a payload to its place.
struct farm_link_in {
    enum { READS_HEADER, READS_ENTRIES, READS_PAYLOAD } reads;
    size_t read_bytes, wanted_bytes;
    uint32_t ahead_read_bytes, ahead_received_bytes;
    uint8_t head[HEAD_BYTES_MAX], ahead[HEAD_BYTES_MAX + READ_AHEAD_BYTES];
    struct farm_wire_header header;
    struct farm_wire_entry entries[FARM_WIRE_ENTRIES_MAX];
    uint16_t entry_parts[FARM_WIRE_ENTRIES_MAX]; // number of an entry's parts
    struct iovec parts[PARTS_MAX];               // [part_count] as the owner placed them, for the CRC
    struct iovec left[PARTS_MAX];                // [left_from, part_count): still to be read
    uint32_t part_count, left_from;
    struct iovec one; // for the engine: `ahead`, or the input of TLS
    uint64_t frame;   // number of the next one
    uint32_t message_room;
    bool in_flight; // the engine receives
};

// A frame, and messages after it; or messages, and no frame before they are sent. At every moment
//
//   taken_bytes <= frame_bytes, less while the frame waits; taken: by TLS, or all of them by the engine when it is done
//   bytes <= room, in both message buffers
struct farm_link_out {
    struct message_buffer {
        uint8_t *at;
        size_t bytes, room;
    } posted, sent; // messages that wait; in the clear: that the engine sends
    size_t message_bytes_max;
    struct farm_wire_header header;
    struct farm_wire_entry entries[FARM_WIRE_ENTRIES_MAX];
    uint8_t head[HEAD_BYTES_MAX];
    struct iovec parts[PARTS_MAX]; // [part_count] the head, then payloads
    uint32_t part_count;
    struct iovec one; // for the engine: messages, or the output of TLS
    size_t payload_bytes, taken_bytes, frame_bytes;
    uint64_t frame; // number of the next one
    bool in_flight; // the engine sends
};

static void receive_more(struct farm_link *link);
static void send_more(struct farm_link *link);
static void post_frame(struct farm_link *link, enum farm_wire_type type, const struct farm_wire_entry *entry,
                       const void *payload, size_t bytes);

static bool is_over(const struct farm_link *link) {
    return link->state == FARM_LINK_VACANT || link->state == FARM_LINK_CLOSING;
}

static bool frame_waits(const struct farm_link *link) {
    return link->out->taken_bytes < link->out->frame_bytes;
}

// Holds at the end of each operation.
static void check_invariants(const struct farm_link *link) {
    const struct farm_link_in *in = link->in;
    const struct farm_link_out *out = link->out;
    if (is_over(link)) return;
    assert(in->read_bytes <= in->wanted_bytes);
    assert(in->wanted_bytes <=
           (in->reads == READS_PAYLOAD ? FARM_WIRE_HEADER_BYTES + in->header.bytes : sizeof in->head));
    assert(in->ahead_read_bytes <= in->ahead_received_bytes && in->ahead_received_bytes <= sizeof in->ahead);
    assert(in->left_from <= in->part_count && in->part_count <= PARTS_MAX);
    assert(out->taken_bytes <= out->frame_bytes && out->part_count <= PARTS_MAX);
    assert(out->posted.bytes <= out->posted.room && out->sent.bytes <= out->sent.room);
    assert(link->state != FARM_LINK_DIALLING || !(in->in_flight || out->in_flight));
    assert(link->ending != FARM_LINK_FAILS || (link->tls && out->in_flight));
    // In the clear the engine has what there is to send: a frame or messages, never both.
    assert(link->tls || !(frame_waits(link) && out->sent.bytes));
    assert(link->tls || out->in_flight == (frame_waits(link) || out->sent.bytes));
    assert(link->tls || out->in_flight || !out->posted.bytes);
}

// ---- life ----

static void begin_header(struct farm_link_in *in) {
    in->reads = READS_HEADER;
    in->read_bytes = 0;
    in->wanted_bytes = FARM_WIRE_HEADER_BYTES;
}

static uint64_t tls_copied_bytes(const struct farm_link *link) {
    return link->tls ? farm_tls_copied_bytes(link->tls) : 0;
}

static void vacate_link(struct farm_link *link) {
    link->figures.copied_bytes += tls_copied_bytes(link);
    farm_tls_free(link->tls);
    free(link->message);
    if (link->out) free(link->out->posted.at), free(link->out->sent.at);
    free(link->in);
    free(link->out);
    link->tls = NULL, link->message = NULL, link->in = NULL, link->out = NULL;
    link->state = FARM_LINK_VACANT;
}

enum farm_status farm_link_make(struct farm_link *link, const struct farm_engine_ops *ops, struct farm_engine *engine,
                                uint32_t socket, bool server, const struct farm_tls_context *context,
                                const struct farm_link_owner *owner, struct farm_error *err) {
    *link = (struct farm_link){.state = server ? FARM_LINK_SHAKING : FARM_LINK_DIALLING,
                               .socket = socket,
                               .ops = ops,
                               .engine = engine,
                               .owner = *owner,
                               .server = server,
                               .in = calloc(1, sizeof *link->in),
                               .out = calloc(1, sizeof *link->out)};
    enum farm_status status = FARM_OK;
    if (!link->in || !link->out) status = farm_fail(err, FARM_E_LIMIT, "no memory for a connection");
    if (!status && context) status = farm_tls_make(context, &link->tls, err);
    if (!status) begin_header(link->in);
    if (status) vacate_link(link);
    return status;
}

bool farm_link_refuse(const struct farm_wire_header *header, struct farm_error *err) {
    return !farm_fail(err, FARM_E_FORMAT, "unexpected %s", farm_wire_type_name(header->type));
}

void farm_link_close(struct farm_link *link, const char *format, ...) {
    if (is_over(link)) return;
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
    if (info.tcpi_bytes_received != link->path.received_bytes) {
        link->path.received_bytes = info.tcpi_bytes_received;
        link->heard_ns = now_ns;
    }
    // TCP uses the clock, whatever time the caller passes. Each call accounts for a short time only, because this
    // process may have been stopped in between.
    const bool moves = !info.tcpi_unacked || info.tcpi_bytes_acked != link->path.acked_bytes;
    const uint64_t clock_ns = farm_now_ns(), passed_ns = clock_ns - link->path.info_ns;
    link->path.stalled_ns = moves ? 0 : link->path.stalled_ns + (passed_ns < STALL_NS / 2 ? passed_ns : STALL_NS / 2);
    link->path.info_ns = clock_ns;
    link->path.acked_bytes = info.tcpi_bytes_acked;
    link->path.rtt_ns = (uint64_t)info.tcpi_rtt * 1000;
}

bool farm_link_is_stalled(const struct farm_link *link) {
    return link->state == FARM_LINK_OPEN && link->path.stalled_ns > STALL_NS + 4 * link->path.rtt_ns;
}

void farm_link_tick(struct farm_link *link, uint64_t now_ns, uint64_t beat_ns) {
    if (is_over(link)) return;
    if (!link->server || now_ns - link->heard_ns > TCP_INFO_NS) read_tcp_info(link, now_ns);
    if (link->ending && !link->close_at_ns) link->close_at_ns = now_ns + LAST_MESSAGE_NS;
    if (link->close_at_ns && now_ns >= link->close_at_ns) farm_link_close(link, NULL);
    if (now_ns - link->heard_ns > SILENCE_NS) farm_link_close(link, "received nothing for 10 s");
    if (!link->known && now_ns - link->begun_ns > STRANGER_NS) farm_link_close(link, "received no HELLO within 5 s");
    if (link->state == FARM_LINK_OPEN && now_ns - link->heartbeat_ns >= beat_ns) {
        link->heartbeat_ns = now_ns;
        post_frame(link, FARM_WIRE_HEARTBEAT, &(struct farm_wire_entry){.ping_ns = now_ns}, NULL, 0);
    }
    check_invariants(link);
}

// ---- receiving ----

static bool place_message(struct farm_link *link, struct farm_error *err) {
    struct farm_link_in *in = link->in;
    const uint32_t bytes = in->header.bytes - FARM_WIRE_ENTRY_BYTES;
    if (bytes > in->message_room) {
        uint8_t *larger = realloc(link->message, bytes);
        if (!larger) return !farm_fail(err, FARM_E_LIMIT, "no memory for a message of %u bytes", bytes);
        link->message = larger;
        in->message_room = bytes;
    }
    link->message_bytes = bytes;
    in->parts[0] = (struct iovec){link->message, bytes};
    in->part_count = in->entry_parts[0] = bytes != 0;
    return true;
}

// The owner places each payload; their sum must match the header.
static bool place_payloads(struct farm_link *link, struct farm_error *err) {
    struct farm_link_in *in = link->in;
    const struct farm_wire_header *header = &in->header;
    size_t bytes = 0;
    in->part_count = in->left_from = 0;
    if (farm_wire_is_message(header->type)) {
        if (!place_message(link, err)) return false;
    } else {
        for (uint32_t i = 0; i < header->entries; i++) {
            struct iovec *parts = &in->parts[in->part_count];
            uint32_t count = 0;
            if (!link->owner.place(link->owner.context, header, &in->entries[i], parts, PARTS_MAX - in->part_count,
                                   &count, err))
                return false;
            in->entry_parts[i] = (uint16_t)count;
            in->part_count += count;
        }
    }
    for (uint32_t p = 0; p < in->part_count; p++) bytes += in->parts[p].iov_len;
    const size_t right = header->bytes - (size_t)header->entries * FARM_WIRE_ENTRY_BYTES;
    if (bytes != right)
        return !farm_fail(err, FARM_E_FORMAT, "a %s frame has %zu bytes of payload instead of %zu",
                          farm_wire_type_name(header->type), right, bytes);
    memcpy(in->left, in->parts, in->part_count * sizeof *in->left);
    return true;
}

// After header and entries are in `head`.
static bool begin_payload(struct farm_link *link, struct farm_error *err) {
    struct farm_link_in *in = link->in;
    if (farm_wire_get_entries(in->head, &in->header, link->tls, in->entries, err)) return false;
    if (in->header.frame != in->frame)
        return !farm_fail(err, FARM_E_FORMAT, "frame %llu arrived instead of %llu",
                          (unsigned long long)in->header.frame, (unsigned long long)in->frame);
    if (!place_payloads(link, err)) return false;
    in->frame++;
    in->wanted_bytes = FARM_WIRE_HEADER_BYTES + in->header.bytes;
    in->reads = READS_PAYLOAD;
    return true;
}

// `bytes` more of the payload are in place.
static void advance_payload(struct farm_link *link, size_t bytes) {
    struct farm_link_in *in = link->in;
    struct iovec *part = &in->left[in->left_from];
    in->read_bytes += bytes;
    part->iov_base = (char *)part->iov_base + bytes;
    part->iov_len -= bytes;
    if (!part->iov_len) in->left_from++;
}

static bool payload_crcs_match(const struct farm_link *link) {
    const struct farm_link_in *in = link->in;
    const struct iovec *part = in->parts;
    for (uint32_t i = 0; i < in->header.entries; i++) {
        uint32_t crc = 0;
        for (uint32_t p = 0; p < in->entry_parts[i]; p++, part++) crc = farm_crc32c(crc, part->iov_base, part->iov_len);
        if (crc != in->entries[i].crc) return false;
    }
    return true;
}

static bool finish_frame(struct farm_link *link, struct farm_error *err) {
    struct farm_link_in *in = link->in;
    begin_header(in);
    link->figures.frames_in++;
    if (!link->tls && !payload_crcs_match(link))
        return !farm_fail(err, FARM_E_FORMAT, "wrong checksum of a %s frame", farm_wire_type_name(in->header.type));
    return link->owner.arrived(link->owner.context, link, &in->header, in->entries, err);
}

// Takes up to `bytes` of what has been received. *got 0: more must be received first.
static bool take_received(struct farm_link *link, void *to, size_t bytes, size_t *got, struct farm_error *err) {
    struct farm_link_in *in = link->in;
    if (link->tls) return farm_tls_read(link->tls, to, bytes, got, err) == FARM_OK;
    const size_t there = in->ahead_received_bytes - in->ahead_read_bytes;
    *got = bytes < there ? bytes : there;
    memcpy(to, in->ahead + in->ahead_read_bytes, *got);
    in->ahead_read_bytes += (uint32_t)*got;
    if (in->reads == READS_PAYLOAD) link->figures.copied_bytes += *got;
    return true;
}

// Reads header and entries. *more: more must be received first.
static bool read_head(struct farm_link *link, bool *more, struct farm_error *err) {
    struct farm_link_in *in = link->in;
    while (in->read_bytes < in->wanted_bytes) {
        size_t got;
        if (!take_received(link, in->head + in->read_bytes, in->wanted_bytes - in->read_bytes, &got, err)) return false;
        in->read_bytes += got;
        *more = !got;
        if (*more) return true;
        if (in->reads == READS_ENTRIES || in->read_bytes < in->wanted_bytes) continue;
        if (farm_wire_get_header(in->head, &in->header, err)) return false;
        in->wanted_bytes = farm_wire_head_bytes(in->header.entries);
        in->reads = READS_ENTRIES;
    }
    return begin_payload(link, err);
}

static bool read_payload(struct farm_link *link, bool *more, struct farm_error *err) {
    struct farm_link_in *in = link->in;
    while (in->read_bytes < in->wanted_bytes) {
        const struct iovec *part = &in->left[in->left_from];
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
        if (link->in->reads != READS_PAYLOAD && !read_head(link, &more, err)) return false;
        if (link->in->reads == READS_PAYLOAD && !read_payload(link, &more, err)) return false;
    }
    return true;
}

// In the clear a payload goes straight to its place; a head is received with the bytes behind it.
static void receive_more(struct farm_link *link) {
    struct farm_link_in *in = link->in;
    if (is_over(link) || in->in_flight) return;
    in->in_flight = true;
    const size_t least = link->tls ? 1 : in->wanted_bytes - in->read_bytes;
    if (!link->tls && in->reads == READS_PAYLOAD) {
        link->ops->receive(link->engine, link->socket, in->left + in->left_from, in->part_count - in->left_from, least);
        return;
    }
    if (link->tls) {
        in->one.iov_base = farm_tls_input(link->tls, &in->one.iov_len);
    } else {
        in->ahead_read_bytes = in->ahead_received_bytes = 0; // all of it is read
        in->one = (struct iovec){in->ahead, least + READ_AHEAD_BYTES};
    }
    link->ops->receive(link->engine, link->socket, &in->one, 1, least);
}

// If TLS has an alert for the peer, the connection closes after it is sent.
static void fail_link(struct farm_link *link, const struct farm_error *err) {
    snprintf(link->why, sizeof link->why, "%.*s", (int)sizeof link->why - 1, err->message);
    link->status = err->status;
    link->ending = FARM_LINK_FAILS;
    if (link->tls && !link->out->in_flight) send_more(link);
    if (!link->tls || !link->out->in_flight) farm_link_close(link, NULL);
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
    link->in->in_flight = false;
    if (bytes <= 0) {
        // A learner closes silently if the keys differ, or one side has none.
        const bool stranger = !link->server && (link->tls ? link->state == FARM_LINK_SHAKING : !link->figures.bytes_in);
        farm_link_close(link, "%s%s", bytes ? strerror((int)-bytes) : "the peer has closed the connection",
                        !stranger ? ""
                        : link->tls
                            ? " before the handshake was over: do the keys belong together? (a learner with --insecure "
                              "has none: then use --insecure here too)"
                            : " without an answer: has the learner a key? Then use --key FILE instead of --insecure");
        return;
    }
    link->figures.bytes_in += (uint64_t)bytes;
    if (link->tls)
        farm_tls_received(link->tls, (size_t)bytes);
    else if (link->in->reads == READS_PAYLOAD)
        link->in->read_bytes += (size_t)bytes; // all of it: the engine has used up `left`
    else
        link->in->ahead_received_bytes = (uint32_t)bytes;
    read_frames(link);
}

// ---- sending ----

static void send_one(struct farm_link *link, const void *at, size_t bytes) {
    struct farm_link_out *out = link->out;
    out->one = (struct iovec){(void *)(uintptr_t)at, bytes};
    out->in_flight = true;
    link->ops->send(link->engine, link->socket, &out->one, 1);
}

static bool encrypt(struct farm_link *link, const struct iovec *parts, uint32_t count, size_t *taken) {
    struct farm_error err;
    if (!farm_tls_write(link->tls, parts, count, taken, &err)) return true;
    farm_link_close(link, "%s", err.message);
    return false;
}

// Encrypts the waiting frame, or else the posted messages, into the TLS output buffer.
static void encrypt_next(struct farm_link *link) {
    struct farm_link_out *out = link->out;
    if (link->state != FARM_LINK_OPEN || link->ending == FARM_LINK_FAILS) return;
    if (frame_waits(link)) { // until all of it is encrypted; then its memory may change
        encrypt(link, out->parts, out->part_count, &out->taken_bytes);
    } else if (out->posted.bytes) {
        const struct iovec part = {out->posted.at, out->posted.bytes};
        size_t taken = 0;
        if (!encrypt(link, &part, 1, &taken)) return;
        memmove(out->posted.at, out->posted.at + taken, out->posted.bytes -= taken);
    }
}

static void send_more(struct farm_link *link) {
    struct farm_link_out *out = link->out;
    if (is_over(link) || out->in_flight) return;
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
    } else if (frame_waits(link)) {
        out->in_flight = true;
        link->ops->send(link->engine, link->socket, out->parts, out->part_count);
    } else if (out->posted.bytes) {
        const struct message_buffer messages = out->posted;
        out->posted = out->sent;
        out->posted.bytes = 0;
        out->sent = messages;
        send_one(link, messages.at, messages.bytes);
    }
}

static void handle_sent(struct farm_link *link, int64_t bytes) {
    struct farm_link_out *out = link->out;
    out->in_flight = false;
    if (bytes < 0) {
        farm_link_close(link, "%s", strerror((int)-bytes));
        return;
    }
    link->figures.bytes_out += (uint64_t)bytes;
    if (link->tls)
        farm_tls_sent(link->tls);
    else if (!out->sent.bytes)
        out->taken_bytes = out->frame_bytes;
    out->sent.bytes = 0;
    send_more(link);
    if (link->ending == FARM_LINK_FAILS && !out->in_flight) farm_link_close(link, NULL);
}

void farm_link_frame(struct farm_link *link, enum farm_wire_type type) {
    struct farm_link_out *out = link->out;
    assert(farm_link_can_send(link));
    out->header = (struct farm_wire_header){.type = type};
    out->part_count = 1; // the head
    out->payload_bytes = out->taken_bytes = out->frame_bytes = 0;
}

bool farm_link_add(struct farm_link *link, const struct farm_wire_entry *entry, const struct iovec *parts,
                   uint32_t count) {
    struct farm_link_out *out = link->out;
    struct farm_wire_header *header = &out->header;
    size_t bytes = 0;
    for (uint32_t p = 0; p < count; p++) bytes += parts[p].iov_len;
    const size_t all = farm_wire_head_bytes((uint16_t)(header->entries + 1)) + out->payload_bytes + bytes;
    if (header->entries && (header->entries == FARM_WIRE_ENTRIES_MAX || all > FARM_WIRE_FRAME_BYTES ||
                            out->part_count + count > PARTS_MAX))
        return false;
    struct farm_wire_entry *own = &out->entries[header->entries++];
    *own = *entry;
    own->crc = 0;
    for (uint32_t p = 0; p < count; p++) {
        out->parts[out->part_count++] = parts[p];
        if (!link->tls) own->crc = farm_crc32c(own->crc, parts[p].iov_base, parts[p].iov_len);
    }
    out->payload_bytes += bytes;
    return true;
}

void farm_link_commit(struct farm_link *link) {
    struct farm_link_out *out = link->out;
    struct farm_wire_header *header = &out->header;
    const size_t head = farm_wire_head_bytes(header->entries);
    header->frame = out->frame++;
    header->bytes = (uint32_t)(head - FARM_WIRE_HEADER_BYTES + out->payload_bytes);
    farm_wire_put(header, out->entries, link->tls, out->head);
    out->parts[0] = (struct iovec){out->head, head};
    out->frame_bytes = head + out->payload_bytes;
    link->figures.frames_out++;
    send_more(link);
    check_invariants(link);
}

static void post_frame(struct farm_link *link, enum farm_wire_type type, const struct farm_wire_entry *entry,
                       const void *payload, size_t bytes) {
    if (link->state != FARM_LINK_OPEN || link->ending) return;
    struct farm_link_out *out = link->out;
    struct message_buffer *posted = &out->posted;
    const size_t head = farm_wire_head_bytes(1), all = posted->bytes + head + bytes;
    if (bytes > out->message_bytes_max) out->message_bytes_max = bytes;
    if (posted->bytes > UNREAD_BYTES_MAX + out->message_bytes_max) {
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
        .bytes = (uint32_t)(FARM_WIRE_ENTRY_BYTES + bytes), .type = type, .entries = 1, .frame = out->frame++};
    struct farm_wire_entry own = *entry;
    own.crc = link->tls ? 0 : farm_crc32c(0, payload, bytes);
    farm_wire_put(&header, &own, link->tls, posted->at + posted->bytes);
    if (bytes) memcpy(posted->at + posted->bytes + head, payload, bytes);
    posted->bytes = all;
    link->figures.frames_out++;
    send_more(link);
    check_invariants(link);
}

void farm_link_post(struct farm_link *link, enum farm_wire_type type, const void *payload, size_t bytes, bool last) {
    post_frame(link, type, &(struct farm_wire_entry){0}, payload, bytes);
    if (last && !link->ending) link->ending = FARM_LINK_ENDS;
}

bool farm_link_can_send(const struct farm_link *link) {
    const struct farm_link_out *out = link->out;
    return link->state == FARM_LINK_OPEN && !frame_waits(link) && !out->posted.bytes && !out->in_flight &&
           !link->ending;
}

void farm_link_defer_sent(const struct farm_link *link) {
    const struct farm_link_out *out = link->out;
    const bool done = out && out->in_flight && !out->posted.bytes && !(link->tls && frame_waits(link));
    if (link->state == FARM_LINK_OPEN && done && link->ops->defer_sent)
        link->ops->defer_sent(link->engine, link->socket);
}

// ---- heartbeats and figures ----

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
    link->state = link->tls ? FARM_LINK_SHAKING : FARM_LINK_OPEN;
    read_frames(link); // sends the handshake's first message, and receives
}

void farm_link_begin(struct farm_link *link, int fd, const struct farm_address *to, uint64_t now_ns) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)); // or an answer waits for the last one's ACK
    link->ops->open(link->engine, link->socket, fd);
    link->fd = fd;
    link->begun_ns = link->heard_ns = link->heartbeat_ns = now_ns;
    if (to) link->ops->connect(link->engine, link->socket, (const struct sockaddr *)&to->socket, to->bytes);
    if (link->server) handle_connected(link, 0);
}

void farm_link_event(struct farm_link *link, const struct farm_engine_event *event, uint64_t now_ns) {
    if (event->kind == FARM_ENGINE_CLOSED) vacate_link(link);
    if (is_over(link)) return;
    if (event->kind == FARM_ENGINE_CONNECTED) {
        link->begun_ns = link->heard_ns = now_ns;
        handle_connected(link, event->result);
    } else if (event->kind == FARM_ENGINE_RECEIVED) {
        link->heard_ns = now_ns;
        handle_received(link, event->result);
    } else if (event->kind == FARM_ENGINE_SENT) {
        handle_sent(link, event->result);
    }
    check_invariants(link);
}
