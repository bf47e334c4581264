// The whole actor and the whole learner as threads of one process, over one mapping of each segment, so that
// ThreadSanitizer (`make tsan`) sees what passes between them: farm_actor_run and farm_learner_run are those of
// `farm train`, only farm_place_map is linked with a stand-in that maps a file once. (Each side's own view would hide
// every race: it lies at other addresses.)
#include "rings.h"

#include "../support/learner.h"

#include <assert.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "actor/actor.h"
#include "envs/native/native.h"
#include "learner/learner.h"
#include "ring/wait.h"

enum { LANES = 2, WIDTH = 4, STEPS = 48, FLAT = 4, ACTIONS = 2, UNROLL = 8, FILES_MAX = 8, FRAMES = 20000 };

TestSuite(threads, .timeout = 120);

// ---- one mapping a file ----

static struct {
    ino_t file;
    void *start;
} mapped[FILES_MAX];
static size_t mapped_count;

void *__real_farm_place_map(int fd, int protection, size_t bytes, size_t align);
void *__wrap_farm_place_map(int fd, int protection, size_t bytes, size_t align);
int __real_munmap(void *start, size_t bytes);
int __wrap_munmap(void *start, size_t bytes);

void *__wrap_farm_place_map(int fd, int protection, size_t bytes, size_t align) {
    struct stat about;
    if (fd < 0 || fstat(fd, &about)) return __real_farm_place_map(fd, protection, bytes, align);
    for (size_t i = 0; i < mapped_count; i++)
        if (mapped[i].file == about.st_ino) return mapped[i].start; // the creator's, which may write
    assert(mapped_count < FILES_MAX && protection & PROT_WRITE);
    mapped[mapped_count].file = about.st_ino;
    return mapped[mapped_count++].start = __real_farm_place_map(fd, protection, bytes, align);
}

int __wrap_munmap(void *start, size_t bytes) {
    for (size_t i = 0; i < mapped_count; i++)
        if (mapped[i].start == start) return 0; // others still use it
    return __real_munmap(start, bytes);
}

// ---- both programs ----

struct program {
    struct farm_actor_config actor;
    struct farm_learner_config learner;
    struct farm_error err;
    int status;
};

static void *act(void *context) {
    struct program *program = context;
    program->status = farm_actor_run(&program->actor, &program->err);
    return NULL;
}

static void *learn(void *context) {
    struct program *program = context;
    program->status = farm_learner_run(&program->learner, &program->err);
    return NULL;
}

static struct farm_learner_config learner_config(const int (*fds)[2], int bell, struct farm_stats *stats) {
    struct farm_learner_config config = test_learner_config(FLAT, ACTIONS, UNROLL);
    config.ring_fds = fds;
    config.ring_count = 1;
    config.shards[0].eventfd = bell;
    config.stats = stats;
    config.seed = 1;
    config.algo.batch = LANES * WIDTH;
    config.infer_batch_max = LANES * WIDTH;
    config.memory_node = -1;
    config.frames_target = FRAMES;
    return config;
}

static void run_both(uint64_t spin_ns) {
    static struct farm_stats stats;
    struct farm_ring made;
    struct farm_error err = {0};
    const struct farm_env_api *cartpole = farm_native_env_find("native/cartpole");
    struct farm_ring_spec spec = {.lanes = LANES, .width = WIDTH, .steps = STEPS};
    memset(&stats, 0, sizeof stats);
    cr_assert_eq(cartpole->spec(&(struct farm_env_config){0}, &spec.env, NULL, 0), 0);
    farm_ring_spec_answers(&spec);
    cr_assert_eq(farm_ring_create(&spec, 0, -1, false, &made, &err), FARM_OK, "%s", err.message);
    const int bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    const int fds[1][2] = {{dup(made.up.fd_readonly), dup(made.down.fd)}};
    struct program actor = {.actor = {.up_fd = dup(made.up.fd),
                                      .down_fd = dup(made.down.fd_readonly),
                                      .learner_eventfd = bell,
                                      .api = cartpole,
                                      .seed = 1,
                                      .spin_ns = spin_ns}};
    struct program learner = {.learner = learner_config(fds, bell, &stats)};
    learner.learner.spin_ns = spin_ns;
    pthread_t threads[2];
    cr_assert_eq(pthread_create(&threads[0], NULL, act, &actor), 0);
    cr_assert_eq(pthread_create(&threads[1], NULL, learn, &learner), 0);
    cr_assert_eq(pthread_join(threads[1], NULL), 0);
    cr_assert_eq(learner.status, 0, "%s", learner.err.message);
    cr_assert_geq(farm_load_relaxed(&stats.frames), FRAMES);
    cr_assert_gt(farm_load_relaxed(&stats.updates), 0);
    cr_assert_eq(farm_load_relaxed(&stats.bad_values), 0);
    farm_store_release(&made.down_control->stop, 1);
    cr_assert_eq(pthread_join(threads[0], NULL), 0);
    cr_assert_eq(actor.status, 0, "%s", actor.err.message);
    char text[512];
    cr_assert_eq(farm_ring_verify(&made, text, sizeof text), 0, "%s", text);
    farm_ring_close(&made);
    close(bell);
    mapped_count = 0;
}

Test(threads, actor_and_learner_that_sleep_race_nowhere) {
    run_both(0);
}

Test(threads, actor_and_learner_that_spin_race_nowhere) {
    run_both(20000);
}
