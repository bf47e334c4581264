// Claims between real processes.
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machines.h"
#include "topo/claim.h"

static char folder[] = "/tmp/farm-test-claim-XXXXXX";
static char path[64];
static struct farm_error error;

static void set_up(void) {
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/lock", folder);
}

static void tear_down(void) {
    unlink(path);
    rmdir(folder);
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
    farm_claim_close(&mine);
}

Test(topo, claims_all_or_nothing) {
    struct farm_claim mine = open_claim(), observer = open_claim();
    pid_t farm = start_farm("4-7");
    struct farm_bitmap clash = cpus_of("2-5"), free_ones = cpus_of("0-3");
    cr_assert_eq(farm_claim_take(&mine, &clash, &error), FARM_E_BUSY);
    cr_assert(strstr(error.message, "CPU 4"), "%s", error.message);
    expect_taken(&observer, "4-7");
    cr_assert_eq(farm_claim_take(&mine, &free_ones, &error), FARM_OK, "%s", error.message);
    expect_taken(&observer, "0-7");
    expect_taken(&mine, "4-7");
    stop_farm(farm);
}

Test(topo, releases_given_cpus) {
    struct farm_claim mine = open_claim(), other = open_claim();
    const struct farm_bitmap all = cpus_of("2-5"), some = cpus_of("3,5");
    cr_assert_eq(farm_claim_take(&mine, &all, &error), FARM_OK, "%s", error.message);
    farm_claim_give(&mine, &some);
    expect_taken(&other, "2,4");
    cr_assert_eq(farm_claim_take(&other, &some, &error), FARM_OK, "%s", error.message);
    farm_claim_close(&mine);
    farm_claim_close(&other);
}

Test(topo, keeps_a_claim_while_a_child_lives) {
    struct farm_claim mine = open_claim(), observer = open_claim();
    struct farm_bitmap cpus = cpus_of("1,3");
    cr_assert_eq(farm_claim_take(&mine, &cpus, &error), FARM_OK, "%s", error.message);
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
    static struct farm_machine machine;
    struct farm_machine_source source = {.synthetic = TWO_SOCKETS};
    cr_assert_eq(farm_machine_read(&machine, &source, &error), FARM_OK, "%s", error.message);
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

Test(topo, plans_without_pinning_if_the_file_cannot_be_made) {
    struct farm_claim claim;
    cr_assert_neq(farm_claim_open(&claim, "/nonexistent/lock", &error), FARM_OK);
    cr_assert_eq(claim.fd, -1);
    static struct farm_machine machine;
    static struct farm_plan plan;
    struct farm_machine_source source = {.synthetic = TWO_SOCKETS};
    cr_assert_eq(farm_machine_read(&machine, &source, &error), FARM_OK, "%s", error.message);
    struct farm_plan_request request = {.learner_device = FARM_LEARNER_CPU, .pin = true};
    cr_assert_eq(farm_claim_plan(&claim, &machine, &request, &plan, &error), FARM_OK, "%s", error.message);
    cr_assert(!plan.pinned && plan.actor_count > 0 && farm_bitmap_count(&plan.claim) == 0);
    expect_taken(&claim, "");
    farm_claim_close(&claim);
}

Test(topo, serves_all_users_and_follows_no_link) {
    umask(077);
    struct farm_claim mine = open_claim();
    struct stat info;
    cr_assert_eq(fstat(mine.fd, &info), 0);
    cr_assert_eq(info.st_mode & 0777, 0666);
    cr_assert(fcntl(mine.fd, F_GETFD) & FD_CLOEXEC);
    farm_claim_close(&mine);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(symlink("/etc/passwd", path), 0);
    cr_assert_neq(farm_claim_open(&mine, path, &error), FARM_OK, "a link was followed");
    cr_assert_eq(mine.fd, -1);
}
