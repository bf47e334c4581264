// The whole actor and the whole learner as threads of one process, over one mapping of each segment, so that
// ThreadSanitizer (`make tsan`) sees what passes between them. farm_actor_run and farm_learner_run are those of
// `farm train`; only farm_place_map is linked with a wrapper that maps a file once, because separate views would lie at
// other addresses and hide every race.
#include "../support/test_farm.h"

#include <assert.h>
#include <pthread.h>
#include <sys/stat.h>

#include "actor/actor.h"
#include "envs/native/native.h"

enum { FILES_MAX = 8, FRAMES = 20000 };

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
        if (mapped[i].file == about.st_ino) return mapped[i].start; // the creator's, which is writable
    assert(mapped_count < FILES_MAX && protection & PROT_WRITE);
    mapped[mapped_count].file = about.st_ino;
    return mapped[mapped_count++].start = __real_farm_place_map(fd, protection, bytes, align);
}

int __wrap_munmap(void *start, size_t bytes) {
    for (size_t i = 0; i < mapped_count; i++)
        if (mapped[i].start == start) return 0; // other views still use it
    return __real_munmap(start, bytes);
}

// ---- both programs ----

struct program {
    struct farm_actor_config actor;
    struct farm_learner_config learner;
    struct farm_error err;
    int status;
};

static void *run_actor(void *context) {
    struct program *program = context;
    program->status = farm_actor_run(&program->actor, &program->err);
    return NULL;
}

static void *run_learner(void *context) {
    struct program *program = context;
    program->status = farm_learner_run(&program->learner, &program->err);
    return NULL;
}

static void run_both(uint64_t spin_ns) {
    struct test_farm farm;
    struct program actor = {0}, learner = {0};
    pthread_t threads[2];
    char text[512];
    const struct farm_env_api *cartpole = farm_native_env_find("native/cartpole");
    test_farm_open(&farm, 0, FARM_ANSWERS_CENTRAL);
    cr_assert_eq(cartpole->spec(&(struct farm_env_config){0}, &farm.spec.env, NULL, 0), 0);
    farm.spec.env.agents = 1; // as farm_plugin_spec sets it
    farm_ring_spec_answers(&farm.spec);
    farm.made[0] = ring_of(farm.spec, 0);
    actor.actor = (struct farm_actor_config){.up_fd = dup(farm.made[0].up.fd),
                                             .down_fd = dup(farm.made[0].down.fd_readonly),
                                             .learner_eventfd = farm.bell,
                                             .api = cartpole,
                                             .seed = 1,
                                             .video = -1,
                                             .spin_ns = spin_ns};
    farm.there[0] = true;
    test_farm_lend(&farm);
    learner.learner = farm.config;
    learner.learner.io.actions = 2;
    learner.learner.target.frames = FRAMES;
    learner.learner.inference.spin_ns = spin_ns;
    cr_assert_eq(pthread_create(&threads[0], NULL, run_actor, &actor), 0);
    cr_assert_eq(pthread_create(&threads[1], NULL, run_learner, &learner), 0);
    cr_assert_eq(pthread_join(threads[1], NULL), 0);
    cr_assert_eq(learner.status, 0, "%s", learner.err.message);
    cr_assert_geq(farm_load_relaxed(&farm.shared->stats.frames), FRAMES);
    cr_assert_gt(test_farm_updates(&farm), 0);
    cr_assert_eq(farm_load_relaxed(&farm.shared->stats.bad_values), 0);
    farm_store_release(&farm.made[0].down_control->stop, 1);
    cr_assert_eq(pthread_join(threads[0], NULL), 0);
    cr_assert_eq(actor.status, 0, "%s", actor.err.message);
    cr_assert_eq(verify_lanes(&farm.made[0], text, sizeof text), 0, "%s", text);
    farm_ring_close(&farm.made[0]);
    farm.there[0] = false;
    test_farm_close(&farm);
    mapped_count = 0;
}

Test(threads, actor_and_learner_that_sleep_or_spin_do_not_race) {
    run_both(0);
    run_both(20000);
}
