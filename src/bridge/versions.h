// Versions of the parameters on their way to other machines: VERSION_OFFER, CHUNK and HAVE over a link (docs/WIRE.md).
//
// The source copies the newest version of the learner's board once for all links, hashes it in slices and signs it. A
// sender, one for each link that asks, sends OFFER and chunks; when a version is finished the newest one follows. The
// receiver makes a whole verified version the newest of its boards. A stage is a version as far as it has arrived: what
// a receiver fills, senders of its process may forward. One thread, a bridge's, which may be killed at any moment:
// nothing is visible before the commit.
#ifndef FARM_BRIDGE_VERSIONS_H
#define FARM_BRIDGE_VERSIONS_H

#include "board/board.h"
#include "bridge/key.h"
#include "bridge/link.h"

enum { FARM_VERSION_STAGES_MAX = 4 };

struct farm_version_stage {
    struct farm_wire_version head;
    float *data;    // head.bytes; NULL: not allocated
    uint64_t held;  // bytes from its start that have arrived and may be sent
    bool verified;  // all of them; SHA-256 is right, and every number finite
    uint32_t users; // senders: head and data must not change
};

// ---- the learner's side ----

struct farm_version_source {
    // The caller sets these; borrowed.
    const struct farm_board *board;
    const struct farm_key *key; // the learner's, which signs; NULL: in the clear
    uint8_t run[FARM_WIRE_ID_BYTES];

    struct farm_version_stage stages[FARM_VERSION_STAGES_MAX];
    struct farm_version_stage *newest, *hashed; // ready, NULL: none yet; being prepared, NULL: none
    void *hash;                                 // EVP_MD_CTX
};

enum farm_status farm_version_source_make(struct farm_version_source *source, struct farm_error *err); // FARM_E_LIMIT
void farm_version_source_free(struct farm_version_source *source); // a zeroed one is allowed
// Whether the newest version is to be prepared, and a stage is free; a slice of that work (false: none was due).
bool farm_version_source_due(struct farm_version_source *source);
bool farm_version_source_turn(struct farm_version_source *source);
// What idle links send next; NULL: nothing yet, because a version is being prepared.
static inline struct farm_version_stage *farm_version_source_newest(const struct farm_version_source *source) {
    return source->hashed ? NULL : source->newest;
}

// Zeroed: a link that has not asked.
struct farm_version_sender {
    struct farm_version_stage *stage; // in transit; NULL: none
    uint64_t sent;                    // bytes of it, with those that the receiver had before
    uint64_t offered;                 // 1 + the newest version that this link has offered; 0: none
    uint64_t sent_ns;                 // when the last chunk was begun
    struct farm_wire_have have;       // what the receiver has, or has been sent
    struct farm_wire_source from;     // announced with OFFERs alone: where the receiver finds the chunks
    bool asked, again;                // HAVE has come; and gives up the version in transit
};

// VERSION_HAVE has come (link->message).
bool farm_version_sender_ask(struct farm_version_sender *sender, const struct farm_link *link, struct farm_error *err);
// Whether farm_version_send has something to send. newest: what follows the version in transit; NULL: nothing yet.
bool farm_version_sender_has(const struct farm_version_sender *sender, const struct farm_version_stage *newest);
// Only if farm_link_can_send: sends an OFFER or a chunk of what is there. Returns whether it has.
bool farm_version_send(struct farm_version_sender *sender, struct farm_link *link, struct farm_version_stage *newest,
                       uint64_t now_ns);
// Several times a second: closes the link of a receiver that does not take a chunk within ten seconds.
void farm_version_sender_tick(const struct farm_version_sender *sender, struct farm_link *link, uint64_t now_ns);
// Whether the board's newest version, if there is any, was offered to the receiver, or it has it.
bool farm_version_is_known(const struct farm_version_sender *sender, const struct farm_version_source *source);
// Whether the receiver has asked and no version is in transit to it.
static inline bool farm_version_sender_is_idle(const struct farm_version_sender *sender) {
    return sender->asked && (!sender->stage || sender->sent == sender->stage->head.bytes);
}
// After the link's CLOSED: nothing of the stage is in flight any more.
void farm_version_sender_end(struct farm_version_sender *sender);

// ---- a node's side ----

struct farm_version_receiver {
    // The caller sets these.
    struct farm_board *const *boards; // [board_count], borrowed, of one size: that of the node's own net
    uint32_t board_count;
    const struct farm_key *key; // the node's, with the learner's public key; NULL: in the clear, no signature
    uint8_t run[FARM_WIRE_ID_BYTES];
    bool staged; // versions arrive in private memory, and can be forwarded; else in the first board's free buffer

    const struct farm_link *from;     // versions come by this link, of others their OFFERs only; NULL: none
    struct farm_version_stage *stage; // arriving; `staged`: or the newest whole one; NULL: none
    struct farm_version_stage stages[FARM_VERSION_STAGES_MAX];
    int buffer;                          // begun, in the first board; -1: none
    uint64_t offered, done;              // 1 + the newest version: offered; committed or skipped. 0: none
    bool discards;                       // chunks until the next OFFER: HAVE was sent, or the version is skipped
    void *hash;                          // EVP_MD_CTX
    uint8_t sink[FARM_WIRE_CHUNK_BYTES]; // for what is not kept
};

enum farm_status farm_version_receiver_make(struct farm_version_receiver *receiver, struct farm_error *err); // _LIMIT
void farm_version_receiver_free(struct farm_version_receiver *receiver); // a zeroed one is allowed
// Posts VERSION_HAVE: versions come by this link, which the caller keeps until farm_version_leave or the next request.
void farm_version_request(struct farm_version_receiver *receiver, struct farm_link *link);
// They come by no link. drops: keeps nothing of a version that is not whole.
void farm_version_leave(struct farm_version_receiver *receiver, bool drops);
// VERSION_OFFER has come (link->message). False: another run, size, signature, or a version that is not newer.
bool farm_version_take_offer(struct farm_version_receiver *receiver, const struct farm_link *link,
                             struct farm_error *err);
// VERSION_CHUNK: farm_link_owner.place (one part) and .arrived. False: not the next bytes of what was offered; or its
// SHA-256 is wrong or a number not finite: it is dropped, and farm_version_request begins it again.
bool farm_version_place_chunk(struct farm_version_receiver *receiver, const struct farm_link *link,
                              const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                              struct iovec *part, struct farm_error *err);
bool farm_version_take_chunk(struct farm_version_receiver *receiver, const struct farm_link *link,
                             const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                             struct farm_error *err);
// Whether the newest version that was offered is on the boards, or skipped because all buffers are in use.
static inline bool farm_version_is_done(const struct farm_version_receiver *receiver) {
    return receiver->done >= receiver->offered;
}

#endif
