// See key.h. A file is lines of text:
//
//   actorfarm-key-2 learner <64 hexadecimal digits>             and then, for each withdrawn name: withdrawn NAME
//   actorfarm-key-2 node NAME <64 hexadecimal digits> <64 digits of the learner's public key>
#include "bridge/key.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

static const char PREFIX[] = "actorfarm-key-2", DIGITS[] = "0123456789abcdef";
enum { HEX_BYTES = 2 * FARM_KEY_BYTES + 1, LINE_BYTES = 256, DIGEST_BYTES = 64, WORDS = 5 };
enum { FILE_BYTES_MAX = LINE_BYTES + FARM_KEY_WITHDRAWN_MAX * (FARM_KEY_NAME_BYTES + 16) };

// ---- names ----

bool farm_key_name_valid(const char *name, size_t bytes) {
    bool valid = bytes > 0 && bytes < FARM_KEY_NAME_BYTES && name[0] != '.';
    for (size_t i = 0; i < bytes && valid; i++)
        valid = name[i] && strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-", name[i]);
    return valid;
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

static enum farm_status check_name(const char *name, struct farm_error *err) {
    if (farm_key_name_valid(name, strlen(name))) return FARM_OK;
    return farm_fail(err, FARM_E_USAGE,
                     "'%.80s': a node's name has 1 to %d letters, digits, '_', '.' or '-', and does not begin with '.'",
                     name, FARM_KEY_NAME_BYTES - 1);
}

// ---- memory ----

static enum farm_status allocate(struct farm_key **out, struct farm_error *err) {
    void *page = mmap(NULL, sizeof **out, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for a key");
    if (madvise(page, sizeof **out, MADV_WIPEONFORK) || madvise(page, sizeof **out, MADV_DONTDUMP))
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

int farm_key_lend(const struct farm_key *key) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) return -1;
    (void)!write(ends[1], key, sizeof *key); // an empty pipe has room
    close(ends[1]);
    return ends[0];
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

// Of the label with its zero, and of each part with its length before it.
static bool make_digest(EVP_MD_CTX *context, const char *label, const struct iovec *parts, uint32_t count,
                        uint8_t out[DIGEST_BYTES]) {
    bool good = context && EVP_DigestInit_ex(context, EVP_sha512(), NULL) &&
                EVP_DigestUpdate(context, label, strlen(label) + 1);
    for (uint32_t i = 0; i < count && good; i++) {
        const uint64_t bytes = parts[i].iov_len;
        good = EVP_DigestUpdate(context, &bytes, sizeof bytes) && EVP_DigestUpdate(context, parts[i].iov_base, bytes);
    }
    return good && EVP_DigestFinal_ex(context, out, NULL);
}

bool farm_key_sign(const struct farm_key *learner, const char *label, const struct iovec *parts, uint32_t count,
                   uint8_t signature[FARM_KEY_SIGNATURE_BYTES]) {
    uint8_t digest[DIGEST_BYTES];
    size_t bytes = FARM_KEY_SIGNATURE_BYTES;
    EVP_PKEY *pair = make_pair(learner);
    EVP_MD_CTX *hash = EVP_MD_CTX_new(), *context = EVP_MD_CTX_new();
    const bool done = pair && context && make_digest(hash, label, parts, count, digest) &&
                      EVP_DigestSignInit(context, NULL, NULL, NULL, pair) == 1 &&
                      EVP_DigestSign(context, signature, &bytes, digest, sizeof digest) == 1;
    EVP_MD_CTX_free(hash);
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(pair);
    return done;
}

bool farm_key_verify(const struct farm_key *node, const char *label, const struct iovec *parts, uint32_t count,
                     const uint8_t signature[FARM_KEY_SIGNATURE_BYTES]) {
    uint8_t digest[DIGEST_BYTES];
    EVP_PKEY *learner = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, node->learner, sizeof node->learner);
    EVP_MD_CTX *hash = EVP_MD_CTX_new(), *context = EVP_MD_CTX_new();
    const bool valid = learner && context && make_digest(hash, label, parts, count, digest) &&
                       EVP_DigestVerifyInit(context, NULL, NULL, NULL, learner) == 1 &&
                       EVP_DigestVerify(context, signature, FARM_KEY_SIGNATURE_BYTES, digest, sizeof digest) == 1;
    EVP_MD_CTX_free(hash);
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(learner);
    return valid;
}

// ---- reading ----

static bool parse_digits(const char *word, uint8_t out[FARM_KEY_BYTES]) {
    for (size_t i = 0; i < HEX_BYTES - 1; i++) {
        const char digit = word[i] >= 'A' && word[i] <= 'F' ? (char)(word[i] - 'A' + 'a') : word[i];
        const char *found = digit ? strchr(DIGITS, digit) : NULL;
        if (!found) return false;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (found - DIGITS));
    }
    return !word[HEX_BYTES - 1];
}

