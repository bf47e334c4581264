// What a node accepts of a version on its way to the board: nothing that is not the learner's, whole and finite is ever
// the newest. test_cuts.c and test_pair.c carry versions over links.
#include <criterion/criterion.h>
#include <math.h>
#include <openssl/sha.h>
#include <string.h>

#include "base/log.h"
#include "bridge/versions.h"

TestSuite(versions, .timeout = 30);

enum { COUNT = 70000, BYTES = COUNT * sizeof(float), CHUNK = FARM_WIRE_CHUNK_BYTES }; // two chunks
static const struct farm_key KEY = {.kind = FARM_KEY_LEARNER, .secret = {1, 2, 3}};
static struct farm_key node_key;
static float params[COUNT];
static struct farm_board *boards[2];
static struct farm_version_receiver receiver;
static struct farm_link link; // vacant: only its message is read

static void begin(bool staged) {
    const struct farm_board_request request = {.count = COUNT, .packed_max = 64, .buffers = 3, .node = -1};
    farm_log_set_level(FARM_LOG_ERROR);
    cr_assert(farm_key_derive(&KEY, "node", &node_key));
    receiver = (struct farm_version_receiver){
        .boards = boards, .board_count = 2, .key = &node_key, .run = {7}, .staged = staged, .from = &link};
    for (int b = 0; b < 2; b++) cr_assert_eq(farm_board_create(&request, &boards[b], NULL), FARM_OK);
    cr_assert_eq(farm_version_receiver_make(&receiver, NULL), FARM_OK);
}

static void end(void) {
    farm_version_receiver_free(&receiver);
    for (int b = 0; b < 2; b++) farm_board_free(boards[b]);
}

static uint64_t newest(int b) {
    return boards[b]->head->newest >> 8; // 1 + version
}

static struct farm_wire_version head_of(uint64_t version) {
    struct farm_wire_version head = {.run = {7}, .version = version, .bytes = BYTES};
    for (size_t i = 0; i < COUNT; i++) params[i] = (float)(version + i);
    SHA256((const uint8_t *)params, BYTES, head.sha256);
    return head;
}

static bool offer(struct farm_wire_version *head) {
    farm_key_sign(&KEY, "actorfarm version", head->run, sizeof *head - sizeof head->signature, head->signature);
    link.message = (uint8_t *)head;
    link.message_bytes = sizeof *head;
    return farm_version_take_offer(&receiver, &link, NULL);
}

static bool chunk(uint64_t version, uint64_t offset, uint32_t bytes) {
    const struct farm_wire_header header = {.bytes = FARM_WIRE_ENTRY_BYTES + bytes, .entries = 1};
    const struct farm_wire_entry entry = {.offset = offset, .version = version};
    struct iovec part;
    if (!farm_version_place_chunk(&receiver, &link, &header, &entry, &part, NULL)) return false;
    cr_assert_eq(part.iov_len, bytes);
    memcpy(part.iov_base, (const uint8_t *)params + (offset < BYTES ? offset : 0), bytes);
    return farm_version_take_chunk(&receiver, &link, &header, &entry, NULL);
}

static bool send_whole(uint64_t version) {
    struct farm_wire_version head = head_of(version);
    return offer(&head) && chunk(version, 0, CHUNK) && chunk(version, CHUNK, BYTES - CHUNK);
}

static void check_newest(uint64_t version) {
    for (int b = 0; b < 2; b++) {
        struct farm_board_reader reader;
        uint64_t word = 0, found;
        cr_assert_eq(newest(b), 1 + version);
        farm_board_attach(boards[b], &reader, &word, NULL);
        const float *at = farm_board_pin(&reader, &found);
        for (size_t i = 0; i < COUNT; i++) cr_assert_eq(at[i], (float)(version + i));
    }
}

static void check_the_first_is_not_newer(void *context, const float *numbers, void *packed) {
    (void)context, (void)numbers, (void)packed;
    cr_expect_leq(newest(0), newest(1), "killed here, the other board would miss a version");
}

Test(versions, are_the_newest_of_every_board_when_they_are_whole) {
    for (int staged = 0; staged < 2; staged++) {
        begin(staged);
        for (int b = 0; b < 2; b++) boards[b]->pack = check_the_first_is_not_newer;
        for (uint64_t version = 0; version < 9; version += 1 + version % 3) {
            cr_assert(send_whole(version));
            cr_assert(farm_version_is_done(&receiver));
            check_newest(version);
        }
        end();
    }
}

