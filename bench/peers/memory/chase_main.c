// The pointer chase of numactl's numademo as a program: chase_main BYTES makes its list, reports that, and for each
// line on stdin follows it once and prints nanoseconds a load. The list is a random path of 8-byte nodes that may miss
// some of them: numademo counts all nodes, so its latency is too low; this program counts the loads. List and loop are
// numademo's. Includes numademo.c of the source package numactl.
#include <time.h>

#define main numademo_main
#include "numademo.c"
#undef main

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    char line[16];
    msize = argc > 1 ? (unsigned long)atol(argv[1]) : 0;
    unsigned char *mem = msize >= 4096 ? aligned_alloc(4096, msize) : NULL;
    if (!mem) return 1;
    void **first = ptrchase_init(mem), **ptr;
    long loads = 1;
    for (ptr = first; *ptr; ptr = (void **)*ptr) loads++;
    printf("{\"loads\": %ld, \"nodes\": %lu}\n", loads, msize / sizeof(void *));
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        const double start = now_s();
        for (ptr = first; *ptr;) ptr = (void **)*ptr;
        const double took_s = now_s() - start;
        *(void *volatile *)first = *first; // the path is walked, whatever the optimiser thinks
        printf("{\"ns\": %.4f, \"end\": %d}\n", took_s * 1e9 / (double)loads, ptr != NULL);
        fflush(stdout);
    }
    return 0;
}