static bool parse_key(char *word[WORDS], uint32_t words, struct farm_key *key) {
    if (words < 3 || strcmp(word[0], PREFIX) != 0) return false;
    if (words == 3 && strcmp(word[1], "learner") == 0) {
        key->kind = FARM_KEY_LEARNER;
        return parse_digits(word[2], key->secret);
    }
    if (words != 5 || strcmp(word[1], "node") != 0 || !farm_key_name_valid(word[2], strlen(word[2]))) return false;
    key->kind = FARM_KEY_NODE;
    snprintf(key->name, sizeof key->name, "%s", word[2]);
    return parse_digits(word[3], key->secret) && parse_digits(word[4], key->learner);
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
            !farm_key_name_valid(word[1], strlen(word[1])))
            return number;
        farm_key_names_add(withdrawn, word[1]);
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

static enum farm_status read_text(int fd, const char *path, enum farm_key_kind kind, struct farm_key *key,
                                  struct farm_key_names *withdrawn, char text[FILE_BYTES_MAX + 1],
                                  struct farm_error *err) {
    const ssize_t n = read(fd, text, FILE_BYTES_MAX);
    if (n < 0) return farm_fail_errno(err, FARM_E_IO, "cannot read the key file %s", path);
    text[n] = 0;
    if (strncmp(text, "actorfarm-key-1 ", 16) == 0)
        return farm_fail(err, FARM_E_FORMAT,
                         "%s is of an older farm, whose nodes could all be the learner: make new keys by farm bridge "
                         "keygen NEW, and copy NEW.node to the nodes",
                         path);
    const int wrong = strlen(text) < (size_t)n || n == FILE_BYTES_MAX ? 1 : parse(text, key, withdrawn);
    if (wrong)
        return farm_fail(err, FARM_E_FORMAT,
                         "%s is not a key file: its line %d is not one that farm bridge keygen writes; copy the file "
                         "again, or make new keys",
                         path, wrong);
    if (key->kind == kind) return FARM_OK;
    if (kind == FARM_KEY_NODE)
        return farm_fail(err, FARM_E_FORMAT,
                         "%s is the learner's key, which no node may have: copy %s.node to the node instead (or the "
                         "file that farm bridge keygen --node NAME makes)",
                         path, path);
    return farm_fail(err, FARM_E_FORMAT,
                     "%s is the key of the node %s, and this needs the learner's: the FILE of farm bridge keygen FILE",
                     path, key->name);
}

enum farm_status farm_key_load(const char *path, enum farm_key_kind kind, struct farm_key **out,
                               struct farm_key_names *withdrawn, struct farm_error *err) {
    struct farm_key_names names = {0};
    char text[FILE_BYTES_MAX + 1];
    *out = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return farm_fail_errno(err,
                               errno == ENOENT || errno == ENOTDIR ? FARM_E_NOT_FOUND
                               : errno == EACCES || errno == EPERM ? FARM_E_PERMISSION
                                                                   : FARM_E_IO,
                               "cannot read the key file %s (farm bridge keygen makes one)", path);
    enum farm_status status = check_owner(fd, path, err);
    if (!status) status = allocate(out, err);
    if (!status) status = read_text(fd, path, kind, *out, &names, text, err);
    explicit_bzero(text, sizeof text);
    close(fd);
    if (status) farm_key_free(*out);
    if (status) *out = NULL;
    if (withdrawn) *withdrawn = names;
    return status;
}

// ---- writing ----

static void format_digits(const uint8_t bytes[FARM_KEY_BYTES], char out[HEX_BYTES]) {
    for (size_t i = 0; i < FARM_KEY_BYTES; i++) {
        out[2 * i] = DIGITS[bytes[i] >> 4];
        out[2 * i + 1] = DIGITS[bytes[i] & 15];
    }
    out[HEX_BYTES - 1] = 0;
}

