// See key.h. A file is lines of text:
//
//   actorfarm-key-2 learner <64 hexadecimal digits>             and then, for each withdrawn name: withdrawn NAME
//   actorfarm-key-2 node NAME <64 hexadecimal digits> <64 digits of the learner's public key>
#include "bridge/key.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"

static const char PREFIX[] = "actorfarm-key-2";
enum { HEX_BYTES = 2 * FARM_KEY_BYTES + 1, LINE_BYTES = 256, WORDS = 5, SIGNED_BYTES_MAX = 512 };
enum { FILE_BYTES_MAX = LINE_BYTES + FARM_KEY_WITHDRAWN_MAX * (FARM_KEY_NAME_BYTES + 16) };

// ---- names ----

bool farm_key_name_valid(const char *name) {
    const size_t bytes = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-");
    return bytes && bytes < FARM_KEY_NAME_BYTES && !name[bytes] && name[0] != '.';
}

bool farm_key_names_have(const struct farm_key_names *names, const char *name) {
    for (uint32_t i = 0; i < names->count; i++)
        if (strcmp(names->name[i], name) == 0) return true;
    return false;
}

bool farm_key_names_add(struct farm_key_names *names, const char *name) {
    if (names->count == FARM_KEY_WITHDRAWN_MAX || farm_key_names_have(names, name)) return false;
    snprintf(names->name[names->count++], FARM_KEY_NAME_BYTES, "%s", name);
    return true;
}

// ---- memory ----

static enum farm_status allocate(struct farm_key **out, struct farm_error *err) {
    void *page = mmap(NULL, sizeof **out, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for a key");
    if (madvise(page, sizeof **out, MADV_WIPEONFORK) | madvise(page, sizeof **out, MADV_DONTDUMP))
        farm_log_warn("the kernel does not keep the key out of actors and core dumps: %s", strerror(errno));
    (void)mlock(page, sizeof **out); // a limit may forbid it; then it may be swapped out
    *out = page;
    return FARM_OK;
}

void farm_key_free(struct farm_key *key) {
    if (!key) return;
    explicit_bzero(key, sizeof *key);
    munmap(key, sizeof *key);
}

void farm_key_lend(const struct farm_key *key, int *fd) {
    int ends[2];
    if (*fd >= 0) close(*fd);
    *fd = -1;
    if (!key || pipe2(ends, O_CLOEXEC) < 0) return;
    (void)!write(ends[1], key, sizeof *key); // an empty pipe has room
    close(ends[1]);
    *fd = ends[0];
}

enum farm_status farm_key_borrow(int fd, struct farm_key **out, struct farm_error *err) {
    const struct rlimit none = {1, 1}; // 0 would still dump into a pipe of core_pattern: core(5)
    const enum farm_status status = allocate(out, err);
    if (status) return status;
    if (setrlimit(RLIMIT_CORE, &none)) farm_log_warn("core dumps stay on: %s", strerror(errno));
    const ssize_t n = read(fd, *out, sizeof **out);
    close(fd);
    if (n == (ssize_t)sizeof **out) return FARM_OK;
    farm_key_free(*out);
    *out = NULL;
    return farm_fail(err, FARM_E_IO, "the supervisor could not pass the key on (ulimit -n)");
}

// ---- derivation and signatures ----

static bool derive(const struct farm_key *learner, const char *what, const char *name, uint8_t out[FARM_KEY_BYTES]) {
    char label[FARM_KEY_NAME_BYTES + 32];
    unsigned bytes = FARM_KEY_BYTES;
    const int length = snprintf(label, sizeof label, "actorfarm key 2: %s%s", what, name);
    return learner->kind == FARM_KEY_LEARNER &&
           HMAC(EVP_sha256(), learner->secret, FARM_KEY_BYTES, (const uint8_t *)label, (size_t)length, out, &bytes);
}

// The learner's pair, made anew for each use, so that OpenSSL's memory does not keep it. NULL: OpenSSL cannot.
static EVP_PKEY *make_pair(const struct farm_key *learner) {
    uint8_t seed[FARM_KEY_BYTES];
    const bool derived = derive(learner, "sign", "", seed);
    EVP_PKEY *pair = derived ? EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed, sizeof seed) : NULL;
    explicit_bzero(seed, sizeof seed);
    return pair;
}

