// Statistics of samples, merged conditions, and the team of threads that all measurements use.
#include <criterion/criterion.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "bw/figure.h"
#include "bw/team.h"

TestSuite(bw, .timeout = 60);

Test(bw, a_figure_has_median_spread_and_variation) {
    // R: quantile(x, c(.25, .5, .75)) = 2, 3, 4; sd(x) / mean(x) = 0.5270463
    const double samples[] = {5, 1, 3, 2, 4};
    const struct farm_bw_figure figure = farm_bw_figure_of(samples, 5);
    cr_assert_eq(figure.samples, 5);
    cr_assert_float_eq(figure.median, 3, 1e-12);
    cr_assert_float_eq(figure.spread, 2.0 / 3, 1e-12);
    cr_assert_float_eq(figure.cv, 0.5270462767, 1e-9);
    cr_assert_eq(figure.least, 1);
    cr_assert_eq(figure.most, 5);
}

Test(bw, a_figure_of_no_samples_is_nothing_and_of_one_that) {
    const struct farm_bw_figure none = farm_bw_figure_of(NULL, 0);
    cr_assert_not(farm_bw_figure_is(&none));
    cr_assert(isnan(none.median) && isnan(none.spread) && isnan(none.cv));
    const struct farm_bw_figure one = farm_bw_figure_of((const double[]){1}, 1);
    cr_assert_eq(one.median, 1);
    cr_assert_eq(one.cv, 0);
}

Test(bw, a_note_has_each_sentence_once_and_ends_within_its_size) {
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    farm_bw_conditions_note(&conditions, "17 pages lie elsewhere. ");
    farm_bw_conditions_note(&conditions, "7 pages lie elsewhere. ");
    farm_bw_conditions_note(&conditions, "Arrays of %.1f MiB.", 0.5);
    farm_bw_conditions_note(&conditions, "7 pages lie elsewhere.");
    cr_assert_str_eq(conditions.note, "17 pages lie elsewhere. 7 pages lie elsewhere. Arrays of 0.5 MiB.");
    farm_bw_conditions_note(&conditions, "%.510s", (const char[511]){[0 ... 509] = 'b'});
    cr_assert_eq(strlen(conditions.note), FARM_BW_NOTE_BYTES - 1);
}

enum { MEMBERS = 5, ROUNDS = 200 };

struct meeting {
    struct farm_bw_team *team;
    _Atomic int arrived[ROUNDS];
    int early; // members that passed the barrier before all had arrived
    int calls[MEMBERS], cpu[MEMBERS];
};

static void meet_in_rounds(void *context, int member) {
    struct meeting *meeting = context;
    for (int round = 0; round < ROUNDS; round++) {
        atomic_fetch_add(&meeting->arrived[round], 1);
        farm_bw_team_meet(meeting->team);
        if (atomic_load(&meeting->arrived[round]) != MEMBERS) meeting->early++;
    }
    meeting->calls[member]++;
    meeting->cpu[member] = sched_getcpu();
}

static int first_cpu(void) {
    cpu_set_t set;
    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &set)) cpu++;
    return cpu;
}

Test(bw, members_of_a_team_wait_for_each_other_even_on_one_cpu) {
    static struct meeting meeting;
    const int cpu = first_cpu(), cpus[MEMBERS] = {cpu, cpu, cpu, cpu, cpu};
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    cr_assert_eq(farm_bw_team_open(cpus, MEMBERS, &meeting.team, &conditions, NULL), FARM_OK);
    cr_assert(conditions.pinned);
    farm_bw_team_run(meeting.team, meet_in_rounds, &meeting);
    cr_assert_eq(meeting.early, 0);
    for (int i = 0; i < MEMBERS; i++) {
        cr_assert_eq(meeting.calls[i], 1, "member %d", i);
        cr_assert_eq(meeting.cpu[i], cpu);
    }
    farm_bw_team_close(meeting.team);
}

Test(bw, a_team_without_the_right_to_pin_runs_and_notes_it) {
    struct farm_bw_conditions conditions = farm_bw_conditions_start();
    struct farm_bw_team *team;
    struct farm_error err;
    cr_assert_eq(farm_bw_team_open((const int[]){CPU_SETSIZE - 1}, 1, &team, &conditions, NULL), FARM_OK);
    cr_assert(!conditions.pinned && strstr(conditions.note, "pin"), "%s", conditions.note);
    farm_bw_team_close(team);
    cr_assert_eq(farm_bw_team_open(NULL, 0, &team, &conditions, &err), FARM_E_INVALID);
    farm_bw_team_close(NULL);
}
