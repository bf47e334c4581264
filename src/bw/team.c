// See team.h. A round: the owner publishes work and a new round number under the lock and wakes the members, which
// sleep on the condition; each does the work; the last one wakes the owner. farm_bw_team_meet is a barrier of two
// words: the last member to arrive resets the count and then publishes the next generation (release); the others spin
// until they see it (acquire), so that all see what each wrote before.
#include "bw/team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/atomics.h"
#include "base/bitmap.h"
#include "shm/place.h"

enum { SPINS_BEFORE_YIELD = 1 << 14, LINE_PAIR = 128 };

struct member {
    pthread_t thread;
    struct farm_bw_team *team;
    int index, cpu;
    bool started, pinned;
};

struct farm_bw_team {
    _Alignas(LINE_PAIR) _Atomic uint32_t arrived;
    _Alignas(LINE_PAIR) _Atomic uint32_t generation;
    _Alignas(LINE_PAIR) pthread_mutex_t lock;
    pthread_cond_t go, done;
    uint64_t round; // guarded by lock, as is what follows
    int at_work;
    bool ending;
    farm_bw_team_work *work;
    void *context;
    int count;
    struct member *members;
};

static void *run_rounds(void *argument) {
    struct member *self = argument;
    struct farm_bw_team *team = self->team;
    self->pinned = farm_bitmap_pin_to(self->cpu, NULL) == FARM_OK;
    pthread_mutex_lock(&team->lock);
    for (uint64_t seen = 0;;) {
        if (--team->at_work == 0) pthread_cond_signal(&team->done);
        while (team->round == seen && !team->ending) pthread_cond_wait(&team->go, &team->lock);
        if (team->ending) break;
        seen = team->round;
        farm_bw_team_work *work = team->work;
        void *context = team->context;
        pthread_mutex_unlock(&team->lock);
        work(context, self->index);
        pthread_mutex_lock(&team->lock);
    }
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

enum farm_status farm_bw_team_open(const int *cpus, int count, struct farm_bw_team **out,
                                   struct farm_bw_conditions *conditions, struct farm_error *err) {
    *out = NULL;
    if (count < 1) return farm_fail(err, FARM_E_INVALID, "a team of %d threads", count);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE); // the barrier shares its lines with nothing else
    struct farm_bw_team *team = farm_place_map(-1, PROT_READ | PROT_WRITE, sizeof *team, page);
    if (!team) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for %d threads", count);
    team->members = calloc((size_t)count, sizeof *team->members);
    if (!team->members) {
        munmap(team, sizeof *team);
        return farm_fail(err, FARM_E_LIMIT, "no memory for %d threads", count);
    }
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->go, NULL);
    pthread_cond_init(&team->done, NULL);
    team->at_work = count;
    for (; team->count < count; team->count++) {
        struct member *member = &team->members[team->count];
        *member = (struct member){.team = team, .index = team->count, .cpu = cpus[team->count]};
        if (pthread_create(&member->thread, NULL, run_rounds, member)) break;
    }
    const int missing = count - team->count;
    pthread_mutex_lock(&team->lock);
    team->at_work -= missing; // a thread that could not be started does not report
    while (team->at_work > 0) pthread_cond_wait(&team->done, &team->lock);
    pthread_mutex_unlock(&team->lock);
    if (missing) {
        const int had = team->count;
        farm_bw_team_close(team);
        return farm_fail(err, FARM_E_LIMIT, "only %d of %d threads could be started: raise ulimit -u or pids.max", had,
                         count);
    }
    for (int i = 0; i < count; i++) conditions->pinned &= team->members[i].pinned;
    if (!conditions->pinned)
        farm_bw_conditions_note(conditions, "No right to pin threads to CPUs: they run where the system puts them.");
    *out = team;
    return FARM_OK;
}

void farm_bw_team_close(struct farm_bw_team *team) {
    if (!team) return;
    pthread_mutex_lock(&team->lock);
    team->ending = true;
    pthread_cond_broadcast(&team->go);
    pthread_mutex_unlock(&team->lock);
    for (int i = 0; i < team->count; i++) pthread_join(team->members[i].thread, NULL);
    pthread_cond_destroy(&team->go);
    pthread_cond_destroy(&team->done);
    pthread_mutex_destroy(&team->lock);
    free(team->members);
    munmap(team, sizeof *team);
}

void farm_bw_team_begin(struct farm_bw_team *team, farm_bw_team_work *work, void *context) {
    pthread_mutex_lock(&team->lock);
    team->work = work, team->context = context;
    team->at_work = team->count;
    team->round++;
    pthread_cond_broadcast(&team->go);
    pthread_mutex_unlock(&team->lock);
}

void farm_bw_team_end(struct farm_bw_team *team) {
    pthread_mutex_lock(&team->lock);
    while (team->at_work > 0) pthread_cond_wait(&team->done, &team->lock);
    pthread_mutex_unlock(&team->lock);
}

void farm_bw_team_run(struct farm_bw_team *team, farm_bw_team_work *work, void *context) {
    farm_bw_team_begin(team, work, context);
    farm_bw_team_end(team);
}

void farm_bw_team_meet(struct farm_bw_team *team) {
    const uint32_t generation = atomic_load_explicit(&team->generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == (uint32_t)team->count) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&team->generation, generation + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&team->generation, memory_order_acquire) == generation; spins++) {
        if (spins < SPINS_BEFORE_YIELD)
            farm_cpu_relax();
        else
            sched_yield(); // more threads than CPUs
    }
}
