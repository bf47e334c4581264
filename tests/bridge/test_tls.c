// TLS between two ends in one process: a peer with the key connects, no other does, and bytes come out unchanged.
#include <criterion/criterion.h>

#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <string.h>

#include "bridge/tls.h"

static void free_contexts(void);
TestSuite(bridge, .timeout = 30, .fini = free_contexts);

static struct farm_error err;

// Keys 1 and 2 are of two learners, and of a node of each.
static struct farm_key keys[2][3];
static struct farm_tls_context *contexts[2][3]; // by side and key; made once

static struct farm_tls *make_end(bool server, uint8_t k) {
    struct farm_tls_context **context = &contexts[server][k];
    struct farm_key *key = &keys[server][k], learner = {.kind = FARM_KEY_LEARNER};
    struct farm_tls *tls = NULL;
    for (int i = 0; i < FARM_KEY_BYTES; i++) learner.secret[i] = (uint8_t)(k + 7 * i);
    if (!*context && server) *key = learner;
    if (!*context && !server) cr_assert(farm_key_derive(&learner, "node-7", key));
    if (!*context) cr_assert_eq(farm_tls_context_make(key, server, context, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_tls_make(*context, &tls, &err), FARM_OK, "%s", err.message);
    return tls;
}

static void free_contexts(void) {
    for (int i = 0; i < 6; i++) farm_tls_context_free(contexts[i / 3][i % 3]);
}

// Two ends, faults on the way between them, and the results of their handshake.
struct ends {
    struct farm_tls *end[2]; // server, client
    enum farm_status status[2];
    bool done[2];
    size_t passed[2];  // bytes sent by the end
    size_t flip_at[2]; // its byte that changes by `flip`
    uint8_t flip;
    size_t cut_at[2]; // bytes after which nothing arrives
};

static struct ends ends_of(uint8_t servers, uint8_t clients) {
    return (struct ends){.end = {make_end(true, servers), make_end(false, clients)},
                         .flip_at = {SIZE_MAX, SIZE_MAX},
                         .cut_at = {SIZE_MAX, SIZE_MAX}};
}

static void free_ends(struct ends *ends) {
    farm_tls_free(ends->end[0]);
    farm_tls_free(ends->end[1]);
}

#define with_ends __attribute__((cleanup(free_ends))) struct ends // freed at the end of their scope

// Carries one end's output to the other; false: no output, or no room.
static bool carry(struct ends *ends, int from) {
    size_t bytes, room;
    const uint8_t *output = farm_tls_output(ends->end[from], &bytes);
    uint8_t *input = farm_tls_input(ends->end[!from], &room);
    if (!bytes || room < bytes) return false;
    for (size_t i = 0; i < bytes; i++, ends->passed[from]++) {
        if (ends->passed[from] >= ends->cut_at[from]) continue;
        input[i] = output[i] ^ (ends->passed[from] == ends->flip_at[from] ? ends->flip : 0);
        farm_tls_received(ends->end[!from], 1);
    }
    farm_tls_sent(ends->end[from]);
    return true;
}

static void run_handshake(struct ends *ends) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 1; i >= 0; i--) {
            if (!ends->status[i] && !ends->done[i])
                ends->status[i] = farm_tls_handshake(ends->end[i], &ends->done[i], &err);
            moved |= carry(ends, i);
        }
    }
}

static struct ends open_ends(void) {
    struct ends ends = ends_of(1, 1);
    run_handshake(&ends);
    cr_assert(ends.done[0] && ends.done[1], "%s", err.message);
    return ends;
}

// Writes parts at one end and reads them at the other, in pieces of at most `piece`.
static void pass_data(struct ends *ends, int from, const struct iovec *parts, uint32_t count, size_t piece) {
    size_t total = 0, taken = 0, got, n = 0;
    for (uint32_t i = 0; i < count; i++) total += parts[i].iov_len;
    uint8_t *out = malloc(total + 1), *in = malloc(total + 1);
    for (uint32_t i = 0; i < count; n += parts[i++].iov_len)
        if (parts[i].iov_len) memcpy(out + n, parts[i].iov_base, parts[i].iov_len);
    for (n = 0; n < total;) {
        size_t bytes, room;
        cr_assert_eq(farm_tls_write(ends->end[from], parts, count, &taken, &err), FARM_OK, "%s", err.message);
        const uint8_t *output = farm_tls_output(ends->end[from], &bytes);
        for (size_t i = 0, step; i < bytes; i += step) {
            void *input = farm_tls_input(ends->end[!from], &room);
            cr_assert_gt(room, 0);
            step = bytes - i < room ? bytes - i : room;
            memcpy(input, output + i, step);
            farm_tls_received(ends->end[!from], step);
            do {
                const size_t most = total + 1 - n < piece ? total + 1 - n : piece;
                cr_assert_eq(farm_tls_read(ends->end[!from], in + n, most, &got, &err), FARM_OK, "%s", err.message);
                n += got;
            } while (got);
        }
        farm_tls_sent(ends->end[from]);
    }
    cr_assert(taken == total && n == total && memcmp(in, out, total) == 0);
    free(out);
    free(in);
}

