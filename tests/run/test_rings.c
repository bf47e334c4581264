// The rings of many actors, made by several threads.
#include "run/rings.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ACTORS = 200 };

static struct farm_run_plan *plan;
static struct farm_run_rings rings;
static struct farm_error error;

static int count_files(const char *folder) {
    DIR *files = opendir(folder);
    int count = 0;
    cr_assert(files);
    while (readdir(files)) count++;
    closedir(files);
    return count;
}

static void make_plan(void) {
    plan = calloc(1, sizeof *plan);
    cr_assert(plan && (plan->machine = calloc(1, sizeof *plan->machine)) &&
              (plan->placement = calloc(1, sizeof *plan->placement)));
    cr_assert_eq(farm_machine_read(plan->machine, &(struct farm_machine_source){0}, &error), FARM_OK);
    plan->placement->actor_count = ACTORS;
    plan->placement->actor_cpus = plan->machine->allowed;
    for (int a = 0; a < ACTORS; a++)
        plan->placement->actor[a] = (struct farm_plan_actor){.cpu = -1, .cpu_node = -1, .memory_node = -1};
    plan->actors = plan->places = ACTORS;
    plan->shards = 1;
    plan->quiet = true;
    plan->ring_spec = farm_ring_spec_plain(1, 2, 4, FARM_U8, 8, 3);
}

static void free_plan(void) {
    farm_run_rings_free(&rings);
    free(plan->machine);
    free(plan->placement);
    free(plan);
}

TestSuite(rings, .init = make_plan, .fini = free_plan, .timeout = 30);

Test(rings, each_actor_has_its_own_and_no_thread_is_left) {
    const int before = count_files("/proc/self/task");
    cr_assert_eq(farm_run_rings_make(&rings, plan, &error), FARM_OK, "%s", error.message);
    for (uint32_t a = 0; a < ACTORS; a++) {
        cr_assert_eq(rings.ring[a].up.header->owner, a);
        cr_assert_eq(rings.ring[a].down.header->owner, a);
    }
    int tasks; // the kernel removes a joined thread's folder a little later
    for (int tries = 0; (tasks = count_files("/proc/self/task")) > before && tries < 1000; tries++) usleep(1000);
    cr_assert_eq(tasks, before);
}

Test(rings, actors_that_infer_have_a_board_on_each_of_their_nodes) {
    plan->board_parameters = 10;
    for (int a = 0; a < ACTORS; a += 2) plan->placement->actor[a].memory_node = 0; // the others: any
    cr_assert_eq(farm_run_rings_make(&rings, plan, &error), FARM_OK, "%s", error.message);
    cr_assert_eq(rings.board_count, 2);
    for (uint32_t a = 0; a < ACTORS; a++) {
        const struct farm_board *board = farm_board_near(rings.boards, rings.board_count, &rings.ring[a].down);
        cr_assert_eq(board->segment.header->node, a % 2 ? -1 : 0);
        cr_assert(board->count == 10 && board->buffers == FARM_BOARD_BUFFERS && board->packed_max > 60);
    }
    cr_assert_eq(farm_board_near(rings.boards + 1, 1, &rings.ring[0].down), rings.boards[1], "of a node without one");
    cr_assert_null(farm_board_near(NULL, 0, &rings.ring[0].down));
    const int before = count_files("/proc/self/fd");
    cr_assert_eq(farm_run_rings_make_boards(&rings, plan, &error), FARM_OK);
    cr_assert_eq(count_files("/proc/self/fd"), before);
}

Test(rings, one_that_fails_is_reported_and_the_others_are_freed) {
    const int before = count_files("/proc/self/fd");
    plan->placement->actor[ACTORS - 2].memory_node = 1022;
    cr_assert_eq(farm_run_rings_make(&rings, plan, &error), FARM_E_LIMIT);
    cr_assert(strstr(error.message, "NUMA node 1022"), "%s", error.message);
    farm_run_rings_free(&rings);
    memset(&rings, 0, sizeof rings);
    cr_assert_eq(count_files("/proc/self/fd"), before);
}
