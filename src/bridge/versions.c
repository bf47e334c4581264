// See versions.h.
#include "bridge/versions.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = FARM_WIRE_CHUNK_BYTES, SLICE_BYTES = 1 << 20 }; // SLICE: hashed at a time, 0.5 to 2 ms
static const uint64_t PATIENCE_NS = 10000000000u;
static const char LABEL[] = "actorfarm version";
enum { SIGNED_AT = offsetof(struct farm_wire_version, run), SIGNED = sizeof(struct farm_wire_version) - SIGNED_AT };

// 1 + the board's newest version; 0: none.
static uint64_t published_on(const struct farm_board *board) {
    return farm_load_acquire(&board->head->newest) >> 8;
}

static uint64_t bytes_on(const struct farm_board *board) {
    return board->count * sizeof(float);
}

// A stage that no sender uses, with memory, but `newest` only if there is no other; NULL: none.
static struct farm_version_stage *find_free(struct farm_version_stage *stages, const struct farm_version_stage *newest,
                                            uint64_t bytes) {
    struct farm_version_stage *found = NULL;
    for (uint32_t s = 0; s < FARM_VERSION_STAGES_MAX; s++) {
        struct farm_version_stage *stage = &stages[s];
        if (stage->users || (found && found != newest)) continue;
        if (stage->data || (stage->data = malloc(bytes))) found = stage;
    }
    return found;
}

static void free_stages(struct farm_version_stage *stages) {
    for (uint32_t s = 0; s < FARM_VERSION_STAGES_MAX; s++) free(stages[s].data);
}

static bool read_message(const struct farm_link *link, void *to, size_t bytes, struct farm_error *err) {
    if (link->message_bytes == bytes) return memcpy(to, link->message, bytes), true;
    return !farm_fail(err, FARM_E_FORMAT, "malformed message about versions of the parameters");
}

// ---- the learner's side ----

enum farm_status farm_version_source_make(struct farm_version_source *source, struct farm_error *err) {
    source->hash = EVP_MD_CTX_new();
    return source->hash ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for the parameters' versions");
}

void farm_version_source_free(struct farm_version_source *source) {
    free_stages(source->stages);
    EVP_MD_CTX_free(source->hash);
}

bool farm_version_source_due(struct farm_version_source *source) {
    const uint64_t published = published_on(source->board),
                   prepared = source->newest ? 1 + source->newest->head.version : 0;
    return source->hashed ||
           (published != prepared && find_free(source->stages, source->newest, bytes_on(source->board)));
}

static bool copy_newest(struct farm_version_source *source) {
    const uint64_t bytes = bytes_on(source->board);
    struct farm_version_stage *stage = find_free(source->stages, source->newest, bytes);
    if (stage == source->newest) source->newest = NULL;
    *stage = (struct farm_version_stage){.data = stage->data, .head.bytes = bytes};
    memcpy(stage->head.run, source->run, sizeof source->run);
    if (!farm_board_copy(source->board, stage->data, &stage->head.version) ||
        EVP_DigestInit_ex(source->hash, EVP_sha256(), NULL) != 1)
        return false;
    source->hashed = stage;
    return true;
}

bool farm_version_source_turn(struct farm_version_source *source) {
    if (!farm_version_source_due(source) || (!source->hashed && !copy_newest(source))) return false;
    struct farm_version_stage *stage = source->hashed;
    const uint64_t left = stage->head.bytes - stage->held, slice = left < SLICE_BYTES ? left : SLICE_BYTES;
    EVP_DigestUpdate(source->hash, (uint8_t *)stage->data + stage->held, slice);
    stage->held += slice;
    if (slice < left) return true;
    source->hashed = NULL;
    stage->verified =
        EVP_DigestFinal_ex(source->hash, stage->head.sha256, NULL) == 1 &&
        (!source->key || farm_key_sign(source->key, LABEL, stage->head.run, SIGNED, stage->head.signature));
    if (stage->verified) source->newest = stage;
    return true;
}

// ---- a link that asks ----

bool farm_version_sender_ask(struct farm_version_sender *sender, const struct farm_link *link, struct farm_error *err) {
    sender->again = sender->asked;
    sender->asked = true;
    sender->from.address[0] = 0;
    return read_message(link, &sender->have, sizeof sender->have, err);
}

void farm_version_sender_end(struct farm_version_sender *sender) {
    if (sender->stage) sender->stage->users--;
    *sender = (struct farm_version_sender){0};
}

static bool is_new(const struct farm_version_sender *sender, const struct farm_version_stage *stage) {
    const struct farm_wire_have *have = &sender->have;
    if (!sender->asked || !stage) return false;
    if (have->version == UINT64_MAX) return stage->head.version >= sender->offered;
    return stage->head.version > have->version ||
           (stage->head.version == have->version && stage->head.bytes > have->bytes);
}

// A stage that is neither whole nor the newest was dropped.
static bool in_transit(const struct farm_version_sender *sender, const struct farm_version_stage *newest) {
    const struct farm_version_stage *stage = sender->stage;
    return stage && (stage->verified || stage == newest) && !sender->again && sender->sent < stage->head.bytes;
}