// ---- handshake ----

Test(bridge, tls_opens_to_the_same_key) {
    with_ends ends = open_ends();
    const struct iovec part = {"hello", 5};
    pass_data(&ends, 0, &part, 1, 100);
    pass_data(&ends, 1, &part, 1, 1);
    cr_assert_leq(ends.passed[0] + ends.passed[1], 700, "handshake of %zu + %zu bytes", ends.passed[0], ends.passed[1]);
}

Test(bridge, tls_refuses_another_key_on_both_sides) {
    with_ends ends = ends_of(1, 2);
    run_handshake(&ends);
    for (int i = 0; i < 2; i++) cr_assert_eq(ends.status[i], FARM_E_PERMISSION, "side %d: %s", i, err.message);
    cr_assert(strstr(err.message, "keys differ"), "%s", err.message);
    cr_assert(!ends.done[0] && !ends.done[1]);
}

// A client's handshake ends before the server's, which needs the client's Finished. Both must not end, and the receiver
// of the damage must not.
static void check_damage(int from, size_t at, uint8_t flip) {
    with_ends ends = ends_of(1, 1);
    ends.flip = flip;
    *(flip ? &ends.flip_at[from] : &ends.cut_at[from]) = at;
    run_handshake(&ends);
    cr_assert(!(ends.done[0] && ends.done[1]), "byte %zu of side %d, flipped by %02x", at, from, flip);
    cr_assert(!ends.done[!from], "byte %zu of side %d, flipped by %02x", at, from, flip);
    cr_assert(!flip || ends.status[0] || ends.status[1] || !ends.done[0], "no side reports an error");
}

Test(bridge, tls_never_opens_after_a_changed_byte_or_a_truncated_handshake) {
    static const uint8_t flips[] = {0x01, 0x80, 0}; // 0: truncated
    with_ends whole = open_ends();
    for (size_t f = 0; f < sizeof flips; f++)
        for (int from = 0; from < 2; from++)
            for (size_t at = 0; at < whole.passed[from]; at++) check_damage(from, at, flips[f]);
}

Test(bridge, tls_reports_a_peer_without_tls) {
    for (int server = 0; server < 2; server++) {
        struct farm_tls *tls = make_end(server, 1);
        bool done = false;
        size_t room;
        memcpy(farm_tls_input(tls, &room), "\x40\0\0\0FARM", 8);
        farm_tls_received(tls, 8);
        cr_assert(farm_tls_handshake(tls, &done, &err) == FARM_E_FORMAT && !done && room >= 8);
        cr_assert(strstr(err.message, "--insecure"), "%s", err.message);
        farm_tls_free(tls);
    }
}

// Any TLS 1.3 server without the key can present a certificate.
Test(bridge, tls_accepts_no_certificate_instead_of_the_key) {
    EVP_PKEY *pair = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    X509 *certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 1000);
    X509_set_pubkey(certificate, pair);
    cr_assert(X509_sign(certificate, pair, EVP_sha256()));
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    cr_assert(SSL_CTX_use_certificate(context, certificate) && SSL_CTX_use_PrivateKey(context, pair));
    SSL *server = SSL_new(context);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    SSL_set_bio(server, in, out);
    SSL_set_accept_state(server);

    struct farm_tls *client = make_end(false, 1);
    enum farm_status status = FARM_OK;
    bool done = false;
    for (int i = 0; i < 4 && !status && !done; i++) {
        size_t bytes, room;
        status = farm_tls_handshake(client, &done, &err);
        const void *output = farm_tls_output(client, &bytes);
        BIO_write(in, output, (int)bytes);
        farm_tls_sent(client);
        SSL_do_handshake(server);
        void *input = farm_tls_input(client, &room);
        const int n = BIO_read(out, input, (int)room);
        if (n > 0) farm_tls_received(client, (size_t)n);
    }
    cr_assert(!done && status == FARM_E_PERMISSION, "%d %d %s", done, status, err.message);
    farm_tls_free(client);
    SSL_free(server);
    SSL_CTX_free(context);
    X509_free(certificate);
    EVP_PKEY_free(pair);
}

