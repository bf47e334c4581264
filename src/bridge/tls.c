// See tls.h. OpenSSL reads and writes through a BIO over two plain buffers: it neither blocks nor allocates for them.
#include "bridge/tls.h"

#include <openssl/err.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char IDENTITY[] = "actorfarm 2 "; // and the node's name
static const char BINDING[] = "EXPORTER actorfarm learner", OFFER[] = "actorfarm offer";

enum {
    INPUT_BYTES = 128 << 10,
    RECORD_BYTES = SSL3_RT_MAX_PLAIN_LENGTH, // 16 KiB
    OVERHEAD_BYTES = 128,                    // header, type, tag, and a change of the key before it
    DIRECT_BYTES = 8 << 10,                  // larger parts have their own records
    HANDSHAKE_BYTES_MAX = 16 << 10,
    REKEY_RECORDS = 1 << 22,
};

struct farm_tls_context {
    bool server;
    SSL_CTX *settings;
    BIO_METHOD *method;
    const struct farm_key *key;
    const SSL_CIPHER *cipher;
    struct farm_key_names withdrawn;
};

struct farm_tls {
    const struct farm_tls_context *context;
    SSL *ssl;
    char name[FARM_KEY_NAME_BYTES]; // the node's; a server: as the peer says until `done`, "" before
    bool done, began, withdrawn;
    char identity[sizeof IDENTITY + FARM_KEY_NAME_BYTES]; // a client's
    uint64_t received_bytes, copied_bytes, records, rekey_records, rekeyed;
    size_t in_from, in_to;        // what OpenSSL has not read of `in`
    size_t out_bytes, lent_bytes; // in `out`; lent: returned by farm_tls_output
    uint8_t gathered[RECORD_BYTES];
    uint8_t in[INPUT_BYTES], out[FARM_TLS_BUFFER_BYTES];
};

// ---- buffers as a BIO ----

static int bio_read(BIO *bio, char *to, size_t bytes, size_t *got) {
    struct farm_tls *tls = BIO_get_data(bio);
    const size_t there = tls->in_to - tls->in_from;
    BIO_clear_retry_flags(bio);
    *got = bytes < there ? bytes : there;
    if (!*got) {
        BIO_set_retry_read(bio);
        return 0;
    }
    memcpy(to, tls->in + tls->in_from, *got);
    tls->in_from += *got;
    tls->copied_bytes += *got;
    return 1;
}

// farm_tls_write leaves room; only an alert of a failed connection may not fit.
static int bio_write(BIO *bio, const char *from, size_t bytes, size_t *written) {
    struct farm_tls *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (bytes > sizeof tls->out - tls->out_bytes) return 0;
    memcpy(tls->out + tls->out_bytes, from, bytes);
    tls->out_bytes += bytes;
    tls->copied_bytes += bytes;
    *written = bytes;
    return 1;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static bool make_method(struct farm_tls_context *context) {
    BIO_METHOD *method = context->method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "farm buffers");
    return method && BIO_meth_set_read_ex(method, bio_read) && BIO_meth_set_write_ex(method, bio_write) &&
           BIO_meth_set_ctrl(method, bio_control);
}

static bool make_bio(struct farm_tls *tls) {
    BIO *bio = BIO_new(tls->context->method);
    if (!bio) return false;
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio); // takes it over
    return true;
}

// ---- the pre-shared key ----

// What OpenSSL takes as a pre-shared key. NULL: no memory.
static SSL_SESSION *make_session(const struct farm_tls *tls) {
    uint8_t shared[FARM_KEY_BYTES];
    SSL_SESSION *session = SSL_SESSION_new();
    const bool made = session && farm_key_shared(tls->context->key, tls->name, shared) &&
                      SSL_SESSION_set1_master_key(session, shared, sizeof shared) &&
                      SSL_SESSION_set_cipher(session, tls->context->cipher) &&
                      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
    explicit_bzero(shared, sizeof shared);
    if (made) return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **identity, size_t *bytes, SSL_SESSION **session) {
    (void)md; // the only cipher's
    struct farm_tls *tls = SSL_get_app_data(ssl);
    snprintf(tls->identity, sizeof tls->identity, "%s%s", IDENTITY, tls->name);
    *identity = (const unsigned char *)tls->identity;
    *bytes = strlen(tls->identity);
    *session = make_session(tls);
    return *session != NULL;
}