static enum farm_status write_line(int fd, const char *path, const char *line, struct farm_error *err) {
    const size_t bytes = strlen(line);
    const ssize_t n = write(fd, line, bytes);
    if (n >= 0 && (size_t)n < bytes) errno = ENOSPC;
    return n == (ssize_t)bytes && farm_file_sync(fd) == 0
               ? FARM_OK
               : farm_fail_errno(err, FARM_E_IO, "cannot write the key file %s", path);
}

static enum farm_status make_file(const char *path, const struct farm_key *key, struct farm_error *err) {
    char line[LINE_BYTES], secret[HEX_BYTES], learner[HEX_BYTES];
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST)
        return farm_fail(err, FARM_E_USAGE, "key file %s exists; remove it first if no run uses it", path);
    if (fd < 0) return farm_fail_in(err, farm_file_fail(path, err), "cannot make the key file");
    format_digits(key->secret, secret);
    format_digits(key->learner, learner);
    if (key->kind == FARM_KEY_LEARNER)
        snprintf(line, sizeof line, "%s learner %s\n", PREFIX, secret);
    else
        snprintf(line, sizeof line, "%s node %s %s %s\n", PREFIX, key->name, secret, learner);
    const enum farm_status status = write_line(fd, path, line, err);
    explicit_bzero(line, sizeof line);
    explicit_bzero(secret, sizeof secret);
    close(fd);
    if (status) unlink(path);
    return status;
}

static enum farm_status make_node(const char *path, const struct farm_key *learner, const char *name,
                                  struct farm_error *err) {
    char node_path[PATH_MAX];
    struct farm_key *node;
    if (snprintf(node_path, sizeof node_path, "%s.%s", path, name) >= (int)sizeof node_path)
        return farm_fail(err, FARM_E_USAGE, "%.80s...: path too long", path);
    enum farm_status status = allocate(&node, err);
    if (status) return status;
    status = farm_key_derive(learner, name, node)
                 ? make_file(node_path, node, err)
                 : farm_fail(err, FARM_E_UNSUPPORTED, "this OpenSSL has no Ed25519, or no HMAC-SHA256");
    farm_key_free(node);
    return status;
}

enum farm_status farm_key_make(const char *path, struct farm_error *err) {
    struct farm_key *key;
    enum farm_status status = allocate(&key, err);
    if (status) return status;
    key->kind = FARM_KEY_LEARNER;
    if (getrandom(key->secret, sizeof key->secret, 0) != sizeof key->secret)
        status = farm_fail_errno(err, FARM_E_IO, "no random numbers");
    if (!status) status = make_file(path, key, err);
    if (!status && (status = make_node(path, key, "node", err))) unlink(path);
    farm_key_free(key);
    return status;
}

enum farm_status farm_key_make_node(const char *path, const char *name, struct farm_error *err) {
    struct farm_key_names withdrawn;
    struct farm_key *key = NULL;
    enum farm_status status = check_name(name, err);
    if (!status) status = farm_key_load(path, FARM_KEY_LEARNER, &key, &withdrawn, err);
    if (!status && farm_key_names_have(&withdrawn, name))
        status = farm_fail(err, FARM_E_USAGE, "%s is withdrawn in %s: choose another name", name, path);
    if (!status) status = make_node(path, key, name, err);
    farm_key_free(key);
    return status;
}

// One write that appends: a reader sees the line or not, and a withdrawal at the same time is not lost.
enum farm_status farm_key_withdraw(const char *path, const char *name, struct farm_error *err) {
    struct farm_key_names withdrawn;
    struct farm_key *key = NULL;
    char line[FARM_KEY_NAME_BYTES + 16];
    enum farm_status status = check_name(name, err);
    if (!status) status = farm_key_load(path, FARM_KEY_LEARNER, &key, &withdrawn, err);
    farm_key_free(key);
    if (status || farm_key_names_have(&withdrawn, name)) return status;
    if (withdrawn.count == FARM_KEY_WITHDRAWN_MAX)
        return farm_fail(err, FARM_E_LIMIT, "%s has %u withdrawn names, the most: make new keys", path,
                         withdrawn.count);
    const int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) return farm_fail_in(err, farm_file_fail(path, err), "cannot withdraw a key");
    snprintf(line, sizeof line, "\nwithdrawn %s\n", name); // the last line may lack its newline
    status = write_line(fd, path, line, err);
    close(fd);
    return status;
}
