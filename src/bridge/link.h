// One connection of a bridge: frames out of and into memory, over an engine, in the clear or by TLS. Writes payloads to
// the addresses that its owner gives for each entry. Calls the owner only after CRC32C or TLS has verified the whole
// frame; any error ends the connection. One thread. Allocates in farm_link_make, and for messages; frees at CLOSED.
#ifndef FARM_BRIDGE_LINK_H
#define FARM_BRIDGE_LINK_H

#include "bridge/address.h"
#include "bridge/engine.h"
#include "bridge/stats.h"
#include "bridge/tls.h"
#include "bridge/wire.h"

enum farm_link_state {
    FARM_LINK_VACANT,
    FARM_LINK_DIALLING, // a client, until TCP is connected
    FARM_LINK_SHAKING,  // TLS; a server: also before farm_link_begin
    FARM_LINK_OPEN,
    FARM_LINK_CLOSING, // until the engine's CLOSED
};
enum farm_link_ending {
    FARM_LINK_LASTS,
    FARM_LINK_ENDS,  // sends what already waits, nothing else
    FARM_LINK_FAILS, // closes after the bytes in flight are sent: an alert of TLS
};

enum { FARM_LINK_BEAT_NS = 1000000000 };

struct farm_link;

// Called from farm_link_event only. False: the frame breaks the protocol (*err); the link closes.
struct farm_link_owner {
    // Fills parts (at most `room`) with the addresses of an entry's payload, *count (0: none). Their sum must be right.
    bool (*place)(void *context, const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                  struct iovec *parts, uint32_t room, uint32_t *count, struct farm_error *err);
    bool (*arrived)(void *context, struct farm_link *link, const struct farm_wire_header *header,
                    const struct farm_wire_entry *entries, struct farm_error *err); // messages: link->message
    void *context;
};

struct farm_link_figures {
    uint64_t bytes_in, bytes_out, frames_in, frames_out, copied_bytes;
};

struct farm_link {
    enum farm_link_state state;
    enum farm_link_ending ending;
    enum farm_status status;        // received bytes were wrong; FARM_E_PERMISSION: the keys differ
    char why[FARM_WIRE_TEXT_BYTES]; // it ended; "": no error
    uint8_t *message;               // [message_bytes] the last message received
    uint32_t message_bytes;
    uint64_t begun_ns, heard_ns, heartbeat_ns; // heartbeat: when the last was sent
    bool server;
    int fd;     // the engine's; 0 or less: none (memory)
    bool known; // by the owner, after farm_link_make: the peer is accepted: no limit of 5 s any more

    uint32_t socket;
    const struct farm_engine_ops *ops;
    struct farm_engine *engine;
    struct farm_link_owner owner;
    struct farm_tls *tls;   // NULL: in the clear
    uint64_t close_at_ns;   // 0: not yet
    struct farm_link_path { // by TCP_INFO, read at info_ns
        uint64_t rtt_ns, acked_bytes, received_bytes, info_ns;
        uint64_t stalled_ns; // time without an acknowledgement that is due
    } path;
    struct farm_link_figures figures, shown; // shown: already added to the stats
    struct farm_link_in *in;                 // both: link.c; NULL while vacant
    struct farm_link_out *out;
};

// link: zeroed or vacant. socket: a free number of the engine. context: borrowed, the same side's; NULL: in the clear.
enum farm_status farm_link_make(struct farm_link *link, const struct farm_engine_ops *ops, struct farm_engine *engine,
                                uint32_t socket, bool server, const struct farm_tls_context *context,
                                const struct farm_link_owner *owner, struct farm_error *err);
// Opens the socket, which the engine owns from here on. A client's connects to `to`, a server's (NULL) is connected.
void farm_link_begin(struct farm_link *link, int fd, const struct farm_address *to, uint64_t now_ns);
// Handles an event of this link's socket; may change link->state.
void farm_link_event(struct farm_link *link, const struct farm_engine_event *event, uint64_t now_ns);
// Call it several times a second. Closes a peer silent for 10 s, an unknown one after 5 s, a link 1 s after its last.
// Sends HEARTBEAT with the time every beat_ns.
void farm_link_tick(struct farm_link *link, uint64_t now_ns, uint64_t beat_ns);
// A client's, after a tick: whether the peer's TCP, not its process, does not acknowledge sent bytes.
bool farm_link_is_stalled(const struct farm_link *link);
// HEARTBEAT: answers one, or smooths an echo's time into *round_trip_ns (NULL: discards it).
void farm_link_handle_heartbeat(struct farm_link *link, const struct farm_wire_entry *entry, uint64_t now_ns,
                                uint64_t *round_trip_ns);
// Adds the figures since the last call, and these steps, to the node's row; the frames to `stats`. Sets the steps to 0.
void farm_link_add_figures(struct farm_link *link, struct farm_bridge_stats *stats, struct farm_bridge_node_stats *row,
                           uint64_t *lane_steps, uint64_t *env_steps);
// For an owner: this frame may not come now. False.
bool farm_link_refuse(const struct farm_wire_header *header, struct farm_error *err);
// Closes the link for this reason (NULL: no error). Idempotent.
void farm_link_close(struct farm_link *link, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Whether a frame may be begun: the link is open, and none waits or is being sent.
bool farm_link_can_send(const struct farm_link *link);
// Before a wait: the end of the present send need not end the wait, because there is nothing to send after it.
void farm_link_defer_sent(const struct farm_link *link);
// Builds a frame of entries. Payloads must not change until the frame is sent (farm_link_can_send). add returns false,
// without a change, if the frame has no room; the first entry always fits.
void farm_link_frame(struct farm_link *link, enum farm_wire_type type);
bool farm_link_add(struct farm_link *link, const struct farm_wire_entry *entry, const struct iovec *parts,
                   uint32_t count);
void farm_link_commit(struct farm_link *link);
// A message (one entry; copies the payload), sent before later frames. last: the link then closes, at most 1 s later.
void farm_link_post(struct farm_link *link, enum farm_wire_type type, const void *payload, size_t bytes, bool last);

#endif
