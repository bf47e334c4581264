// The bridge's wire format (docs/WIRE.md gives every byte): frames of a header, up to 64 entries and their payloads,
// little endian. Converts bytes to structs and back and checks every count and length. No I/O, no allocation.
//
//   header 32 B | entries 32 B each | payload of entry 0 | payload of entry 1 | ...
//
// STEPS, ANSWERS and CREDITS have an entry for each lane step; the ring's spec gives the bytes of a payload. HEARTBEAT
// and LEAVE have one entry without payload, VERSION_CHUNK one with up to FARM_WIRE_CHUNK_BYTES. Every other type has
// one entry, whose payload is the message.
#ifndef FARM_BRIDGE_WIRE_H
#define FARM_BRIDGE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "ring/spec.h"

#define FARM_WIRE_MAGIC 0x474452424d524146ull // "FARMBRDG", little endian
enum {
    FARM_WIRE_VERSION = 6,
    FARM_WIRE_HEADER_BYTES = 32,
    FARM_WIRE_ENTRY_BYTES = 32,
    FARM_WIRE_ENTRIES_MAX = 64,
    FARM_WIRE_FRAME_BYTES = 256 << 10,     // lane steps are gathered up to this
    FARM_WIRE_STEP_BYTES_MAX = 64 << 20,   // a lane step that is larger than a frame travels alone, up to this
    FARM_WIRE_MESSAGE_BYTES_MAX = 1 << 20, // payload of HELLO, OFFER, WELCOME, REFUSE, JOIN, BYE
    FARM_WIRE_ID_BYTES = 16,
    FARM_WIRE_NAME_BYTES = 64,
    FARM_WIRE_TEXT_BYTES = 512,
    FARM_WIRE_RINGS_MAX = 1024,          // rings in a session
    FARM_WIRE_SESSION_LANES_MAX = 32000, // lanes of all its rings: their counters fit a message
    FARM_WIRE_OPTIONS_MAX = 32,
    FARM_WIRE_OPTION_BYTES = 1024,
    FARM_WIRE_GENERATION_MAX = INT32_MAX, // actors that a lane has had
    FARM_WIRE_SIGNATURE_BYTES = 64,
    FARM_WIRE_NET_BYTES = 4096,
    FARM_WIRE_CHUNK_BYTES = 256 << 10, // bytes of parameters at a time
    FARM_WIRE_SHA256_BYTES = 32,
};

enum farm_wire_type {
    FARM_WIRE_HELLO = 1, // node: its session and counters
    FARM_WIRE_OFFER,     // learner: environment and shape of the rings
    FARM_WIRE_JOIN,      // node: number of its actors
    FARM_WIRE_WELCOME,   // learner: the actors' numbers, and its counters
    FARM_WIRE_REFUSE,    // learner: the reason
    FARM_WIRE_LEAVE,     // node: this ring's actor leaves
    FARM_WIRE_STEPS,     // node
    FARM_WIRE_ANSWERS,   // learner, CENTRAL
    FARM_WIRE_CREDITS,   // learner
    FARM_WIRE_HEARTBEAT, // both
    FARM_WIRE_BYE,       // both: a regular end
    // Parameters (LOCAL): from the learner or a cache, and what the receiver has of them.
    FARM_WIRE_VERSION_OFFER = 16,
    FARM_WIRE_VERSION_CHUNK,
    FARM_WIRE_VERSION_HAVE,
    FARM_WIRE_TYPE_END,
};

// Header and entry as they travel.
struct farm_wire_header {
    uint32_t bytes; // behind the header: entries and payloads
    uint16_t type;  // enum farm_wire_type
    uint16_t entries;
    uint64_t frame; // number, from 0, in each direction of a connection
    uint32_t zero[3];
    uint32_t crc; // CRC32C of header and entries; farm_wire_put computes it
};

struct farm_wire_entry {
    uint16_t ring, lane; // numbers in the session, in the ring
    uint32_t crc;        // CRC32C of the payload; under TLS 0
    union {
        uint64_t n;       // STEPS, ANSWERS: the step; CREDITS: steps that the learner has
        uint64_t offset;  // VERSION_CHUNK: of the payload in the version
        uint64_t ping_ns; // HEARTBEAT: the sender's clock; 0: requests no echo
    };
    union {
        uint64_t generation; // STEPS: the actor's
        uint64_t consumed;   // ANSWERS, CREDITS: the learner's
        uint64_t pong_ns;    // HEARTBEAT: the peer's clock, echoed; 0: no echo
    };
    union {
        uint64_t heartbeat; // STEPS: the actor's
        uint64_t granted;   // CREDITS: steps that the actor may answer (LOCAL)
        uint64_t version;   // ANSWERS, VERSION_CHUNK: parameter version
    };
};

// Writes header and entries (farm_wire_head_bytes) to `out`. encrypted: TLS protects both, so the CRC is 0.
void farm_wire_put(const struct farm_wire_header *header, const struct farm_wire_entry *entries, bool encrypted,
                   uint8_t *out);

// Reads a header. FARM_E_FORMAT: unknown type, 0 or too many entries, impossible length, nonzero reserved bytes.
enum farm_status farm_wire_get_header(const uint8_t *in, struct farm_wire_header *header, struct farm_error *err);
// Reads the entries behind a header that farm_wire_get_header has read. Checks the CRC of both (encrypted: it is 0).
enum farm_status farm_wire_get_entries(const uint8_t *in, const struct farm_wire_header *header, bool encrypted,
                                       struct farm_wire_entry *entries, struct farm_error *err);
