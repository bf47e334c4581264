// Key files: never overwritten, read by their owner, refused if others may read them; what each kind of key can do.
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bridge/key.h"

static char folder[] = "/tmp/farm_key_XXXXXX", path[64], node_path[80];
static struct farm_error err;
static struct farm_key *key;
static struct farm_key_names withdrawn;

static void set_up(void) {
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/key", folder);
    snprintf(node_path, sizeof node_path, "%s.node", path);
}

static void tear_down(void) {
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    farm_key_free(key);
    cr_assert_eq(system(command), 0);
}

TestSuite(bridge, .init = set_up, .fini = tear_down, .timeout = 10);

static void write_file(const char *text, size_t bytes, mode_t mode) {
    unlink(path);
    FILE *file = fopen(path, "w");
    cr_assert(file && fwrite(text, 1, bytes, file) == bytes && fclose(file) == 0 && chmod(path, mode) == 0);
}

static void expect_refusal(enum farm_status status, const char *word) {
    cr_assert_eq(farm_key_load(path, FARM_KEY_LEARNER, &key, NULL, &err), status);
    cr_assert(strstr(err.message, path) && strstr(err.message, word), "%s", err.message);
    cr_assert_null(key);
}

static struct farm_key load(const char *from, enum farm_key_kind kind) {
    cr_assert_eq(farm_key_load(from, kind, &key, &withdrawn, &err), FARM_OK, "%s", err.message);
    const struct farm_key copy = *key;
    farm_key_free(key);
    key = NULL;
    return copy;
}

Test(bridge, makes_different_keys_and_reads_them_back) {
    struct stat info;
    cr_assert_eq(farm_key_make(path, NULL, &err), FARM_OK, "%s", err.message);
    cr_assert(stat(path, &info) == 0 && (info.st_mode & 0777) == 0600);
    cr_assert(stat(node_path, &info) == 0 && (info.st_mode & 0777) == 0600);
    const struct farm_key first = load(path, FARM_KEY_LEARNER), node = load(node_path, FARM_KEY_NODE);
    for (int i = 0; i < 2; i++) { // nothing is overwritten, nor does a half of a pair remain
        cr_assert_eq(farm_key_make(path, NULL, &err), FARM_E_USAGE);
        cr_assert(strstr(err.message, i ? "/key exists" : ".node exists"), "%s", err.message);
        unlink(node_path);
    }
    cr_assert_neq(access(node_path, F_OK), 0);
    unlink(path);
    cr_assert_eq(farm_key_make(path, NULL, &err), FARM_OK);
    const struct farm_key second = load(path, FARM_KEY_LEARNER), other = load(node_path, FARM_KEY_NODE);
    cr_assert(memcmp(first.secret, second.secret, FARM_KEY_BYTES) &&
              memcmp(node.secret, other.secret, FARM_KEY_BYTES) && memcmp(node.learner, other.learner, FARM_KEY_BYTES));
}

