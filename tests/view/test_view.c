// What another process reads of a farm's rings through <farm/farm.h>.
#include <criterion/criterion.h>
#include <farm/farm.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "../support/rings.h"

Test(view, a_view_copies_the_leaves_of_a_replay) {
    struct farm_ring_spec spec = spec_of(1, 2, 8);
    spec.leaf_every = 2;
    with_ring ring = ring_of(spec, 1);
    char why[256];
    struct farm_view *view = farm_attach(getpid(), why, sizeof why);
    cr_assert(view, "%s", why);
    ring.lanes[0].up->produced = 5;
    memcpy(farm_lane_leaf(&ring.lanes[0], 4), (float[]){0.5f, -0.0f}, 8);
    float leaf[2] = {9, 9};
    cr_assert_eq(farm_view_bytes(view, 0, FARM_VIEW_LEAF), sizeof leaf);
    cr_assert(!farm_view_copy(view, 0, 3, FARM_VIEW_LEAF, leaf), "no window begins there");
    cr_assert(!farm_view_copy(view, 0, 6, FARM_VIEW_LEAF, leaf), "not published yet");
    cr_assert(farm_view_copy(view, 0, 4, FARM_VIEW_LEAF, leaf));
    cr_assert(leaf[0] == 0.5f && leaf[1] == 0 && signbit(leaf[1]));
    farm_detach(view);
}

Test(view, a_view_copies_a_last_observation_until_its_slot_is_taken) {
    struct farm_ring_spec spec = spec_of(1, 2, 8);
    spec.autoreset = FARM_AUTORESET_SAME_STEP;
    with_ring ring = ring_of(spec, 2);
    uint64_t last[2] = {0};
    struct farm_view *view = farm_attach(getpid(), NULL, 0);
    cr_assert_eq(farm_view_bytes(view, 0, FARM_VIEW_LAST), sizeof last);
    cr_assert_eq(farm_view_bytes(view, 0, FARM_VIEW_LAST + 1), 0);
    memcpy(farm_lane_last(&ring.lanes[0], 0, 5, 0), (uint64_t[]){7, 8}, sizeof last);
    for (uint64_t produced = 5; produced < 9; produced++) {
        ring.lanes[0].up->produced = produced;
        cr_assert_eq(farm_view_copy(view, 0, 5, FARM_VIEW_LAST, last), produced == 6, "%lu published", produced);
    }
    cr_assert(last[0] == 7 && last[1] == 8);
    farm_detach(view);
}

static void *start_farm(void *folder) {
    char why[256], path[64];
    snprintf(path, sizeof path, "%s/s/farm", (const char *)folder);
    const char *const words[] = {"serve", "--env", "native/catch", "--actors", "1", "--quiet", "--socket", path, NULL};
    struct farm *farm = farm_start(words, why, sizeof why);
    if (!farm) fprintf(stderr, "%s\n", why);
    return farm;
}

Test(view, a_farm_ends_with_the_process_that_started_it_and_not_with_the_thread) {
    char folder[] = "/tmp/farm-view-XXXXXX", path[64];
    int pids[2], ended;
    pid_t of[2]; // the farm, and a child of its starter
    const char *build = getenv("FARM_BUILD");
    cr_assert(mkdtemp(folder) && !pipe(pids));
    snprintf(path, sizeof path, "%s/farm", build ? build : "build");
    setenv("FARM_PROGRAM", path, 1);
    const pid_t starter = fork();
    if (starter == 0) {
        pthread_t thread;
        void *farm;
        pthread_create(&thread, NULL, start_farm, folder);
        pthread_join(thread, &farm);
        of[0] = farm ? farm_pid(farm) : 0;
        of[1] = fork(); // holds all that it inherits
        if (of[1]) (void)!write(pids[1], of, sizeof of);
        sleep(30);
        _exit(0);
    }
    cr_assert_eq(read(pids[0], of, sizeof of), (ssize_t)sizeof of);
    snprintf(path, sizeof path, "%s/s/farm", folder);
    cr_assert(of[0]);
    for (int i = 0; i < 1000 && access(path, F_OK); i++) usleep(10000);
    cr_assert(!access(path, F_OK), "the farm goes on without its thread");
    kill(starter, SIGKILL);
    waitpid(starter, &ended, 0);
    for (int i = 0; i < 1000 && !kill(of[0], 0); i++) usleep(10000);
    kill(of[1], SIGKILL);
    cr_assert(kill(of[0], 0), "the farm has ended");
    cr_assert(access(path, F_OK), "as after SIGTERM");
    snprintf(path, sizeof path, "rm -r %s", folder);
    cr_assert(!system(path));
}

Test(view, a_farm_starts_after_descriptors_have_run_out_once) {
    char why[256], program[512];
    const char *const words[] = {"--version", NULL}, *build = getenv("FARM_BUILD");
    snprintf(program, sizeof program, "%s/farm", build ? build : "build");
    setenv("FARM_PROGRAM", program, 1);
    struct rlimit limit;
    const int free_one = dup(STDERR_FILENO);
    close(free_one);
    getrlimit(RLIMIT_NOFILE, &limit);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)free_one, limit.rlim_max});
    cr_assert(!farm_start(words, why, sizeof why) && strstr(why, "Too many open files"), "%s", why);
    setrlimit(RLIMIT_NOFILE, &limit);
    struct farm *farm = farm_start(words, why, sizeof why);
    cr_assert(farm, "%s", why);
    cr_assert_eq(farm_wait(farm), 0);
}