bool farm_version_is_known(const struct farm_version_sender *sender, const struct farm_version_source *source) {
    const uint64_t published = published_on(source->board);
    const bool has = sender->asked && sender->have.bytes >= bytes_on(source->board); // UINT64_MAX + 1 is not above
    return sender->offered >= published || (has && 1 + sender->have.version >= published);
}

bool farm_version_sender_has(const struct farm_version_sender *sender, const struct farm_version_stage *newest) {
    return in_transit(sender, newest) ? sender->sent < sender->stage->held : is_new(sender, newest);
}

static void begin_stage(struct farm_version_sender *sender, struct farm_link *link, struct farm_version_stage *stage) {
    const struct farm_wire_have *have = &sender->have;
    struct {
        struct farm_wire_version head;
        struct farm_wire_source from;
    } offer = {stage->head, sender->from};
    sender->stage = stage;
    stage->users++;
    sender->sent = have->version == UINT64_MAX            ? stage->head.bytes
                   : have->version == stage->head.version ? have->bytes / sizeof(float) * sizeof(float)
                                                          : 0;
    sender->offered = 1 + stage->head.version;
    sender->again = false;
    farm_link_post(link, FARM_WIRE_VERSION_OFFER, &offer,
                   sizeof offer.head + (sender->from.address[0] ? sizeof offer.from : 0), false);
}

bool farm_version_send(struct farm_version_sender *sender, struct farm_link *link, struct farm_version_stage *newest,
                       uint64_t now_ns) {
    if (sender->stage && !in_transit(sender, newest)) { // the last chunk is sent, or the receiver wants another one
        sender->stage->users--;
        sender->stage = NULL;
    }
    if (!farm_version_sender_has(sender, newest)) return false;
    sender->sent_ns = now_ns;
    if (!sender->stage) return begin_stage(sender, link, newest), true;
    const struct farm_version_stage *stage = sender->stage;
    const uint64_t left = stage->held - sender->sent;
    const struct iovec part = {(uint8_t *)stage->data + sender->sent, left < CHUNK_BYTES ? left : CHUNK_BYTES};
    const struct farm_wire_entry entry = {.offset = sender->sent, .version = stage->head.version};
    farm_link_frame(link, FARM_WIRE_VERSION_CHUNK);
    farm_link_add(link, &entry, &part, 1);
    farm_link_commit(link);
    sender->sent += part.iov_len;
    if (sender->have.version != UINT64_MAX) sender->have = (struct farm_wire_have){stage->head.version, sender->sent};
    return true;
}

void farm_version_sender_tick(const struct farm_version_sender *sender, struct farm_link *link, uint64_t now_ns) {
    if (sender->stage && now_ns - sender->sent_ns > PATIENCE_NS && !farm_link_can_send(link))
        farm_link_close(link, "has not taken %d KiB of parameters for 10 s", CHUNK_BYTES >> 10);
}

// ---- a node's side ----

enum farm_status farm_version_receiver_make(struct farm_version_receiver *receiver, struct farm_error *err) {
    receiver->buffer = -1;
    receiver->hash = EVP_MD_CTX_new();
    return receiver->hash ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for the parameters' versions");
}

void farm_version_receiver_free(struct farm_version_receiver *receiver) {
    if (receiver->staged) free_stages(receiver->stages);
    EVP_MD_CTX_free(receiver->hash);
}

// 1 + the newest version that is on the boards, or skipped.
static uint64_t newest_of(const struct farm_version_receiver *receiver) {
    const uint64_t board = published_on(receiver->boards[0]);
    return receiver->done > board ? receiver->done : board;
}

void farm_version_request(struct farm_version_receiver *receiver, struct farm_link *link) {
    const struct farm_version_stage *stage = receiver->stage;
    const uint64_t done = newest_of(receiver);
    struct farm_wire_have have = {0};
    if (done) have = (struct farm_wire_have){done - 1, bytes_on(receiver->boards[0])};
    if (stage && !stage->verified) have = (struct farm_wire_have){stage->head.version, stage->held};
    receiver->from = link;
    receiver->discards = true;
    farm_link_post(link, FARM_WIRE_VERSION_HAVE, &have, sizeof have, false);
}

void farm_version_leave(struct farm_version_receiver *receiver, bool drops) {
    receiver->from = NULL;
    if (drops && receiver->stage && !receiver->stage->verified) receiver->stage = NULL;
}

static enum farm_status check_offer(const struct farm_version_receiver *receiver, const struct farm_wire_version *head,
                                    struct farm_error *err) {
    const unsigned long long version = head->version, bytes = head->bytes, own = bytes_on(receiver->boards[0]);
    if (memcmp(head->run, receiver->run, sizeof head->run) != 0)
        return farm_fail(err, FARM_E_FORMAT, "version %llu of the parameters is another run's", version);
    if (bytes != own)
        return farm_fail(err, FARM_E_FORMAT, "version %llu has %llu bytes, and the network %llu", version, bytes, own);
    if (receiver->key && !farm_key_verify(receiver->key, LABEL, head->run, SIGNED, head->signature))
        return farm_fail(err, FARM_E_PERMISSION, "the learner's signature of version %llu is wrong", version);
    return FARM_OK;
}

