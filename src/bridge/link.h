// One connection of a bridge: frames out of and into memory, over an engine, in the clear or by TLS. Puts payloads at
// the addresses that its owner names for each entry, and calls the owner only when CRC32C or TLS has vouched for all of
// a frame. What is wrong ends the connection; nothing of an unvouched frame is ever announced. One thread; no
// allocation after farm_link_make but for the message buffer.
#ifndef FARM_BRIDGE_LINK_H
#define FARM_BRIDGE_LINK_H

#include "bridge/engine.h"
#include "bridge/stats.h"
#include "bridge/tls.h"
#include "bridge/wire.h"

enum { FARM_LINK_PARTS_MAX = 1024, FARM_LINK_READ_AHEAD = 4096 };

enum farm_link_state {
    FARM_LINK_VACANT,
    FARM_LINK_CONNECTING, // TCP, then TLS
    FARM_LINK_OPEN,
    FARM_LINK_CLOSING, // until the engine's CLOSED
};

struct farm_link;

// Called from farm_link_event only. False: the frame breaks the protocol; *err says how; the link closes.
struct farm_link_owner {
    // Where an entry's payload goes: fills parts (at most `room`), *count (0: no payload). Their sum must be what the
    // wire says.
    bool (*place)(void *context, struct farm_link *link, const struct farm_wire_header *header,
                  const struct farm_wire_entry *entry, struct iovec *parts, uint32_t room, uint32_t *count,
                  struct farm_error *err);
    bool (*arrived)(void *context, struct farm_link *link, const struct farm_wire_header *header,
                    const struct farm_wire_entry *entries, struct farm_error *err); // messages: link->message
    void *context;
};

struct farm_link_figures {
    uint64_t bytes_in, bytes_out, frames_in, frames_out, copied_bytes;
};

struct farm_link {
    enum farm_link_state state;
    uint32_t socket;
    const struct farm_engine_ops *ops;
    struct farm_engine *engine;
    struct farm_link_owner owner;
    struct farm_tls *tls; // NULL: in the clear
    bool server;
    char why[FARM_WIRE_TEXT_BYTES]; // of the end; "": in order
    enum farm_status status;        // of what the peer sent; FARM_E_PERMISSION: the keys differ
    uint64_t begun_ns, heard_ns;
    int fd;       // its socket, the engine's; 0 or less: none (memory). Set by the owner after farm_link_make
    bool reached; // a client's: TCP is connected
    uint64_t acked_bytes, rtt_ns;   // as the kernel counts
    uint64_t looked_ns, stalled_ns; // when it was asked; for how long the peer's TCP has owed an acknowledgement
    uint64_t heard_bytes;           // that had come by then, as the kernel counts
    bool known;                     // the owner has accepted the peer: it is no longer limited to FARM_LINK_STRANGER_NS
    uint8_t *message;               // [message_bytes] the message that has arrived
    uint32_t message_bytes, message_room;
    struct farm_link_figures figures, shown; // shown: what farm_link_show has added to the stats
    uint64_t heartbeat_ns;                   // when the last was sent

    // receiving: what has come and is not used up lies in head[head_from, head_to)
    uint8_t head[FARM_WIRE_HEADER_BYTES + FARM_WIRE_ENTRIES_MAX * FARM_WIRE_ENTRY_BYTES + FARM_LINK_READ_AHEAD];
    uint32_t head_from, head_to;
    bool header_known, reading_payload, receiving;
    struct farm_wire_header header_in;
    struct farm_wire_entry entries_in[FARM_WIRE_ENTRIES_MAX];
    uint16_t entry_parts[FARM_WIRE_ENTRIES_MAX]; // how many of parts_in are an entry's
    struct iovec parts_in[FARM_LINK_PARTS_MAX];  // as the owner placed them, for the CRC
    struct iovec rest_in[FARM_LINK_PARTS_MAX];   // what is still missing, from rest_from on
    uint32_t parts_in_count, rest_from;
    size_t payload_left;
    uint64_t frame_in;

