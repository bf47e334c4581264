// TLS 1.3 over memory: OpenSSL between two buffers that the caller's engine fills and empties. A pre-shared key with
// ephemeral X25519 or P-256 (psk_dhe_ke only), AES-128-GCM; no certificates, tickets or early data. Changes the sending
// key every 2^22 records. A context's connections belong to one thread; no I/O, no allocation after the handshake.
#ifndef FARM_BRIDGE_TLS_H
#define FARM_BRIDGE_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/status.h"
#include "bridge/key.h"

struct farm_tls_context; // one side's settings and key; making them takes longer than a connection
struct farm_tls;

enum { FARM_TLS_BUFFER_BYTES = 288 << 10 }; // output: a frame of 256 KiB and the overhead of its records

// A client has a node's key. A server has the learner's key and serves all nodes, or a node's key and serves the nodes
// with the same key. Borrows the key. FARM_E_LIMIT, FARM_E_UNSUPPORTED.
enum farm_status farm_tls_context_make(const struct farm_key *key, bool server, struct farm_tls_context **out,
                                       struct farm_error *err);
// A server's: refuses new connections with the key of this name. False: it did so already.
bool farm_tls_withdraw(struct farm_tls_context *context, const char *name);
void farm_tls_context_free(struct farm_tls_context *context); // after its connections; NULL is allowed

// Borrows the context. FARM_E_LIMIT, FARM_E_UNSUPPORTED.
enum farm_status farm_tls_make(const struct farm_tls_context *context, struct farm_tls **out, struct farm_error *err);
void farm_tls_free(struct farm_tls *tls);              // NULL is allowed
const char *farm_tls_name(const struct farm_tls *tls); // the node's; a server: "" before the handshake

// Address of the next received bytes, and the room there (> 0 after everything readable is read); then their number.
void *farm_tls_input(struct farm_tls *tls, size_t *room);
void farm_tls_received(struct farm_tls *tls, size_t bytes);
// Bytes to be sent (0: none), valid until farm_tls_sent; no farm_tls_write in between.
const void *farm_tls_output(struct farm_tls *tls, size_t *bytes);
void farm_tls_sent(struct farm_tls *tls);

// Bytes of a client's hello, by its first FARM_TLS_HEAD_BYTES. FARM_E_FORMAT: not one record that is a whole hello of
// TLS 1.3 and at most FARM_TLS_HELLO_BYTES_MAX.
enum { FARM_TLS_HEAD_BYTES = 9, FARM_TLS_HELLO_BYTES_MAX = 4096 };
enum farm_status farm_tls_hello_bytes(const uint8_t *head, size_t *bytes, struct farm_error *err);
// Continues the handshake as far as the input allows. *done: it has ended. FARM_E_PERMISSION: the keys differ, or it is
// withdrawn; FARM_E_FORMAT: the peer does not use this protocol. After a failure there may be output for the peer: an
// alert.
enum farm_status farm_tls_handshake(struct farm_tls *tls, bool *done, struct farm_error *err);
// After the handshake. The server writes the learner's signature of this connection and of the rest of the message into
// its first FARM_KEY_SIGNATURE_BYTES; the client verifies it. False: the peer is not the learner, or OpenSSL has
// failed.
bool farm_tls_certify(struct farm_tls *tls, uint8_t *message, size_t bytes);
// Reads up to `bytes`; *got 0: needs more input. FARM_E_DEAD: closed by the peer; FARM_E_FORMAT: a bad record.
enum farm_status farm_tls_read(struct farm_tls *tls, void *to, size_t bytes, size_t *got, struct farm_error *err);
// Encrypts parts from byte *taken on, as far as the buffer holds, in full records. Only while there is no output.
enum farm_status farm_tls_write(struct farm_tls *tls, const struct iovec *parts, uint32_t count, size_t *taken,
                                struct farm_error *err);

// For tests: changes the sending key after N records; number of changes.
void farm_tls_rekey_every(struct farm_tls *tls, uint64_t records);
uint64_t farm_tls_rekeyed(const struct farm_tls *tls);

uint64_t farm_tls_copied_bytes(const struct farm_tls *tls); // by this module, OpenSSL's own not counted

#endif