Test(bridge, a_nodes_key_is_its_names_and_can_only_verify) {
    static const uint8_t bytes[600] = "parameters";
    uint8_t shared[FARM_KEY_BYTES], signature[FARM_KEY_SIGNATURE_BYTES];
    cr_assert_eq(farm_key_make(path, NULL, &err), FARM_OK);
    cr_assert_eq(farm_key_make(path, "a-1_B.c", &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_key_make(path, "a-1_B.c", &err), FARM_E_USAGE, "nothing is overwritten");
    const struct farm_key learner = load(path, FARM_KEY_LEARNER), node = load(node_path, FARM_KEY_NODE);
    strcpy(strrchr(node_path, '.'), ".a-1_B.c");
    const struct farm_key named = load(node_path, FARM_KEY_NODE);
    cr_assert(farm_key_shared(&learner, "a-1_B.c", shared) && !memcmp(shared, named.secret, FARM_KEY_BYTES));
    cr_assert(memcmp(node.secret, named.secret, FARM_KEY_BYTES) &&
              !memcmp(node.learner, named.learner, FARM_KEY_BYTES));
    cr_assert_not(farm_key_shared(&node, "a-1_B.c", shared), "a node's key has another node's");
    cr_assert_not(farm_key_sign(&node, "label", bytes, 10, signature), "a node's key signs");
    cr_assert(farm_key_sign(&learner, "label", bytes, 10, signature));
    cr_assert(farm_key_verify(&node, "label", bytes, 10, signature) &&
              farm_key_verify(&named, "label", bytes, 10, signature));
    cr_assert_not(farm_key_verify(&node, "labels", bytes, 10, signature));
    cr_assert_not(farm_key_verify(&node, "label", bytes, 11, signature));
    cr_assert_not(farm_key_sign(&learner, "label", bytes, sizeof bytes, signature), "too long");
}

Test(bridge, withdraws_names_for_good) {
    cr_assert_eq(farm_key_make(path, NULL, &err), FARM_OK);
    const struct farm_key before = load(path, FARM_KEY_LEARNER);
    for (int i = 0; i < 2; i++) cr_assert_eq(farm_key_withdraw(path, "gone", &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_key_withdraw(path, "node", &err), FARM_OK);
    const struct farm_key after = load(path, FARM_KEY_LEARNER);
    struct stat info;
    cr_assert(stat(path, &info) == 0 && (info.st_mode & 0777) == 0600);
    cr_assert_arr_eq(after.secret, before.secret, FARM_KEY_BYTES);
    cr_assert(withdrawn.count == 2 && farm_key_names_have(&withdrawn, "gone") &&
              farm_key_names_have(&withdrawn, "node"));
    cr_assert_eq(farm_key_make(path, "gone", &err), FARM_E_USAGE);
    cr_assert_eq(farm_key_withdraw(node_path, "gone", &err), FARM_E_FORMAT, "a node withdraws");
    char name[FARM_KEY_NAME_BYTES];
    for (int i = 2; i < FARM_KEY_WITHDRAWN_MAX; i++) {
        snprintf(name, sizeof name, "%063d", i);
        cr_assert_eq(farm_key_withdraw(path, name, &err), FARM_OK, "%s", err.message);
    }
    cr_assert_eq(farm_key_withdraw(path, "more", &err), FARM_E_LIMIT);
    load(path, FARM_KEY_LEARNER);
    cr_assert_eq(withdrawn.count, FARM_KEY_WITHDRAWN_MAX);
}

Test(bridge, refuses_names_out_of_rules) {
    static const char *const names[] = {
        "",    ".",   ".a",       "a/b", "../key",
        "a b", "a\n", "\xc3\xa4", "%s",  "0123456789012345678901234567890123456789012345678901234567890123"};
    cr_assert_eq(farm_key_make(path, NULL, &err), FARM_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cr_assert_eq(farm_key_make(path, names[i], &err), FARM_E_USAGE, "'%s'", names[i]);
        cr_assert_eq(farm_key_withdraw(path, names[i], &err), FARM_E_USAGE, "'%s'", names[i]);
    }
    load(path, FARM_KEY_LEARNER);
    cr_assert_eq(withdrawn.count, 0);
}

// The page is empty in a forked process, which gets the key by the pipe and then dumps no core.
Test(bridge, a_forked_process_has_no_key_but_the_one_lent) {
    static const struct farm_key zero;
    cr_assert_eq(farm_key_make(path, NULL, &err), FARM_OK);
    cr_assert_eq(farm_key_load(path, FARM_KEY_LEARNER, &key, NULL, &err), FARM_OK);
    int lent = -1;
    farm_key_lend(key, &lent);
    const struct farm_key copy = *key;
    const pid_t pid = fork();
    if (pid == 0) {
        struct farm_key *borrowed;
        if (memcmp(key, &zero, sizeof zero) != 0) _exit(1);
        if (farm_key_borrow(lent, &borrowed, &err) || memcmp(borrowed, &copy, sizeof copy) != 0) _exit(2);
        if (farm_key_borrow(lent, &borrowed, &err) != FARM_E_IO || borrowed) _exit(3);
        abort();
    }
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFSIGNALED(status) && !WCOREDUMP(status), "%d", WEXITSTATUS(status));
    close(lent);
}

Test(bridge, makes_no_key_in_a_missing_folder) {
    snprintf(path, sizeof path, "%s/none/key", folder);
    cr_assert_eq(farm_key_make(path, NULL, &err), FARM_E_NOT_FOUND);
    expect_refusal(FARM_E_NOT_FOUND, "keygen");
}

#define DIGITS "00112233445566778899aabbccddeeffFFEEDDCCBBAA99887766554433221100"

Test(bridge, reads_a_key_with_and_without_its_newline) {
    static const char line[] = "actorfarm-key-2 learner " DIGITS "\n";
    for (size_t bytes = sizeof line - 2; bytes < sizeof line; bytes++) {
        write_file(line, bytes, 0600);
        cr_assert_eq(farm_key_withdraw(path, "a", &err), FARM_OK, "%s", err.message);
        const struct farm_key read = load(path, FARM_KEY_LEARNER);
        cr_assert(read.secret[1] == 0x11 && read.secret[15] == 0xff && read.secret[16] == 0xff && read.secret[31] == 0);
        cr_assert_eq(withdrawn.count, 1);
    }
}

Test(bridge, refuses_a_key_that_others_may_access) {
    static const mode_t modes[] = {0640, 0604, 0620, 0602, 0610, 0777};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        write_file("actorfarm-key-2 learner " DIGITS "\n", 89, modes[i]);
        expect_refusal(FARM_E_PERMISSION, "chmod 600");
    }
}

