// The parameter board, and the executors of actors that read it. Every answer of an executor is checked.
#include "board/executors.h"

int main(int argc, char **argv) {
    struct farm_bench bench = {.name = "board",
                               .about = "The parameter board against copies, loads and forward passes."};
    farm_bench_start(&bench, argc, argv, 40);
    bench_executors(&bench);
    return farm_bench_finish(&bench);
}
