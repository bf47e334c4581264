// The chaos runner's short form; `make chaos` is the long one. chaos.h lists the checks.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/time.h"
#include "chaos.h"

TestSuite(chaos, .timeout = 240);

static struct chaos_totals *run(const struct chaos_request *request) {
    struct chaos_totals *totals = malloc(sizeof *totals);
    cr_assert_not_null(totals);
    const bool good = chaos_run(request, totals);
    cr_assert(good, "seed %llu, %llu violations: %s; %s; %s", (unsigned long long)request->seed,
              (unsigned long long)totals->violations, totals->sentences[0], totals->sentences[1], totals->sentences[2]);
    return totals;
}

Test(chaos, loses_tears_and_doubles_no_step_while_all_processes_are_killed) {
    const struct chaos_request request = {.seed = farm_now_ns(),
                                          .actor_kills = 200,
                                          .learner_kills = 10,
                                          .supervisor_kills = 5,
                                          .actor_kills_per_s = 100,
                                          .standstill_s = 10,
                                          .seconds = 200};
    struct chaos_totals *totals = run(&request);
    const uint64_t actors = chaos_sum(totals->actor_kills), learners = chaos_sum(totals->learner_kills);
    cr_assert_geq(actors, 200);
    cr_assert_geq(learners, 10);
    cr_assert_geq(totals->supervisor_kills, 5);
    for (int kind = CHAOS_TIME; kind < CHAOS_KINDS; kind++) cr_assert_gt(totals->actor_kills[kind], 0);
    cr_assert_gt(totals->learner_kills[CHAOS_TIME], 0);
    cr_assert_gt(totals->learner_kills[CHAOS_HOOK], 0);
    cr_assert_gt(totals->steps_checked, 10 * actors);
    cr_assert_gt(totals->windows_checked, 10 * learners);
    cr_assert_gt(totals->abandoned, 0);
    printf("covered: %llu actors, %llu learners, %llu supervisors killed (around %llu different stores); %llu steps, "
           "%llu windows, %llu abandoned episodes checked\n",
           (unsigned long long)actors, (unsigned long long)learners, (unsigned long long)totals->supervisor_kills,
           (unsigned long long)chaos_sites(totals), (unsigned long long)totals->steps_checked,
           (unsigned long long)totals->windows_checked, (unsigned long long)totals->abandoned);
    free(totals);
}