// A place for a version that begins; NULL: none, and the version is skipped.
static struct farm_version_stage *begin_version(struct farm_version_receiver *receiver) {
    if (receiver->staged) return find_free(receiver->stages, receiver->stage, bytes_on(receiver->boards[0]));
    if (receiver->buffer < 0) receiver->buffer = farm_board_begin(receiver->boards[0]);
    if (receiver->buffer < 0) return NULL;
    receiver->stages[0].data = receiver->boards[0]->buffer[receiver->buffer];
    return receiver->stages;
}

bool farm_version_take_offer(struct farm_version_receiver *receiver, const struct farm_link *link,
                             struct farm_error *err) {
    struct farm_wire_version head;
    struct farm_version_stage *stage = receiver->stage;
    const bool carries = link == receiver->from;
    if (!read_message(link, &head, sizeof head, err)) return false;
    if (carries && stage && !stage->verified && memcmp(&stage->head, &head, sizeof head) == 0) // goes on
        return receiver->discards = false, true;
    if (check_offer(receiver, &head, err)) return false;
    const uint64_t next = 1 + head.version;
    uint64_t before = newest_of(receiver);
    if (stage && before < 1 + stage->head.version) before = 1 + stage->head.version;
    if (next > receiver->offered) receiver->offered = next;
    if (!carries) return true;
    if (next <= before || next >> 55)
        return !farm_fail(err, FARM_E_FORMAT, "version %llu of the parameters comes after version %llu",
                          (unsigned long long)head.version, (unsigned long long)before - 1);
    receiver->stage = stage = begin_version(receiver);
    if (stage) *stage = (struct farm_version_stage){.head = head, .data = stage->data};
    receiver->discards = !stage;
    if (!stage) receiver->done = next; // skipped
    return !stage || EVP_DigestInit_ex(receiver->hash, EVP_sha256(), NULL) == 1;
}

bool farm_version_place_chunk(struct farm_version_receiver *receiver, const struct farm_link *link,
                              const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                              struct iovec *part, struct farm_error *err) {
    const size_t bytes = header->bytes - FARM_WIRE_ENTRY_BYTES; // at most sizeof sink
    const struct farm_version_stage *stage = receiver->stage;
    *part = (struct iovec){receiver->sink, bytes};
    if (link != receiver->from || receiver->discards) return true;
    if (!stage || stage->verified || entry->version != stage->head.version || entry->offset != stage->held || !bytes ||
        bytes % sizeof(float) || bytes > stage->head.bytes - stage->held)
        return !farm_fail(err, FARM_E_FORMAT, "%zu bytes from %llu of version %llu of the parameters are not the next",
                          bytes, (unsigned long long)entry->offset, (unsigned long long)entry->version);
    part->iov_base = (uint8_t *)stage->data + stage->held;
    return true;
}

// Makes it the newest of every board. The first one comes last: HAVE reads it, if this process is killed in between.
static void publish(struct farm_version_receiver *receiver) {
    const struct farm_version_stage *stage = receiver->stage;
    for (uint32_t b = receiver->board_count; b-- > !receiver->staged;)
        farm_board_publish(receiver->boards[b], stage->data, stage->head.version);
    if (!receiver->staged) {
        farm_board_commit(receiver->boards[0], receiver->buffer, stage->head.version);
        receiver->buffer = -1;
        receiver->stage = NULL; // its memory is the board's
    }
    receiver->done = 1 + stage->head.version;
}

static bool are_finite(const float *numbers, size_t count) {
    uint32_t bits, beyond = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(&bits, &numbers[i], sizeof bits);
        beyond |= (bits & 0x7f800000) == 0x7f800000;
    }
    return !beyond;
}

bool farm_version_take_chunk(struct farm_version_receiver *receiver, const struct farm_link *link,
                             const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                             struct farm_error *err) {
    const size_t bytes = header->bytes - FARM_WIRE_ENTRY_BYTES;
    struct farm_version_stage *stage = receiver->stage;
    uint8_t sha256[FARM_WIRE_SHA256_BYTES];
    if (link != receiver->from || receiver->discards) return true;
    const float *numbers = stage->data + stage->held / sizeof(float);
    const bool finite = are_finite(numbers, bytes / sizeof *numbers);
    EVP_DigestUpdate(receiver->hash, numbers, bytes);
    stage->held += bytes;
    if (finite && stage->held < stage->head.bytes) return true;
    stage->verified = finite && EVP_DigestFinal_ex(receiver->hash, sha256, NULL) == 1 &&
                      memcmp(sha256, stage->head.sha256, sizeof sha256) == 0;
    if (stage->verified) return publish(receiver), true;
    receiver->stage = NULL;
    return !farm_fail(err, FARM_E_FORMAT, "version %llu of the parameters has another SHA-256, or infinite numbers",
                      (unsigned long long)entry->version);
}