// 0 ends the handshake with an alert of an internal error, which tells a withdrawn node from one with another key.
static int find_key(SSL *ssl, const unsigned char *identity, size_t bytes, SSL_SESSION **session) {
    struct farm_tls *tls = SSL_get_app_data(ssl);
    const size_t before = sizeof IDENTITY - 1;
    char name[FARM_KEY_NAME_BYTES] = "";
    *session = NULL;
    if (bytes <= before || bytes - before >= sizeof name || memcmp(identity, IDENTITY, before) != 0) return 1;
    memcpy(name, identity + before, bytes - before);
    if (strlen(name) != bytes - before || !farm_key_name_valid(name)) return 1;
    memcpy(tls->name, name, sizeof name);
    tls->withdrawn = farm_key_names_have(&tls->context->withdrawn, tls->name);
    if (!tls->withdrawn) *session = make_session(tls);
    return !tls->withdrawn;
}

// NULL: this OpenSSL does not have it.
static const SSL_CIPHER *find_cipher(const SSL_CTX *settings) {
    const STACK_OF(SSL_CIPHER) *all = SSL_CTX_get_ciphers(settings);
    for (int i = 0; i < sk_SSL_CIPHER_num(all); i++)
        if (SSL_CIPHER_get_id(sk_SSL_CIPHER_value(all, i)) == TLS1_3_CK_AES_128_GCM_SHA256)
            return sk_SSL_CIPHER_value(all, i);
    return NULL;
}

// ---- making ----