Test(versions, an_offer_of_another_run_size_age_or_signature_is_refused) {
    for (int fault = 0; fault < 9; fault++) {
        begin(fault & 1);
        cr_assert(send_whole(4));
        struct farm_wire_version head = head_of(5);
        if (fault == 0) head.run[15] ^= 1;
        if (fault == 1) head.bytes += 4;
        if (fault == 2) head.bytes = UINT64_MAX - 3;
        if (fault == 3) head.version = 4;
        if (fault == 4) head.version = 0;
        if (fault == 5) head.version = UINT64_MAX;
        if (fault == 8) head.version = 1ull << 56; // a board's word has no room for it
        bool accepted = fault != 6 && fault != 7 && offer(&head);
        if (fault == 6) { // all words are right, but another has signed them
            cr_assert(offer(&head));
            receiver.stage = NULL;
            head.signature[63] ^= 1;
            accepted = farm_version_take_offer(&receiver, &link, NULL);
        }
        if (fault == 7) {
            cr_assert(offer(&head));
            link.message_bytes--;
            accepted = farm_version_take_offer(&receiver, &link, NULL);
        }
        cr_expect_not(accepted, "fault %d", fault);
        cr_expect_eq(newest(0), 5);
        end();
    }
}

Test(versions, a_chunk_that_is_not_the_next_is_refused) {
    static const struct {
        uint64_t version, offset;
        uint32_t bytes;
    } wrong[] = {{5, CHUNK + 4, 4}, {5, 0, CHUNK}, {5, UINT64_MAX - 3, 8}, {5, CHUNK, 0},      {5, CHUNK, 6},
                 {5, CHUNK, CHUNK}, {4, CHUNK, 4}, {6, CHUNK, 4},          {UINT64_MAX, 0, 4}, {5, 1ull << 63, 16}};
    begin(false);
    cr_expect_not(chunk(5, 0, CHUNK), "nothing was offered");
    struct farm_wire_version head = head_of(5);
    cr_assert(offer(&head) && chunk(5, 0, CHUNK));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_expect_not(chunk(wrong[i].version, wrong[i].offset, wrong[i].bytes), "chunk %zu", i);
    cr_expect_eq(newest(0), 0);
    cr_assert(offer(&head), "it goes on after a cut");
    cr_assert(chunk(5, CHUNK, BYTES - CHUNK));
    check_newest(5);
    cr_expect_not(chunk(5, 0, 4), "it is whole");
    end();
}

Test(versions, other_bytes_or_infinite_numbers_are_never_the_newest) {
    for (int fault = 0; fault < 4; fault++) {
        begin(fault & 1);
        cr_assert(send_whole(1));
        struct farm_wire_version head = head_of(2);
        params[COUNT - 1] = fault < 2 ? 0 : fault == 2 ? NAN : INFINITY;
        if (fault >= 2) SHA256((const uint8_t *)params, BYTES, head.sha256); // the learner itself diverges
        cr_assert(offer(&head) && chunk(2, 0, CHUNK));
        cr_expect_not(chunk(2, CHUNK, BYTES - CHUNK));
        cr_expect_not(farm_version_is_done(&receiver));
        head_of(1);
        check_newest(1);
        cr_expect(send_whole(2), "the right bytes of the same version");
        check_newest(2);
        end();
    }
}

Test(versions, one_that_finds_all_buffers_in_use_is_skipped_and_awaited_by_nothing) {
    uint64_t using[2] = {0};
    begin(false);
    for (int r = 0; r < 2; r++) cr_assert_eq(farm_board_watch(boards[0], &using[r], NULL), FARM_OK);
    cr_assert(send_whole(1));
    const uint64_t used = boards[0]->head->newest & 0xff;
    for (uint64_t b = 0, r = 0; b < 3; b++)
        if (b != used) using[r++] = 1 + b;
    cr_assert(send_whole(2));
    cr_expect_eq(boards[0]->head->skipped, 1);
    cr_expect(farm_version_is_done(&receiver));
    cr_expect_eq(newest(0), 2);
    using[0] = using[1] = 0;
    cr_assert(send_whole(3));
    check_newest(3);
    end();
}
