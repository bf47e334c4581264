// Claims between real processes.
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/no_locks.h"
#include "machines.h"
#include "topo/claim.h"

static char path[] = "/tmp/farm-test-claim-XXXXXX";

static void set_up(void) {
    cr_assert_not_null(mkdtemp(path));
}

static void tear_down(void) {
    cr_assert_eq(rmdir(path), 0, "a claim left something behind");
}

TestSuite(topo, .init = set_up, .fini = tear_down, .timeout = 30);

static struct farm_bitmap cpus_of(const char *list) {
    struct farm_bitmap set;
    cr_assert_eq(farm_bitmap_parse(list, &set, &error), FARM_OK, "%s", error.message);
    return set;
}

static struct farm_claim open_claim(void) {
    struct farm_claim claim;
    cr_assert_eq(farm_claim_open(&claim, path, &error), FARM_OK, "%s", error.message);
    return claim;
}

static enum farm_status take(const struct farm_claim *claim, const char *list) {
    const struct farm_bitmap cpus = cpus_of(list);
    return farm_claim_take(claim, &cpus, &error);
}

static void expect_taken(const struct farm_claim *claim, const char *list) {
    struct farm_bitmap taken;
    char text[256];
    cr_assert_eq(farm_claim_read_taken(claim, &taken, &error), FARM_OK, "%s", error.message);
    cr_assert_str_eq(farm_bitmap_format(&taken, text, sizeof text), list);
}

// Forks a process that ends with the test.
static pid_t fork_bound(void) {
    pid_t parent = getpid(), pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)) _exit(1);
    return pid;
}

// A farm in another process: claims `list` and lives until stop_farm kills it.
static pid_t start_farm(const char *list) {
    int ready[2];
    char byte = 0;
    cr_assert_eq(pipe(ready), 0);
    pid_t pid = fork_bound();
    if (pid == 0) {
        struct farm_claim claim;
        struct farm_bitmap cpus;
        bool ok = !farm_claim_open(&claim, path, NULL) && !farm_bitmap_parse(list, &cpus, NULL) &&
                  !farm_claim_take(&claim, &cpus, NULL);
        byte = ok ? 'y' : 'n';
        if (write(ready[1], &byte, 1) == 1) pause();
        _exit(1);
    }
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    cr_assert_eq(byte, 'y', "the other process could not claim %s", list);
    return pid;
}