bool farm_key_shared(const struct farm_key *key, const char *name, uint8_t out[FARM_KEY_BYTES]) {
    if (key->kind == FARM_KEY_LEARNER) return derive(key, "node ", name, out);
    memcpy(out, key->secret, FARM_KEY_BYTES);
    return key->kind == FARM_KEY_NODE && strcmp(key->name, name) == 0;
}

bool farm_key_derive(const struct farm_key *learner, const char *name, struct farm_key *node) {
    size_t bytes = sizeof node->learner;
    EVP_PKEY *pair = make_pair(learner);
    node->kind = FARM_KEY_NODE;
    snprintf(node->name, sizeof node->name, "%s", name);
    const bool done = pair && EVP_PKEY_get_raw_public_key(pair, node->learner, &bytes) == 1 &&
                      farm_key_shared(learner, name, node->secret);
    EVP_PKEY_free(pair);
    return done;
}

// Signs or verifies the label, with its zero, and the bytes. Frees the key, which may be NULL.
static bool sign_or_verify(EVP_PKEY *key, bool sign, const char *label, const void *bytes, size_t count,
                           uint8_t signature[FARM_KEY_SIGNATURE_BYTES]) {
    uint8_t text[SIGNED_BYTES_MAX];
    const size_t before = strlen(label) + 1, all = before + count;
    size_t signed_bytes = FARM_KEY_SIGNATURE_BYTES;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good = key && context && all <= sizeof text;
    if (good) memcpy(text, label, before), memcpy(text + before, bytes, count);
    good = good && (sign ? EVP_DigestSignInit(context, NULL, NULL, NULL, key) == 1 &&
                               EVP_DigestSign(context, signature, &signed_bytes, text, all) == 1
                         : EVP_DigestVerifyInit(context, NULL, NULL, NULL, key) == 1 &&
                               EVP_DigestVerify(context, signature, signed_bytes, text, all) == 1);
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(key);
    return good;
}

bool farm_key_sign(const struct farm_key *learner, const char *label, const void *bytes, size_t count,
                   uint8_t signature[FARM_KEY_SIGNATURE_BYTES]) {
    return sign_or_verify(make_pair(learner), true, label, bytes, count, signature);
}

bool farm_key_verify(const struct farm_key *node, const char *label, const void *bytes, size_t count,
                     const uint8_t signature[FARM_KEY_SIGNATURE_BYTES]) {
    EVP_PKEY *learner = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, node->learner, sizeof node->learner);
    return sign_or_verify(learner, false, label, bytes, count, (uint8_t *)(uintptr_t)signature);
}

// ---- reading ----

static bool parse_digits(const char *word, uint8_t out[FARM_KEY_BYTES]) {
    size_t bytes;
    return OPENSSL_hexstr2buf_ex(out, FARM_KEY_BYTES, &bytes, word, 0) && bytes == FARM_KEY_BYTES;
}

static bool parse_key(char *word[WORDS], uint32_t words, struct farm_key *key) {
    const bool node = words == 5;
    if ((words != 3 && !node) || strcmp(word[0], PREFIX) != 0 || strcmp(word[1], node ? "node" : "learner") != 0 ||
        (node && !farm_key_name_valid(word[2])))
        return false;
    key->kind = node ? FARM_KEY_NODE : FARM_KEY_LEARNER;
    if (node) strcpy(key->name, word[2]);
    return parse_digits(word[words - 1 - node], key->secret) && (!node || parse_digits(word[4], key->learner));
}

