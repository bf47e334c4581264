// The parameter board: what a version costs its writer and its readers, the executors that read it, and the way to 64
// nodes. The files of bench/board hold the parts, each of which adds some rows. Data and answers are checked.
#include <string.h>

#include "board/executors.h"
#include "board/rows.h"
#include "board/tree.h"

static const struct {
    const char *name; // for --only
    void (*measure)(struct farm_bench *bench);
} PARTS[] = {
    {"see", board_row_see},         {"executors", bench_executors}, {"publish", board_row_publish},
    {"learner", board_row_learner}, {"tree", bench_tree},
};

int main(int argc, char **argv) {
    const char *only = NULL;
    const struct farm_cli_flag flags[] = {
        {"only", FARM_CLI_STRING, &only, "PART",
         "see, executors, publish, learner, or tree: two minutes, and only if named"}};
    struct farm_bench bench = {.name = "board",
                               .about = "The parameter board against copies, loads and forward passes.",
                               .flags = flags,
                               .flag_count = 1};
    farm_bench_start(&bench, argc, argv, 50);
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (only ? strcmp(only, PARTS[i].name) == 0 : PARTS[i].measure != bench_tree) PARTS[i].measure(&bench);
    return farm_bench_finish(&bench);
}