static inline size_t farm_wire_head_bytes(uint16_t entries) {
    return FARM_WIRE_HEADER_BYTES + (size_t)entries * FARM_WIRE_ENTRY_BYTES;
}
const char *farm_wire_type_name(enum farm_wire_type type);
bool farm_wire_is_message(enum farm_wire_type type); // one entry, whose payload is the message

// ---- messages ----

struct farm_wire_counters { // one lane, as the sender counts
    uint64_t produced, acted, consumed, generation;
};

// Where a node passes versions on. Behind the learner's VERSION_OFFER: whose chunks come from there.
struct farm_wire_source {
    char address[FARM_WIRE_NAME_BYTES]; // IP:PORT or [IPv6]:PORT; "": none
    uint32_t depth;                     // caches before it
};

struct farm_wire_hello {
    uint32_t version, segment_version;
    uint8_t session[FARM_WIRE_ID_BYTES];
    uint8_t run[FARM_WIRE_ID_BYTES];  // the session's run; zero: not known yet
    uint64_t machine;                 // distinguishes a restarted node from another one; 0: unknown
    char name[FARM_WIRE_NAME_BYTES];  // for people
    char cache[FARM_WIRE_NAME_BYTES]; // where it passes versions on (struct farm_wire_source)
    uint32_t rings, lanes;            // in the session; 0 rings: none yet
    const uint8_t *counters;          // [rings][lanes]: farm_wire_get_counters; borrowed
};

// Environment and rings of the learner.
struct farm_wire_offer {
    // The learner's, over the message's bytes behind it (bridge/tls.h); in the clear 0. put writes it, get reads it.
    uint8_t signature[FARM_WIRE_SIGNATURE_BYTES];
    uint8_t run[FARM_WIRE_ID_BYTES];
    struct farm_ring_spec spec; // steps: the learner's; a node's rings have their own
    uint64_t seed;
    uint32_t window; // steps of a window of training
    char env[FARM_WIRE_OPTION_BYTES], bad_values[16];
    char net[FARM_WIRE_NET_BYTES]; // LOCAL: the policy's description, as on the learner's board (policy/describe.h)
    uint32_t option_count;
    char options[FARM_WIRE_OPTIONS_MAX][2][FARM_WIRE_OPTION_BYTES]; // key, value
};

struct farm_wire_welcome {
    uint32_t rings, lanes, steps;    // rings: those that have joined; steps: in the learner's rings
    char note[FARM_WIRE_TEXT_BYTES]; // why rings are fewer than requested; "": they are not
    // Borrowed from the message: u32 [rings]; [rings][lanes], for farm_wire_get_counters.
    const uint8_t *actors, *counters;
};

// VERSION_OFFER: the parameters that follow in chunks. Behind the signature: what it signs, as it travels.
struct farm_wire_version {
    uint8_t signature[FARM_WIRE_SIGNATURE_BYTES]; // the learner's (bridge/versions.h); in the clear 0
    uint8_t run[FARM_WIRE_ID_BYTES];
    uint64_t version, bytes; // f32, as on the board
    uint8_t sha256[FARM_WIRE_SHA256_BYTES];
};
// VERSION_HAVE: requests versions from here on.
struct farm_wire_have {
    uint64_t version, bytes; // from its start; all of it: the next one; version UINT64_MAX: OFFERs only
};

enum farm_wire_reason {
    FARM_WIRE_BYE_END,         // the run, or the node, has ended
    FARM_WIRE_REFUSE_FOR_GOOD, // this node can never join
    FARM_WIRE_REFUSE_AGAIN,    // try again at once: another of the learner's bridges has this session
    FARM_WIRE_REFUSE_LATER,    // no room now: try again later
    FARM_WIRE_REFUSE_SESSION,  // the learner does not know this session: begin a new one
};

// Each put writes at most `room` bytes and returns their number, 0: it does not fit. Each get reads exactly `bytes` or
// returns FARM_E_FORMAT; texts end with a zero and have no control characters.
size_t farm_wire_put_hello(const struct farm_wire_hello *hello, const struct farm_wire_counters *counters, uint8_t *out,
                           size_t room);
enum farm_status farm_wire_get_hello(const uint8_t *in, size_t bytes, struct farm_wire_hello *hello,
                                     struct farm_error *err);
void farm_wire_get_counters(const uint8_t *counters, size_t i, struct farm_wire_counters *out);
// FARM_E_LIMIT: a lane step of this shape is larger than FARM_WIRE_STEP_BYTES_MAX.
enum farm_status farm_wire_check_step(const struct farm_ring_spec *spec, struct farm_error *err);
size_t farm_wire_put_offer(const struct farm_wire_offer *offer, uint8_t *out, size_t room);
enum farm_status farm_wire_get_offer(const uint8_t *in, size_t bytes, struct farm_wire_offer *offer,
                                     struct farm_error *err);
size_t farm_wire_put_welcome(uint32_t rings, uint32_t lanes, uint32_t steps, const char *note, const uint32_t *actors,
                             const struct farm_wire_counters *counters, uint8_t *out, size_t room);
enum farm_status farm_wire_get_welcome(const uint8_t *in, size_t bytes, struct farm_wire_welcome *welcome,
                                       struct farm_error *err);
size_t farm_wire_put_join(uint32_t rings, uint8_t *out, size_t room);
enum farm_status farm_wire_get_join(const uint8_t *in, size_t bytes, uint32_t *rings, struct farm_error *err);
size_t farm_wire_put_reason(enum farm_wire_reason reason, const char *text, uint8_t *out, size_t room); // REFUSE, BYE
enum farm_status farm_wire_get_reason(const uint8_t *in, size_t bytes, enum farm_wire_reason *reason,
                                      char text[FARM_WIRE_TEXT_BYTES], struct farm_error *err);

#endif
