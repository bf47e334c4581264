// Forms of addresses, addresses in files, and the addresses allowed without a key.
#include "bridge/address.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct farm_error error;
static char text[FARM_ADDRESS_TEXT_BYTES], file[] = "/tmp/farm-test-address-XXXXXX";

static void make_file(void) {
    const int fd = mkstemp(file);
    cr_assert(fd >= 0);
    close(fd);
}
static void remove_file(void) {
    unlink(file);
}
TestSuite(bridge, .init = make_file, .fini = remove_file, .timeout = 30);

static void write_file(const char *contents) {
    FILE *stream = fopen(file, "w");
    cr_assert(stream && fputs(contents, stream) >= 0 && !fclose(stream));
}

static struct farm_address find(const char *address) {
    struct farm_address found[FARM_ADDRESSES_MAX];
    uint32_t count = 0;
    cr_assert_eq(farm_address_find(address, found, &count, &error), FARM_OK, "%s: %s", address, error.message);
    cr_assert(count >= 1);
    return found[0];
}

Test(bridge, accepts_valid_forms_of_addresses_only) {
    static const char *const good[] = {"node7:7700", "10.0.0.5:0", "[::1]:7700", "a.b-c:65535"};
    static const char *const bad[] = {"",      "node7",    ":7700", "node7:",  "node7:x", "node7:65536", "::1:7700",
                                      "[::1]", "node7:-1", "a:1x",  "[]:7700", "a: 1",    "a:+1"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_expect_eq(farm_address_read(good[i], text, &error), FARM_OK, "%s", good[i]);
        cr_expect_str_eq(text, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(farm_address_read(bad[i], text, &error), FARM_E_USAGE, "%s", bad[i]);
    char longest[2 * FARM_ADDRESS_TEXT_BYTES];
    memset(longest, 'a', sizeof longest);
    memcpy(longest + sizeof longest - 6, ":7700", 6);
    cr_expect_eq(farm_address_read(longest, text, &error), FARM_E_USAGE);
}

Test(bridge, reads_an_address_from_a_file) {
    char at[sizeof file + 1] = "@";
    strcat(at, file);
    cr_expect_eq(farm_address_read(at, text, &error), FARM_E_NOT_FOUND, "an empty file is not written yet");
    write_file("127.0.0.1:7700\n");
    cr_expect_eq(farm_address_read(at, text, &error), FARM_OK, "%s", error.message);
    cr_expect_str_eq(text, "127.0.0.1:7700");
    write_file("nonsense\n");
    cr_expect_eq(farm_address_read(at, text, &error), FARM_E_NOT_FOUND);
    cr_expect(strstr(error.message, file), "%s", error.message);
    unlink(file);
    cr_expect_eq(farm_address_read(at, text, &error), FARM_E_NOT_FOUND);
    cr_expect_eq(farm_address_read("@", text, &error), FARM_E_USAGE);
}

Test(bridge, distinguishes_private_and_public_addresses) {
    static const char *const ours[] = {"127.0.0.1:1",  "127.255.0.9:1", "10.1.2.3:1",         "172.16.0.1:1",
                                       "172.31.9.9:1", "192.168.3.4:1", "169.254.1.1:1",      "[::1]:1",
                                       "[fd00::1]:1",  "[fe80::1]:1",   "[::ffff:10.0.0.1]:1"};
    static const char *const theirs[] = {"192.0.2.1:1",   "11.0.0.1:1",         "172.15.0.1:1",     "172.32.0.1:1",
                                         "192.169.0.1:1", "0.0.0.0:1",          "[::]:1",           "[2001:db8::1]:1",
                                         "[fec0::1]:1",   "[::ffff:8.8.8.8]:1", "255.255.255.255:1"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        const struct farm_address address = find(ours[i]);
        cr_expect(farm_address_private(&address), "%s", ours[i]);
        cr_expect_eq(farm_address_check_insecure(ours[i], &address, 1, &error), FARM_OK);
    }
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) {
        const struct farm_address address = find(theirs[i]);
        cr_expect(!farm_address_private(&address), "%s", theirs[i]);
        cr_expect_eq(farm_address_check_insecure(theirs[i], &address, 1, &error), FARM_E_USAGE);
        cr_expect(strstr(error.message, "--key"), "%s", error.message);
    }
}

Test(bridge, refuses_a_name_with_one_public_address) {
    struct farm_address both[2] = {find("127.0.0.1:1"), find("192.0.2.1:1")};
    cr_expect_eq(farm_address_check_insecure("name:1", both, 2, &error), FARM_E_USAGE);
    cr_expect(strstr(error.message, "192.0.2.1"), "%s", error.message);
}

Test(bridge, finds_no_network_card_for_loopback) {
    const struct farm_address address = find("127.0.0.1:1");
    cr_expect_eq(farm_address_node(&address), -1);
}