    // sending: one frame, and messages behind it; or messages, and no frame before they are gone
    struct farm_link_buffer {
        uint8_t *at;
        size_t bytes, room;
    } posted, posted_out; // messages that wait, and those being sent
    size_t message_out;   // bytes of the largest message so far
    struct farm_wire_header header_out;
    struct farm_wire_entry entries_out[FARM_WIRE_ENTRIES_MAX];
    uint8_t head_out[FARM_WIRE_HEADER_BYTES + FARM_WIRE_ENTRIES_MAX * FARM_WIRE_ENTRY_BYTES];
    struct iovec parts_out[FARM_LINK_PARTS_MAX];
    struct iovec one_out, one_in; // of TLS, of messages
    uint32_t parts_out_count;
    size_t payload_out, taken_out; // bytes; taken by TLS so far
    uint64_t frame_out;
    bool frame_waits, sending;
    bool ends;            // nothing is sent any more but what waits
    bool fails;           // closes when that is sent
    uint64_t close_at_ns; // 0: not yet
};

// link: zeroed; large, so on the heap. socket: a number of the engine's that is free. key NULL: in the clear.
enum farm_status farm_link_make(struct farm_link *link, const struct farm_engine_ops *ops, struct farm_engine *engine,
                                uint32_t socket, bool server, const struct farm_key *key,
                                const struct farm_link_owner *owner, struct farm_error *err);
// The owner has opened the socket at the engine; server: it is connected. Client: farm_link_event brings CONNECTED.
void farm_link_begin(struct farm_link *link, uint64_t now_ns);
// An event of this link's socket. After it link->state may be another.
void farm_link_event(struct farm_link *link, const struct farm_engine_event *event, uint64_t now_ns);
// Now and then: closes a peer that has been silent for ten seconds, a stranger after five, and what has said its last.
void farm_link_tick(struct farm_link *link, uint64_t now_ns);
// After a tick, a client's: whether what was sent finds no way to the peer's TCP. A peer that is slow or stopped has
// acknowledged it.
bool farm_link_stalls(const struct farm_link *link);
// HEARTBEAT: sends one (the peer's echo names the time it was sent); answers one, or takes the echo into the smoothed
// *round_trip_ns (NULL: it is not wanted).
void farm_link_send_heartbeat(struct farm_link *link, uint64_t now_ns);
void farm_link_take_heartbeat(struct farm_link *link, const struct farm_wire_entry *entry, uint64_t now_ns,
                              uint64_t *round_trip_ns);
// Adds to a node's row what has come since the call before. stats: gets the frames, too.
void farm_link_show(struct farm_link *link, struct farm_bridge_stats *stats, struct farm_bridge_node_stats *row);
// Closes it, for this reason (NULL: in order). Idempotent.
void farm_link_close(struct farm_link *link, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Whether a frame may be begun: open, and none waits or is being sent.
static inline bool farm_link_can_send(const struct farm_link *link) {
    return link->state == FARM_LINK_OPEN && !link->frame_waits && !link->posted.bytes && !link->sending && !link->ends;
}
// Before a wait: nothing is to be done as soon as the present send has ended, so its end need not end the wait.
static inline void farm_link_hush(const struct farm_link *link) {
    if (link->state == FARM_LINK_OPEN && link->sending && !link->posted.bytes && !(link->tls && link->frame_waits))
        farm_engine_hush(link->ops, link->engine, link->socket);
}
// A frame of entries, each with its payload, which stays as it is until the frame is sent (farm_link_can_send again).
// add: false, the frame has no room for it; nothing was changed (the first always fits).
void farm_link_frame(struct farm_link *link, enum farm_wire_type type);
bool farm_link_add(struct farm_link *link, const struct farm_wire_entry *entry, const struct iovec *parts,
                   uint32_t count);
void farm_link_commit(struct farm_link *link);
// A message (one entry, this payload, which is copied), sent before any further frame. last: nothing is sent after it;
// closes when the peer does, or soon.
void farm_link_post(struct farm_link *link, enum farm_wire_type type, const void *payload, size_t bytes, bool last);
// A frame of one entry without payload (HEARTBEAT, LEAVE), in order with messages.
void farm_link_post_entry(struct farm_link *link, enum farm_wire_type type, const struct farm_wire_entry *entry);

#endif