static void stop_farm(pid_t pid) {
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

Test(topo, sees_what_another_process_claims_until_it_dies) {
    struct farm_claim mine = open_claim();
    expect_taken(&mine, "");
    pid_t farm = start_farm("0-3,8,4095");
    expect_taken(&mine, "0-3,8,4095");
    stop_farm(farm);
    expect_taken(&mine, "");
}

Test(topo, claims_all_or_nothing) {
    struct farm_claim mine = open_claim(), observer = open_claim();
    pid_t farm = start_farm("4-7");
    cr_assert_eq(take(&mine, "2-5"), FARM_E_BUSY);
    cr_assert(strstr(error.message, "CPU 4"), "%s", error.message);
    expect_taken(&observer, "4-7");
    cr_assert_eq(take(&mine, "0-3"), FARM_OK, "%s", error.message);
    expect_taken(&observer, "0-7");
    expect_taken(&mine, "4-7");
    stop_farm(farm);
}

Test(topo, releases_given_cpus) {
    struct farm_claim mine = open_claim(), other = open_claim();
    const struct farm_bitmap some = cpus_of("3,5");
    cr_assert_eq(take(&mine, "2-5"), FARM_OK, "%s", error.message);
    farm_claim_give(&mine, &some);
    expect_taken(&other, "2,4");
    cr_assert_eq(take(&other, "3,5"), FARM_OK, "%s", error.message);
}

Test(topo, keeps_a_claim_while_a_child_lives) {
    struct farm_claim mine = open_claim(), observer = open_claim();
    cr_assert_eq(take(&mine, "1,3"), FARM_OK, "%s", error.message);
    pid_t child = fork_bound();
    if (child == 0) {
        pause();
        _exit(0);
    }
    farm_claim_close(&mine);
    expect_taken(&observer, "1,3");
    stop_farm(child);
    expect_taken(&observer, "");
}

Test(topo, plans_farms_that_start_together_onto_disjoint_cpus) {
    enum { FARMS = 4, ACTORS = 6 };
    struct farm_claim observer = open_claim();
    read_synthetic(TWO_SOCKETS);
    int start[2], ready[2];
    cr_assert(pipe(start) == 0 && pipe(ready) == 0);
    pid_t pid[FARMS];
    for (int i = 0; i < FARMS; i++) {
        pid[i] = fork_bound();
        if (pid[i]) continue;
        static struct farm_plan plan;
        struct farm_claim claim;
        struct farm_plan_request request = {.actors = ACTORS, .learner_device = FARM_LEARNER_CPU, .pin = true};
        char byte;
        close(start[1]);
        bool ok = read(start[0], &byte, 1) == 0 && !farm_claim_open(&claim, path, NULL) &&
                  !farm_claim_plan(&claim, &machine, &request, &plan, NULL);
        int claimed = ok && plan.pinned ? farm_bitmap_count(&plan.claim) : 0;
        if (write(ready[1], &claimed, sizeof claimed) == sizeof claimed) pause();
        _exit(1);
    }
    close(start[1]); // all farms start at once
    int total = 0;
    for (int i = 0; i < FARMS; i++) {
        int claimed = 0;
        cr_assert_eq(read(ready[0], &claimed, sizeof claimed), (ssize_t)sizeof claimed);
        cr_assert_gt(claimed, ACTORS, "a farm has no CPUs");
        total += claimed;
    }
    struct farm_bitmap taken;
    cr_assert_eq(farm_claim_read_taken(&observer, &taken, &error), FARM_OK);
    cr_assert_eq(farm_bitmap_count(&taken), total, "claims overlap");
    for (int i = 0; i < FARMS; i++) stop_farm(pid[i]);
}

Test(topo, plans_without_pinning_if_the_folder_cannot_be_opened_or_has_no_locks) {
    struct farm_claim claim;
    lock_errno = ENOSYS;
    cr_assert_eq(farm_claim_open(&claim, path, &error), FARM_E_UNSUPPORTED);
    cr_assert_eq(claim.fd, -1);
    lock_errno = 0;
    cr_assert_neq(farm_claim_open(&claim, "/nonexistent/lock", &error), FARM_OK);
    cr_assert_eq(claim.fd, -1);
    static struct farm_plan plan;
    read_synthetic(TWO_SOCKETS);
    struct farm_plan_request request = {.learner_device = FARM_LEARNER_CPU, .pin = true};
    cr_assert_eq(farm_claim_plan(&claim, &machine, &request, &plan, &error), FARM_OK, "%s", error.message);
    cr_assert(!plan.pinned && plan.actor_count > 0 && farm_bitmap_count(&plan.claim) == 0);
    expect_taken(&claim, "");
    farm_claim_close(&claim);
}

// Locks the CPU of a claim as another user. True if that user can, and sees that CPU 1 is taken.
static bool claims_as(uid_t user, const char *list) {
    pid_t pid = fork_bound();
    if (pid == 0) {
        struct farm_claim claim;
        struct farm_bitmap taken, cpus;
        bool ok = !setuid(user) && !farm_claim_open(&claim, path, NULL) && !farm_bitmap_parse(list, &cpus, NULL);
        ok = ok && !farm_claim_read_taken(&claim, &taken, NULL) && farm_bitmap_has(&taken, 1);
        _exit(!ok || farm_claim_take(&claim, &cpus, NULL));
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return status == 0;
}

Test(topo, serves_all_users_without_a_file) {
    umask(077);
    cr_assert_eq(chmod(path, 0755), 0); // readable, as /dev/shm
    struct farm_claim mine = open_claim();
    cr_assert_eq(take(&mine, "1"), FARM_OK, "%s", error.message);
    cr_assert(fcntl(mine.fd, F_GETFD) & FD_CLOEXEC);
    const uid_t other = getuid() ? getuid() : 65534; // only root can become another user
    cr_assert(claims_as(other, "0,2") && !claims_as(other, "0-2"));
    expect_taken(&mine, ""); // the other process has ended
}

// A program that holds the folder's lock delays a claim, but prevents none.
Test(topo, claims_despite_a_lock_on_the_folder) {
    struct farm_claim mine = open_claim(), other = open_claim();
    cr_assert_eq(flock(other.fd, LOCK_EX), 0);
    cr_assert_eq(take(&mine, "1"), FARM_OK, "%s", error.message);
    cr_assert_eq(take(&other, "1"), FARM_E_BUSY);
}

Test(topo, follows_no_link) {
    char link[sizeof path + 8];
    struct farm_claim mine;
    snprintf(link, sizeof link, "%s-link", path);
    cr_assert_eq(symlink(path, link), 0);
    cr_assert_neq(farm_claim_open(&mine, link, &error), FARM_OK, "a link was followed");
    cr_assert_eq(mine.fd, -1);
    unlink(link);
}
