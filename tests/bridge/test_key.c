// Key files: never overwritten, read by their owner, refused if others may read them.
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bridge/key.h"

static char folder[] = "/tmp/farm_key_XXXXXX", path[64];
static struct farm_error err;
static struct farm_key key;

static void set_up(void) {
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/key", folder);
}

static void tear_down(void) {
    unlink(path);
    rmdir(folder);
}

TestSuite(bridge, .init = set_up, .fini = tear_down, .timeout = 10);

static void write_file(const char *text, size_t bytes, mode_t mode) {
    unlink(path);
    FILE *file = fopen(path, "w");
    cr_assert(file && fwrite(text, 1, bytes, file) == bytes && fclose(file) == 0 && chmod(path, mode) == 0);
}

static void expect_refusal(enum farm_status status, const char *word) {
    const struct farm_key zero = {0};
    memset(&key, 1, sizeof key);
    cr_assert_eq(farm_key_load(path, &key, &err), status);
    cr_assert(strstr(err.message, path) && strstr(err.message, word), "%s", err.message);
    if (status != FARM_E_NOT_FOUND) cr_assert_eq(memcmp(&key, &zero, sizeof key), 0);
}

Test(bridge, makes_different_keys_and_reads_them_back) {
    struct farm_key other;
    struct stat info;
    cr_assert_eq(farm_key_make(path, &err), FARM_OK, "%s", err.message);
    cr_assert(stat(path, &info) == 0 && (info.st_mode & 0777) == 0600);
    cr_assert_eq(farm_key_load(path, &key, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_key_make(path, &err), FARM_E_USAGE, "nothing is overwritten");
    cr_assert_eq(farm_key_load(path, &other, &err), FARM_OK);
    cr_assert_arr_eq(key.bytes, other.bytes, FARM_KEY_BYTES);
    unlink(path);
    cr_assert_eq(farm_key_make(path, &err), FARM_OK);
    cr_assert_eq(farm_key_load(path, &other, &err), FARM_OK);
    cr_assert_neq(memcmp(&key, &other, sizeof key), 0);
}

Test(bridge, makes_no_key_in_a_missing_folder) {
    snprintf(path, sizeof path, "%s/none/key", folder);
    cr_assert_eq(farm_key_make(path, &err), FARM_E_NOT_FOUND);
    expect_refusal(FARM_E_NOT_FOUND, "keygen");
}

#define DIGITS "00112233445566778899aabbccddeeffFFEEDDCCBBAA99887766554433221100"

Test(bridge, reads_a_key_with_and_without_its_newline) {
    static const char line[] = "actorfarm-key-1 " DIGITS "\n";
    for (size_t bytes = sizeof line - 2; bytes < sizeof line; bytes++) {
        write_file(line, bytes, 0400);
        cr_assert_eq(farm_key_load(path, &key, &err), FARM_OK, "%s", err.message);
        cr_assert(key.bytes[1] == 0x11 && key.bytes[15] == 0xff && key.bytes[16] == 0xff && key.bytes[31] == 0);
    }
}

Test(bridge, refuses_a_key_that_others_may_access) {
    static const mode_t modes[] = {0640, 0604, 0620, 0602, 0610, 0777};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        write_file("actorfarm-key-1 " DIGITS "\n", 81, modes[i]);
        expect_refusal(FARM_E_PERMISSION, "chmod 600");
    }
}

Test(bridge, refuses_a_key_of_another_user) {
    if (geteuid() != 0) cr_skip_test("only root can change an owner");
    write_file("actorfarm-key-1 " DIGITS "\n", 81, 0600);
    if (chown(path, 12345, -1)) cr_skip_test("this namespace has no other user");
    expect_refusal(FARM_E_PERMISSION, "12345");
}

Test(bridge, refuses_invalid_key_files) {
    static const char *const texts[] = {
        "",
        "\n",
        "actorfarm-key-1 ",
        "actorfarm-key-2 " DIGITS,
        "actorfarm-key-1 " DIGITS "0",
        "actorfarm-key-1 " DIGITS "\n\n",
        "actorfarm-key-1  " DIGITS,
        "actorfarm-key-1 g" DIGITS,
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(texts[i], strlen(texts[i]), 0600);
        expect_refusal(FARM_E_FORMAT, "hexadecimal");
    }
    char line[] = "actorfarm-key-1 " DIGITS;
    line[40] = 0;
    write_file(line, sizeof line - 1, 0600);
    expect_refusal(FARM_E_FORMAT, "hexadecimal");
    unlink(path);
    cr_assert_eq(mkdir(path, 0700), 0);
    expect_refusal(FARM_E_FORMAT, "regular");
    rmdir(path);
}