Test(bridge, refuses_a_key_of_another_user) {
    if (geteuid() != 0) cr_skip_test("only root can change an owner");
    write_file("actorfarm-key-2 learner " DIGITS "\n", 89, 0600);
    if (chown(path, 12345, -1)) cr_skip_test("this namespace has no other user");
    expect_refusal(FARM_E_PERMISSION, "12345");
}

#define NODE "actorfarm-key-2 node name "
Test(bridge, refuses_invalid_key_files) {
    static const char *const texts[] = {
        "",
        "\n",
        "actorfarm-key-2",
        "actorfarm-key-2 learner ",
        "actorfarm-key-3 learner " DIGITS,
        "actorfarm-key-2 " DIGITS,
        "actorfarm-key-2 Learner " DIGITS,
        "actorfarm-key-2 learner " DIGITS "0",
        "actorfarm-key-2 learner g" DIGITS,
        "actorfarm-key-2 learner " DIGITS " " DIGITS,
        "actorfarm-key-2 learner " DIGITS "\nwithdrawn",
        "actorfarm-key-2 learner " DIGITS "\nwithdrawn a b",
        "actorfarm-key-2 learner " DIGITS "\nwithdrawn .a",
        "actorfarm-key-2 learner " DIGITS "\nwithdraw a",
        "actorfarm-key-2 learner " DIGITS "\nactorfarm-key-2 learner " DIGITS,
        NODE DIGITS,
        NODE DIGITS " " DIGITS "0",
        NODE DIGITS " " DIGITS " 1",
        NODE DIGITS " " DIGITS "\nwithdrawn a",
        "actorfarm-key-2 node na/me " DIGITS " " DIGITS,
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(texts[i], strlen(texts[i]), 0600);
        expect_refusal(FARM_E_FORMAT, "is not a key file of farm bridge keygen (line ");
    }
    char line[] = "actorfarm-key-2 learner " DIGITS;
    line[40] = 0;
    write_file(line, sizeof line - 1, 0600);
    expect_refusal(FARM_E_FORMAT, "line 1");
    char many[4096] = "actorfarm-key-2 learner " DIGITS;
    for (int i = 0; i <= FARM_KEY_WITHDRAWN_MAX; i++) sprintf(many + strlen(many), "\nwithdrawn %d", i);
    write_file(many, strlen(many), 0600);
    expect_refusal(FARM_E_FORMAT, "(line 258)");
    static char large[1 << 16];
    memset(large, '\n', sizeof large);
    memcpy(large, "actorfarm-key-2 learner " DIGITS, 88);
    write_file(large, sizeof large, 0600);
    expect_refusal(FARM_E_FORMAT, "is not a key file");
    write_file("actorfarm-key-1 " DIGITS "\n", 81, 0600);
    expect_refusal(FARM_E_FORMAT, "make new keys (farm bridge keygen NEW)");
    write_file(NODE DIGITS " " DIGITS, strlen(NODE DIGITS " " DIGITS), 0600);
    expect_refusal(FARM_E_FORMAT, "is the key of node name");
    unlink(path);
    cr_assert_eq(mkdir(path, 0700), 0);
    expect_refusal(FARM_E_FORMAT, "regular");
    rmdir(path);
}