// Returns the number of the line that is wrong; 0: none.
static int parse(char *text, struct farm_key *key, struct farm_key_names *withdrawn) {
    char *line, *word[WORDS + 1], *within;
    for (int number = 1; (line = strsep(&text, "\n")); number++) {
        uint32_t n = 0;
        for (char *next = strtok_r(line, " ", &within); next && n <= WORDS; next = strtok_r(NULL, " ", &within))
            word[n++] = next;
        if (number == 1 && !parse_key(word, n, key)) return number;
        if (number == 1 || !n) continue;
        if (key->kind != FARM_KEY_LEARNER || n != 2 || strcmp(word[0], "withdrawn") != 0 ||
            !farm_key_name_valid(word[1]) ||
            (!farm_key_names_add(withdrawn, word[1]) && !farm_key_names_have(withdrawn, word[1])))
            return number;
    }
    return 0;
}

static enum farm_status check_owner(int fd, const char *path, struct farm_error *err) {
    struct stat info;
    if (fstat(fd, &info) < 0) return farm_fail_errno(err, FARM_E_IO, "key file %s", path);
    if (!S_ISREG(info.st_mode)) return farm_fail(err, FARM_E_FORMAT, "key file %s is not a regular file", path);
    if (info.st_uid != geteuid())
        return farm_fail(err, FARM_E_PERMISSION,
                         "key file %s belongs to user %u, but user %u runs this: copy it, then chmod 600 the copy",
                         path, (unsigned)info.st_uid, (unsigned)geteuid());
    if (info.st_mode & 077)
        return farm_fail(err, FARM_E_PERMISSION, "key file %s is open to other users (mode %03o): chmod 600 %s", path,
                         (unsigned)info.st_mode & 0777, farm_format_word(path).text);
    return FARM_OK;
}

// Takes the key and the withdrawn names out of the text.
static enum farm_status take_text(char *text, size_t bytes, const char *path, enum farm_key_kind kind,
                                  struct farm_key *key, struct farm_key_names *withdrawn, struct farm_error *err) {
    static const char old[] = "actorfarm-key-1 ";
    if (strncmp(text, old, sizeof old - 1) == 0)
        return farm_fail(err, FARM_E_FORMAT, "%s is of an older farm: make new keys (farm bridge keygen NEW)", path);
    const int wrong = strlen(text) < bytes || bytes == FILE_BYTES_MAX ? 1 : parse(text, key, withdrawn);
    if (wrong)
        return farm_fail(err, FARM_E_FORMAT, "%s is not a key file of farm bridge keygen (line %d): copy it again",
                         path, wrong);
    if (key->kind == kind) return FARM_OK;
    return farm_fail(err, FARM_E_FORMAT,
                     kind == FARM_KEY_NODE ? "%s is the learner's key, which no node may have: copy %s.node to the node"
                                           : "%s is the key of node %s; use the learner's (farm bridge keygen)",
                     path, kind == FARM_KEY_NODE ? path : key->name);
}

enum farm_status farm_key_load(const char *path, enum farm_key_kind kind, struct farm_key **out,
                               struct farm_key_names *withdrawn, struct farm_error *err) {
    struct farm_key_names names = {0};
    char text[FILE_BYTES_MAX + 1];
    *out = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return farm_fail_in(err, farm_file_fail(path, err), "cannot read the key file (farm bridge keygen makes one)");
    enum farm_status status = check_owner(fd, path, err);
    if (!status) status = allocate(out, err);
    const ssize_t n = status ? 0 : read(fd, text, FILE_BYTES_MAX);
    if (n < 0) status = farm_fail_errno(err, FARM_E_IO, "cannot read the key file %s", path);
    text[n < 0 ? 0 : n] = 0;
    if (!status) status = take_text(text, (size_t)n, path, kind, *out, &names, err);
    explicit_bzero(text, sizeof text);
    close(fd);
    if (status) farm_key_free(*out);
    if (status) *out = NULL;
    if (withdrawn) *withdrawn = names;
    return status;
}

// The learner's, for a node of this name.
static enum farm_status load_for(const char *name, const char *path, struct farm_key **key,
                                 struct farm_key_names *withdrawn, struct farm_error *err) {
    if (farm_key_name_valid(name)) return farm_key_load(path, FARM_KEY_LEARNER, key, withdrawn, err);
    return farm_fail(err, FARM_E_USAGE,
                     "'%.80s': a node's name has 1 to %d letters, digits, '_', '.' or '-', and does not begin with '.'",
                     name, FARM_KEY_NAME_BYTES - 1);
}

