// TLS 1.3 over memory: OpenSSL between two buffers that the caller's engine fills and empties. A pre-shared key
// with ephemeral X25519 or P-256 (psk_dhe_ke only), AES-128-GCM, no certificates, tickets or early data; the sending
// key is changed every 2^22 records. One connection, one thread, no I/O. After the handshake nothing is allocated.
#ifndef FARM_BRIDGE_TLS_H
#define FARM_BRIDGE_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/status.h"
#include "bridge/key.h"

struct farm_tls;

enum { FARM_TLS_BUFFER_BYTES = 288 << 10 }; // of output: a frame of 256 KiB with its records' overhead

// server: the learner's side. FARM_E_LIMIT, FARM_E_UNSUPPORTED.
enum farm_status farm_tls_make(bool server, const struct farm_key *key, struct farm_tls **out, struct farm_error *err);
void farm_tls_free(struct farm_tls *tls); // NULL is allowed

// Where the next received bytes go, and how many there is room for (> 0 once everything readable is read); then how
// many came.
void *farm_tls_input(struct farm_tls *tls, size_t *room);
void farm_tls_received(struct farm_tls *tls, size_t bytes);
// Bytes to be sent (0: none); they stay until farm_tls_sent, between which nothing is written.
const void *farm_tls_output(struct farm_tls *tls, size_t *bytes);
void farm_tls_sent(struct farm_tls *tls);

// Goes on with the handshake as far as input allows. *done: it is over. FARM_E_PERMISSION: the keys differ;
// FARM_E_FORMAT: the peer does not speak this. After a failure there may be output, which tells the peer why.
enum farm_status farm_tls_handshake(struct farm_tls *tls, bool *done, struct farm_error *err);
// Reads up to `bytes`; *got 0: more input is needed. FARM_E_DEAD: the peer has ended; FARM_E_FORMAT: a record that was
// forged, repeated or damaged.
enum farm_status farm_tls_read(struct farm_tls *tls, void *to, size_t bytes, size_t *got, struct farm_error *err);
// Encrypts from parts, of which the first *taken bytes have been taken before, until the buffer is full or all is
// taken; small parts are put together into full records. Call while there is no output.
enum farm_status farm_tls_write(struct farm_tls *tls, const struct iovec *parts, uint32_t count, size_t *taken,
                                struct farm_error *err);

// Changes the sending key after so many records instead (tests); and how often it was changed.
void farm_tls_rekey_every(struct farm_tls *tls, uint64_t records);
uint64_t farm_tls_rekeyed(const struct farm_tls *tls);

uint64_t farm_tls_copied_bytes(const struct farm_tls *tls); // by this module, OpenSSL's own not counted

#endif