Test(bridge, tls_names_the_node_and_refuses_a_withdrawn_name) {
    for (int withdrawn = 0; withdrawn < 2; withdrawn++) {
        with_ends ends = ends_of(1, 1);
        if (withdrawn) cr_assert(farm_tls_withdraw(contexts[1][1], "node-7"));
        run_handshake(&ends);
        cr_assert_str_eq(farm_tls_name(ends.end[0]), "node-7");
        cr_assert_eq(ends.done[0], !withdrawn);
        for (int i = 0; i < 2; i++) cr_assert_eq(ends.status[i], withdrawn ? FARM_E_PERMISSION : FARM_OK);
        if (withdrawn)
            cr_assert(strstr(err.message, "refuses the key of node node-7: it is withdrawn there"), "%s", err.message);
    }
    cr_assert_not(farm_tls_withdraw(contexts[1][1], "node-7"));
}

// A signature is good for its bytes on its connection alone.
Test(bridge, tls_tells_the_learner_from_another_holder_of_the_nodes_key) {
    with_ends ends = open_ends(), others = open_ends();
    uint8_t message[FARM_KEY_SIGNATURE_BYTES + 5] = {0};
    cr_assert_not(farm_tls_certify(ends.end[1], message, sizeof message), "without a signature");
    cr_assert(farm_tls_certify(ends.end[0], message, sizeof message));
    cr_assert(farm_tls_certify(ends.end[1], message, sizeof message));
    cr_assert_not(farm_tls_certify(ends.end[1], message, sizeof message - 1));
    cr_assert_not(farm_tls_certify(ends.end[1], message, FARM_KEY_SIGNATURE_BYTES - 1));
    cr_assert_not(farm_tls_certify(others.end[1], message, sizeof message), "replayed");
    for (size_t i = 0; i < sizeof message; i++) {
        message[i] ^= 1;
        cr_assert_not(farm_tls_certify(ends.end[1], message, sizeof message), "byte %zu", i);
        message[i] ^= 1;
    }
}

// ---- data ----

Test(bridge, tls_carries_parts_of_any_size_both_ways) {
    with_ends ends = open_ends();
    static const size_t sizes[] = {288, 225792, 4, 4, 0, 16, 28224, 16384, 16383, 1, 8192, 8191, 1 << 20, 32};
    enum { PARTS = sizeof sizes / sizeof *sizes };
    struct iovec parts[PARTS];
    for (size_t i = 0; i < PARTS; i++) {
        parts[i] = (struct iovec){malloc(sizes[i] + 1), sizes[i]};
        for (size_t j = 0; j < sizes[i]; j++) ((uint8_t *)parts[i].iov_base)[j] = (uint8_t)(i + j * 40503u / 64);
    }
    for (int from = 0; from < 2; from++) {
        pass_data(&ends, from, parts, PARTS, SIZE_MAX);
        pass_data(&ends, from, parts, PARTS, 1000);
        for (size_t i = 0; i < PARTS; i++)
            if (sizes[i]) pass_data(&ends, from, &parts[i], 1, 20000);
    }
    for (size_t i = 0; i < PARTS; i++) free(parts[i].iov_base);
}

Test(bridge, tls_joins_small_parts_and_encrypts_large_ones_in_place) {
    with_ends ends = open_ends();
    static uint8_t data[256 << 10];
    struct iovec parts[65] = {{data, 288}};
    size_t taken = 0, bytes;
    for (int i = 1; i <= 64; i++) parts[i] = (struct iovec){data, 64};
    cr_assert_eq(farm_tls_write(ends.end[0], parts, 65, &taken, &err), FARM_OK);
    farm_tls_output(ends.end[0], &bytes);
    cr_assert_eq(bytes, 288 + 64 * 64 + 22, "one record");
    farm_tls_sent(ends.end[0]);

    const uint64_t copied = farm_tls_copied_bytes(ends.end[0]);
    parts[1] = (struct iovec){data, sizeof data};
    taken = 0;
    cr_assert_eq(farm_tls_write(ends.end[0], parts, 2, &taken, &err), FARM_OK);
    farm_tls_output(ends.end[0], &bytes);
    cr_assert_eq(taken, 288 + sizeof data, "a frame fits the output buffer");
    cr_assert_eq(bytes, taken + 17 * 22);
    cr_assert_eq(farm_tls_copied_bytes(ends.end[0]) - copied, bytes + 288,
                 "to the output buffer, and the joined parts");
}