// SSL_OP_ALLOW_NO_DHE_KEX is off, so a client offers and a server accepts psk_dhe_ke only. A server without the key can
// only present a certificate, which the client refuses because it has no trusted issuer.
static bool make_settings(struct farm_tls_context *context) {
    const bool server = context->server;
    SSL_CTX *settings = context->settings = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (!settings || !SSL_CTX_set_min_proto_version(settings, TLS1_3_VERSION) ||
        !SSL_CTX_set_max_proto_version(settings, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(settings, "TLS_AES_128_GCM_SHA256") || !SSL_CTX_set_num_tickets(settings, 0) ||
        !(SSL_CTX_set1_groups_list(settings, "X25519:P-256") || SSL_CTX_set1_groups_list(settings, "P-256")))
        return false;
    SSL_CTX_set_options(settings, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_clear_options(settings, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_clear_mode(settings, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(settings, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify(settings, server ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_max_early_data(settings, 0);
    if (server)
        SSL_CTX_set_psk_find_session_callback(settings, find_key);
    else
        SSL_CTX_set_psk_use_session_callback(settings, use_key);
    return true;
}

static const char *openssl_reason(void) {
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    return text ? text : "no reason given";
}

static enum farm_status fail_to_make(struct farm_error *err) {
    return farm_fail(err, FARM_E_UNSUPPORTED, "OpenSSL cannot make a TLS 1.3 connection with AES-128-GCM: %s",
                     openssl_reason());
}

enum farm_status farm_tls_context_make(const struct farm_key *key, bool server, struct farm_tls_context **out,
                                       struct farm_error *err) {
    struct farm_tls_context *context = calloc(1, sizeof *context);
    if (!context) return farm_fail(err, FARM_E_LIMIT, "out of memory for TLS");
    context->server = server;
    context->key = key;
    ERR_clear_error();
    if (!make_settings(context) || !(context->cipher = find_cipher(context->settings)) || !make_method(context)) {
        fail_to_make(err);
        farm_tls_context_free(context);
        return FARM_E_UNSUPPORTED;
    }
    *out = context;
    return FARM_OK;
}

void farm_tls_context_free(struct farm_tls_context *context) {
    if (!context) return;
    SSL_CTX_free(context->settings);
    BIO_meth_free(context->method);
    free(context);
}

enum farm_status farm_tls_make(const struct farm_tls_context *context, struct farm_tls **out, struct farm_error *err) {
    struct farm_tls *tls = calloc(1, sizeof *tls);
    if (!tls) return farm_fail(err, FARM_E_LIMIT, "out of memory for a TLS connection");
    tls->context = context;
    memcpy(tls->name, context->key->name, sizeof tls->name);
    tls->rekey_records = REKEY_RECORDS;
    ERR_clear_error();
    if (!(tls->ssl = SSL_new(context->settings)) || !SSL_set_app_data(tls->ssl, tls) || !make_bio(tls)) {
        fail_to_make(err);
        farm_tls_free(tls);
        return FARM_E_UNSUPPORTED;
    }
    if (context->server)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
    *out = tls;
    return FARM_OK;
}

bool farm_tls_withdraw(struct farm_tls_context *context, const char *name) {
    return farm_key_names_add(&context->withdrawn, name);
}

const char *farm_tls_name(const struct farm_tls *tls) {
    return tls->name;
}

void farm_tls_free(struct farm_tls *tls) {
    if (!tls) return;
    SSL_free(tls->ssl);
    free(tls);
}

// ---- buffers as the engine sees them ----

void *farm_tls_input(struct farm_tls *tls, size_t *room) {
    const size_t kept = tls->in_to - tls->in_from;
    if (!kept) {
        tls->in_from = tls->in_to = 0;
    } else if (tls->in_from && sizeof tls->in - tls->in_to < 2 * RECORD_BYTES) {
        memmove(tls->in, tls->in + tls->in_from, kept);
        tls->copied_bytes += kept;
        tls->in_from = 0;
        tls->in_to = kept;
    }
    *room = sizeof tls->in - tls->in_to;
    if (!tls->done && *room > HANDSHAKE_BYTES_MAX - tls->received_bytes)
        *room = HANDSHAKE_BYTES_MAX - tls->received_bytes;
    return tls->in + tls->in_to;
}

void farm_tls_received(struct farm_tls *tls, size_t bytes) {
    tls->in_to += bytes;
    tls->received_bytes += bytes;
}

const void *farm_tls_output(struct farm_tls *tls, size_t *bytes) {
    *bytes = tls->lent_bytes = tls->out_bytes;
    return tls->out;
}

// An alert may have been added since.
void farm_tls_sent(struct farm_tls *tls) {
    memmove(tls->out, tls->out + tls->lent_bytes, tls->out_bytes - tls->lent_bytes);
    tls->out_bytes -= tls->lent_bytes;
    tls->lent_bytes = 0;
}

// ---- handshake ----

static enum farm_status fail_as_stranger(struct farm_error *err) {
    return farm_fail(err, FARM_E_FORMAT, "the peer does not use TLS; does one side only have --insecure?");
}

enum farm_status farm_tls_hello_bytes(const uint8_t *head, size_t *bytes, struct farm_error *err) {
    static const uint8_t start[] = {SSL3_RT_HANDSHAKE, 3, 1};
    const size_t record = (size_t)head[3] << 8 | head[4], message = (size_t)head[6] << 16 | head[7] << 8 | head[8];
    *bytes = 5 + record;
    const bool whole = head[5] == SSL3_MT_CLIENT_HELLO && record == 4 + message && *bytes <= FARM_TLS_HELLO_BYTES_MAX;
    return memcmp(head, start, sizeof start) == 0 && whole ? FARM_OK : fail_as_stranger(err);
}

// Checks the first record's type and version more strictly than OpenSSL: an alert, or the peer's hello.
static bool starts_tls(const struct farm_tls *tls) {
    const uint8_t hello[] = {SSL3_RT_HANDSHAKE, 3, tls->context->server ? 1 : 3};
    const size_t there = tls->in_to - tls->in_from;
    if (there && !tls->context->server && tls->in[0] == SSL3_RT_ALERT) return true;
    return memcmp(tls->in, hello, there < sizeof hello ? there : sizeof hello) == 0;
}

static enum farm_status explain_failure(const struct farm_tls *tls, struct farm_error *err) {
    if (tls->withdrawn) return farm_fail(err, FARM_E_PERMISSION, "the key of node %s is withdrawn", tls->name);
    switch (ERR_GET_REASON(ERR_peek_last_error())) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER: // the learner's reply to a wrong binder
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:     // the same, from newer versions of OpenSSL
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
        return farm_fail(err, FARM_E_PERMISSION, "the keys differ");
    case SSL_R_TLSV1_ALERT_INTERNAL_ERROR:
        return farm_fail(err, FARM_E_PERMISSION, "the learner refuses the key of node %s: it is withdrawn there",
                         tls->name);
    default:
        return farm_fail(err, FARM_E_FORMAT, "the TLS handshake failed: %s", openssl_reason());
    }
}

enum farm_status farm_tls_handshake(struct farm_tls *tls, bool *done, struct farm_error *err) {
    *done = tls->done;
    if (tls->done) return FARM_OK;
    if (!tls->began && tls->in_to > 0) {
        if (!starts_tls(tls)) return fail_as_stranger(err);
        tls->began = tls->in_to >= 3;
        if (!tls->began) return FARM_OK;
    }
    ERR_clear_error();
    const int result = SSL_do_handshake(tls->ssl);
    if (result == 1) {
        if (!SSL_session_reused(tls->ssl)) return farm_fail(err, FARM_E_PERMISSION, "the peer did not use the key");
        *done = tls->done = true;
        return FARM_OK;
    }
    if (SSL_get_error(tls->ssl, result) != SSL_ERROR_WANT_READ) return explain_failure(tls, err);
    if (tls->received_bytes >= HANDSHAKE_BYTES_MAX)
        return farm_fail(err, FARM_E_FORMAT, "the TLS handshake has not ended within %d bytes", HANDSHAKE_BYTES_MAX);
    return FARM_OK;
}

bool farm_tls_certify(struct farm_tls *tls, uint8_t *message, size_t bytes) {
    uint8_t secret[FARM_KEY_BYTES], bound[FARM_KEY_BYTES];
    const size_t behind = FARM_KEY_SIGNATURE_BYTES;
    const struct farm_key *key = tls->context->key;
    unsigned size = sizeof bound;
    return bytes >= behind &&
           SSL_export_keying_material(tls->ssl, secret, sizeof secret, BINDING, sizeof BINDING - 1, NULL, 0, 0) == 1 &&
           HMAC(EVP_sha256(), secret, sizeof secret, message + behind, bytes - behind, bound, &size) &&
           (tls->context->server ? farm_key_sign(key, OFFER, bound, sizeof bound, message)
                                 : farm_key_verify(key, OFFER, bound, sizeof bound, message));
}

// ---- data ----

enum farm_status farm_tls_read(struct farm_tls *tls, void *to, size_t bytes, size_t *got, struct farm_error *err) {
    *got = 0;
    while (*got < bytes) {
        size_t n = 0;
        ERR_clear_error();
        const int result = SSL_read_ex(tls->ssl, (uint8_t *)to + *got, bytes - *got, &n);
        if (result == 1) {
            *got += n;
            continue;
        }
        const int error = SSL_get_error(tls->ssl, result);
        if (error == SSL_ERROR_WANT_READ || (error == SSL_ERROR_ZERO_RETURN && *got)) return FARM_OK;
        if (error == SSL_ERROR_ZERO_RETURN) return farm_fail(err, FARM_E_DEAD, "the peer has closed the connection");
        return farm_fail(err, FARM_E_FORMAT, "a TLS record is damaged or forged: %s", openssl_reason());
    }
    return FARM_OK;
}

static enum farm_status write_record(struct farm_tls *tls, const void *from, size_t bytes, struct farm_error *err) {
    size_t written = 0;
    ERR_clear_error();
    if (tls->records >= tls->rekey_records) {
        if (!SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED))
            return farm_fail(err, FARM_E_IO, "TLS could not change the key: %s", openssl_reason());
        tls->records = 0;
        tls->rekeyed++;
    }
    if (!SSL_write_ex(tls->ssl, from, bytes, &written) || written != bytes)
        return farm_fail(err, FARM_E_IO, "TLS could not write a record: %s", openssl_reason());
    tls->records++;
    return FARM_OK;
}

struct cursor {
    const struct iovec *part, *end;
    size_t offset;
};

static struct cursor advance_cursor(const struct iovec *parts, uint32_t count, size_t bytes) {
    struct cursor at = {parts, parts + count, bytes};
    while (at.part < at.end && at.offset >= at.part->iov_len) at.offset -= at.part++->iov_len;
    return at;
}

// The next record's bytes: in place, or copied from small parts up to the next large one.
static const void *next_record(struct farm_tls *tls, struct cursor at, size_t *bytes) {
    size_t there = at.part->iov_len - at.offset;
    const uint8_t *from = (const uint8_t *)at.part->iov_base + at.offset;
    *bytes = there < RECORD_BYTES ? there : RECORD_BYTES;
    if (there >= DIRECT_BYTES || at.part + 1 == at.end) return from;
    for (*bytes = 0;;) {
        const size_t room = RECORD_BYTES - *bytes, n = there < room ? there : room;
        if (n) memcpy(tls->gathered + *bytes, from, n); // a part may be empty, with a null address
        *bytes += n;
        if (n < there || ++at.part == at.end || at.part->iov_len >= DIRECT_BYTES) break;
        from = at.part->iov_base;
        there = at.part->iov_len;
    }
    tls->copied_bytes += *bytes;
    return tls->gathered;
}

enum farm_status farm_tls_write(struct farm_tls *tls, const struct iovec *parts, uint32_t count, size_t *taken,
                                struct farm_error *err) {
    struct cursor at = advance_cursor(parts, count, *taken);
    while (at.part < at.end && sizeof tls->out - tls->out_bytes >= RECORD_BYTES + OVERHEAD_BYTES) {
        size_t bytes;
        const void *from = next_record(tls, at, &bytes);
        const enum farm_status status = write_record(tls, from, bytes, err);
        if (status) return status;
        *taken += bytes;
        at = advance_cursor(at.part, (uint32_t)(at.end - at.part), at.offset + bytes);
    }
    return FARM_OK;
}

void farm_tls_rekey_every(struct farm_tls *tls, uint64_t records) {
    tls->rekey_records = records;
}

uint64_t farm_tls_rekeyed(const struct farm_tls *tls) {
    return tls->rekeyed;
}

uint64_t farm_tls_copied_bytes(const struct farm_tls *tls) {
    return tls->copied_bytes;
}