// ---- writing ----

static enum farm_status write_line(int fd, const char *path, const char *line, struct farm_error *err) {
    const ssize_t bytes = (ssize_t)strlen(line), n = write(fd, line, (size_t)bytes);
    if (n == bytes && farm_file_sync(fd) == 0) return FARM_OK;
    if (n >= 0 && n < bytes) errno = ENOSPC;
    return farm_fail_errno(err, FARM_E_IO, "cannot write the key file %s", path);
}

static enum farm_status make_file(const char *path, const struct farm_key *key, struct farm_error *err) {
    char line[LINE_BYTES], secret[HEX_BYTES], learner[HEX_BYTES];
    const bool node = key->kind == FARM_KEY_NODE;
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST)
        return farm_fail(err, FARM_E_USAGE, "key file %s exists; remove it first if no run uses it", path);
    if (fd < 0) return farm_fail_in(err, farm_file_fail(path, err), "cannot make the key file");
    OPENSSL_buf2hexstr_ex(secret, sizeof secret, NULL, key->secret, sizeof key->secret, 0);
    OPENSSL_buf2hexstr_ex(learner, sizeof learner, NULL, key->learner, sizeof key->learner, 0);
    snprintf(line, sizeof line, "%s %s%s %s%s%s\n", PREFIX, node ? "node " : "learner", key->name, secret,
             node ? " " : "", node ? learner : "");
    const enum farm_status status = write_line(fd, path, line, err);
    explicit_bzero(line, sizeof line);
    explicit_bzero(secret, sizeof secret);
    close(fd);
    if (status) unlink(path);
    return status;
}

enum farm_status farm_key_make(const char *path, const char *name, struct farm_error *err) {
    struct farm_key_names withdrawn = {0};
    struct farm_key *key = NULL, *node = NULL;
    char node_path[PATH_MAX];
    enum farm_status status = name ? load_for(name, path, &key, &withdrawn, err) : allocate(&key, err);
    if (!status) key->kind = FARM_KEY_LEARNER;
    if (!status && !name && getrandom(key->secret, FARM_KEY_BYTES, 0) != FARM_KEY_BYTES)
        status = farm_fail_errno(err, FARM_E_IO, "no random numbers");
    if (!status) status = allocate(&node, err);
    if (!status && name && farm_key_names_have(&withdrawn, name))
        status = farm_fail(err, FARM_E_USAGE, "%s is withdrawn in %s: choose another name", name, path);
    if (!status && snprintf(node_path, PATH_MAX, "%s.%s", path, name ? name : "node") >= PATH_MAX)
        status = farm_fail(err, FARM_E_USAGE, "%.80s...: path too long", path);
    if (!status && !farm_key_derive(key, name ? name : "node", node))
        status = farm_fail(err, FARM_E_UNSUPPORTED, "this OpenSSL has no Ed25519, or no HMAC-SHA256");
    if (!status) status = make_file(node_path, node, err);
    if (!status && !name && (status = make_file(path, key, err))) unlink(node_path);
    farm_key_free(node);
    farm_key_free(key);
    return status;
}

// One write that appends: a reader sees the line or not, and a withdrawal at the same time is not lost.
enum farm_status farm_key_withdraw(const char *path, const char *name, struct farm_error *err) {
    struct farm_key_names withdrawn;
    struct farm_key *key = NULL;
    char line[FARM_KEY_NAME_BYTES + 16];
    enum farm_status status = load_for(name, path, &key, &withdrawn, err);
    farm_key_free(key);
    if (status || farm_key_names_have(&withdrawn, name)) return status;
    if (!farm_key_names_add(&withdrawn, name))
        return farm_fail(err, FARM_E_LIMIT, "%s has %u withdrawn names, the most: make new keys", path,
                         withdrawn.count);
    const int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) return farm_fail_in(err, farm_file_fail(path, err), "cannot withdraw a key");
    snprintf(line, sizeof line, "\nwithdrawn %s\n", name); // the last line may lack its newline
    status = write_line(fd, path, line, err);
    close(fd);
    return status;
}