Test(bridge, tls_changes_its_key_and_stays_readable) {
    with_ends ends = open_ends();
    const struct iovec part = {"step", 4};
    farm_tls_rekey_every(ends.end[1], 3);
    for (int i = 0; i < 300; i++) {
        pass_data(&ends, 1, &part, 1, 10);
        pass_data(&ends, 0, &part, 1, 10);
    }
    cr_assert_eq(farm_tls_rekeyed(ends.end[1]), 99);
    cr_assert_eq(farm_tls_rekeyed(ends.end[0]), 0);
}

// Reads one record of data, changed at `at` by `flip`, or repeated; returns the reader's status.
static enum farm_status read_changed(size_t at, uint8_t flip, bool repeated) {
    with_ends ends = open_ends();
    const struct iovec part = {"twelve bytes", 12};
    size_t taken = 0, bytes, room, got = 0;
    char in[64];
    cr_assert_eq(farm_tls_write(ends.end[1], &part, 1, &taken, &err), FARM_OK);
    const uint8_t *output = farm_tls_output(ends.end[1], &bytes);
    cr_assert_eq(bytes, 12 + 22);
    for (int i = 0; i <= repeated; i++) {
        uint8_t *input = farm_tls_input(ends.end[0], &room);
        memcpy(input, output, bytes);
        input[at] ^= flip;
        farm_tls_received(ends.end[0], bytes);
    }
    enum farm_status status = farm_tls_read(ends.end[0], in, 12, &got, &err);
    cr_assert_eq(got, repeated ? 12 : 0);
    if (!status) status = farm_tls_read(ends.end[0], in, 12, &got, &err);
    cr_assert_eq(got, 0);
    return status;
}

Test(bridge, tls_refuses_a_changed_or_repeated_record) {
    cr_assert_eq(read_changed(0, 0, true), FARM_E_FORMAT);
    for (size_t at = 0; at < 34; at++) {
        const enum farm_status status = read_changed(at, 4, false);
        const bool longer = at == 3 || at == 4; // the reader waits for more
        cr_assert(status == FARM_E_FORMAT || (longer && status == FARM_OK), "byte %zu: %s", at, err.message);
    }
}

Test(bridge, tls_keeps_an_alert_while_output_is_being_sent) {
    with_ends ends = open_ends();
    const struct iovec part = {"step", 4};
    size_t taken = 0, bytes, room, got;
    char in[8];
    cr_assert_eq(farm_tls_write(ends.end[0], &part, 1, &taken, &err), FARM_OK);
    farm_tls_output(ends.end[0], &bytes);
    cr_assert_eq(bytes, 26);
    memset(farm_tls_input(ends.end[0], &room), 'x', 100); // an alert follows
    farm_tls_received(ends.end[0], 100);
    cr_assert_eq(farm_tls_read(ends.end[0], in, 4, &got, &err), FARM_E_FORMAT);
    farm_tls_sent(ends.end[0]);
    farm_tls_output(ends.end[0], &bytes);
    cr_assert_gt(bytes, 0);
}

// A node's key as a server's: contexts[1][0]; contexts[0][0] is a client of another name, of the same learner.
Test(bridge, a_node_serves_its_own_key_only_and_cannot_be_the_learner) {
    uint8_t offer[FARM_KEY_SIGNATURE_BYTES + 8] = {0};
    farm_tls_free(make_end(false, 1)); // its key
    for (int i = 0; i < FARM_KEY_BYTES; i++) keys[1][0].secret[i] = (uint8_t)(1 + 7 * i);
    keys[1][0].kind = FARM_KEY_LEARNER;
    cr_assert(farm_key_derive(&keys[1][0], "node-8", &keys[0][0]));
    cr_assert_eq(farm_tls_context_make(&keys[0][0], false, &contexts[0][0], &err), FARM_OK);
    cr_assert_eq(farm_tls_context_make(&keys[0][1], true, &contexts[1][0], &err), FARM_OK);
    with_ends same = ends_of(0, 1), other = ends_of(0, 0);
    run_handshake(&same);
    run_handshake(&other);
    cr_expect(same.done[0] && same.done[1], "%s", err.message);
    cr_expect_not(other.done[0] || other.done[1]);
    cr_expect_not(farm_tls_certify(same.end[0], offer, sizeof offer));
}
