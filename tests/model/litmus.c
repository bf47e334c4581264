// Checks the model checker's memory model with litmus tests whose outcomes under RC11 are published (Lahav et al. 2017;
// Batty et al. 2011): exactly the allowed outcomes must occur. The digits of an outcome are the values that were read.
#include <stdio.h>
#include <stdlib.h>

#include "explore.h"

enum { OUTCOMES = 64 };
static const enum model_order RLX = MODEL_RELAXED, ACQ = MODEL_ACQUIRE, REL = MODEL_RELEASE;

static uint64_t x, y;
static uint64_t *got; // [4], part of the state
static uint64_t outcomes[OUTCOMES];
static unsigned outcome_count;

static void note(uint64_t outcome) {
    for (unsigned i = 0; i < outcome_count; i++)
        if (outcomes[i] == outcome) return;
    outcomes[outcome_count++] = outcome;
}
static void end_reads(void) {
    note(got[0] * 1000 + got[1] * 100 + got[2] * 10 + got[3]);
}
static void end_memory(void) {
    note(model_newest(&x) * 10 + model_newest(&y));
}

#define THREAD(name, ...)                                                                                              \
    static void name(void *context) {                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define ST(word, value, order) model_store(&word, value, order);
#define LD(i, word, order)     got[i] = model_load(&word, order);
#define ADD(word, more, order) model_add(&word, more, order);
#define FENCE                  model_fence();

THREAD(mp_rlx_w, ST(x, 1, RLX) ST(y, 1, RLX))
THREAD(mp_rel_w, ST(x, 1, RLX) ST(y, 1, REL))
THREAD(mp_fence_w, ST(x, 1, RLX) FENCE ST(y, 1, RLX))
THREAD(mp_rlx_r, LD(0, y, RLX) LD(1, x, RLX))
THREAD(mp_acq_r, LD(0, y, ACQ) LD(1, x, RLX))
THREAD(mp_fence_r, LD(0, y, RLX) FENCE LD(1, x, RLX))
THREAD(sb_1, ST(x, 1, REL) LD(0, y, ACQ))
THREAD(sb_2, ST(y, 1, REL) LD(1, x, ACQ))
THREAD(sb_fence_1, ST(x, 1, RLX) FENCE LD(0, y, RLX))
THREAD(sb_fence_2, ST(y, 1, RLX) FENCE LD(1, x, RLX))
THREAD(lb_1, LD(0, x, RLX) ST(y, 1, RLX))
THREAD(lb_2, LD(1, y, RLX) ST(x, 1, RLX))
THREAD(store_x, ST(x, 1, RLX))
THREAD(store_y, ST(y, 1, RLX))
THREAD(iriw_acq_1, LD(0, x, ACQ) LD(1, y, ACQ))
THREAD(iriw_acq_2, LD(2, y, ACQ) LD(3, x, ACQ))
THREAD(iriw_fence_1, LD(0, x, RLX) FENCE LD(1, y, RLX))
THREAD(iriw_fence_2, LD(2, y, RLX) FENCE LD(3, x, RLX))
THREAD(wrc_2_rlx, LD(0, x, RLX) ST(y, 1, RLX))
THREAD(wrc_2_rel, LD(0, x, RLX) ST(y, 1, REL))
THREAD(wrc_3_rlx, LD(1, y, RLX) LD(2, x, RLX))
THREAD(wrc_3_acq, LD(1, y, ACQ) LD(2, x, RLX))
THREAD(ww_1, ST(x, 1, RLX) ST(y, 2, RLX))
THREAD(ww_2, ST(y, 1, RLX) ST(x, 2, RLX))
THREAD(ww_fence_1, ST(x, 1, RLX) FENCE ST(y, 2, RLX))
THREAD(ww_fence_2, ST(y, 1, RLX) FENCE ST(x, 2, RLX))
THREAD(add_rel, ADD(x, 1, REL))
THREAD(add_rlx, ADD(x, 1, RLX))
THREAD(rs_w, ST(y, 1, RLX) ADD(x, 1, REL))
THREAD(rs_r, LD(0, x, ACQ) LD(1, y, RLX))
THREAD(corr_w, ST(x, 1, RLX) ST(x, 2, RLX))
THREAD(corr_r, LD(0, x, RLX) LD(1, x, RLX))

struct litmus {
    const char *name;
    void (*threads[4])(void *);
    void (*end)(void);
    uint64_t allowed[12];
    unsigned allowed_count;
};
#define ALLOWED(...) .allowed = {__VA_ARGS__}, .allowed_count = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)

static const struct litmus LITMUS[] = {
    {"message passing, relaxed", {mp_rlx_w, mp_rlx_r}, end_reads, ALLOWED(0, 100, 1000, 1100)},
    {"message passing, release to acquire", {mp_rel_w, mp_acq_r}, end_reads, ALLOWED(0, 100, 1100)},
    {"message passing, release to relaxed", {mp_rel_w, mp_rlx_r}, end_reads, ALLOWED(0, 100, 1000, 1100)},
    {"message passing, relaxed to acquire", {mp_rlx_w, mp_acq_r}, end_reads, ALLOWED(0, 100, 1000, 1100)},
    {"message passing, fence to fence", {mp_fence_w, mp_fence_r}, end_reads, ALLOWED(0, 100, 1100)},
    {"message passing, fence to acquire", {mp_fence_w, mp_acq_r}, end_reads, ALLOWED(0, 100, 1100)},
    {"message passing, release to fence", {mp_rel_w, mp_fence_r}, end_reads, ALLOWED(0, 100, 1100)},
    {"store buffering, release and acquire", {sb_1, sb_2}, end_reads, ALLOWED(0, 100, 1000, 1100)},
    {"store buffering, fences", {sb_fence_1, sb_fence_2}, end_reads, ALLOWED(100, 1000, 1100)},
    {"store buffering, one fence", {sb_fence_1, sb_2}, end_reads, ALLOWED(0, 100, 1000, 1100)},
    {"load buffering (RC11 forbids it)", {lb_1, lb_2}, end_reads, ALLOWED(0, 100, 1000)},
    {"write to read causality, relaxed",
     {store_x, wrc_2_rlx, wrc_3_rlx},
     end_reads,
     ALLOWED(0, 10, 100, 110, 1000, 1010, 1100, 1110)},
    {"write to read causality, release and acquire, first read relaxed",
     {store_x, wrc_2_rel, wrc_3_acq},
     end_reads,
     ALLOWED(0, 10, 100, 110, 1000, 1010, 1110)},
    {"two plus two writes, relaxed", {ww_1, ww_2}, end_memory, ALLOWED(11, 12, 21, 22)},
    {"two plus two writes, fences", {ww_fence_1, ww_fence_2}, end_memory, ALLOWED(12, 21, 22)},
    {"two additions", {add_rel, add_rlx}, end_memory, ALLOWED(20)},
    {"release sequence of additions", {rs_w, add_rlx, rs_r}, end_reads, ALLOWED(0, 100, 1000, 1100, 2100)},
    {"coherence of reads", {corr_w, corr_r}, end_reads, ALLOWED(0, 100, 200, 1100, 1200, 2200)},
};

// Independent reads of independent writes: only the decisive outcome is checked.
static const struct litmus IRIW_ACQUIRE = {
    "independent reads, acquire", {store_x, store_y, iriw_acq_1, iriw_acq_2}, end_reads, ALLOWED(1010)};
static const struct litmus IRIW_FENCES = {
    "independent reads, fences", {store_x, store_y, iriw_fence_1, iriw_fence_2}, end_reads, .allowed_count = 0};

static const struct litmus *running;
static bool one_writer; // so that the shorter search is checked too

static void set_up(void) {
    got = model_allocate(4 * sizeof *got);
    model_word(&x, "x", 0, one_writer);
    model_word(&y, "y", 0, one_writer);
    for (unsigned t = 0; t < 4 && running->threads[t]; t++)
        model_thread(model_process("p", false, NULL, NULL), "t", running->threads[t], NULL);
}

static bool seen(uint64_t outcome) {
    for (unsigned i = 0; i < outcome_count; i++)
        if (outcomes[i] == outcome) return true;
    return false;
}

static struct model_result explore(const struct litmus *litmus) {
    running = litmus;
    one_writer = litmus->end == end_reads; // the others have two
    outcome_count = 0;
    return model_explore(&(struct model_scenario){.name = litmus->name, .set_up = set_up, .end = litmus->end});
}

int main(void) {
    unsigned failed = 0, count = sizeof LITMUS / sizeof *LITMUS;
    uint64_t states = 0;
    for (unsigned i = 0; i < count; i++) {
        states += explore(&LITMUS[i]).states;
        bool right = outcome_count == LITMUS[i].allowed_count;
        for (unsigned k = 0; k < LITMUS[i].allowed_count; k++) right &= seen(LITMUS[i].allowed[k]);
        if (right) continue;
        failed++;
        printf("%s: outcomes", LITMUS[i].name);
        for (unsigned k = 0; k < outcome_count; k++) printf(" %llu", (unsigned long long)outcomes[k]);
        printf(", not those of RC11\n");
    }
    states += explore(&IRIW_ACQUIRE).states;
    if (!seen(1010)) failed++, printf("%s: the weak outcome is missing\n", IRIW_ACQUIRE.name);
    states += explore(&IRIW_FENCES).states;
    if (seen(1010)) failed++, printf("%s: the weak outcome turned up\n", IRIW_FENCES.name);
    printf("%u litmus tests, %u wrong, %llu states\n", count + 2, failed, (unsigned long long)states);
    return failed ? 1 : 0;
}
