// What a segment costs to set up: made, populated, verified, sealed, its descriptor handed over, opened by the other
// side with all checks, and that side's page table filled. The reference is a bare memfd of the same size in the same
// run: ftruncate and two shared mappings with MAP_POPULATE, one for each side. Sizes are those of small rings and of an
// actor's Atari rings; `huge` is what a farm asks for, 2 MiB pages where there are any. Each segment is written by one
// side and read by the other. One process, one thread, not pinned.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/time.h"
#include "common.h"
#include "shm/segment.h"

enum { SAMPLES = 31, RESULTS = 5, PAGE = 4096 };
static const size_t KIB = 1024, MIB = 1 << 20;

static void must(enum farm_status status, const struct farm_error *err) {
    if (!status) return;
    fprintf(stderr, "segment: %s\n", err->message);
    exit(1);
}

// One side's mark in each page is there for the other one.
static void check_pages(uint8_t *written, const uint8_t *read, size_t from, size_t bytes) {
    for (size_t at = from; at < bytes; at += PAGE) written[at] = (uint8_t)(at / PAGE * 7 + 1);
    for (size_t at = from; at < bytes; at += PAGE)
        farm_bench_check(read[at] == (uint8_t)(at / PAGE * 7 + 1), "what the other side wrote");
}

// Microseconds; *opened_us of it for the other side.
static double ours(size_t bytes, bool huge, double *opened_us) {
    const struct farm_segment_request request = {
        .kind = FARM_SEGMENT_UP, .bytes = bytes, .node = -1, .layout_hash = 7, .huge = huge};
    struct farm_segment made, opened;
    struct farm_error err;
    const uint64_t start = farm_now_ns();
    must(farm_segment_create(&request, &made, &err), &err);
    const uint64_t handed = farm_now_ns();
    const int fd = dup(made.fd_readonly); // what a fork does
    must(farm_segment_open(fd, false, FARM_SEGMENT_UP, 7, &opened, &err), &err);
    farm_segment_populate(&opened);
    const uint64_t end = farm_now_ns();
    check_pages((uint8_t *)made.header, (const uint8_t *)opened.header, FARM_SEGMENT_HEADER_BYTES, bytes);
    farm_segment_close(&opened);
    farm_segment_close(&made);
    *opened_us = (double)(end - handed) * 1e-3;
    return (double)(end - start) * 1e-3;
}

static double bare(size_t bytes, double *opened_us) {
    const uint64_t start = farm_now_ns();
    const int fd = memfd_create("bare", MFD_CLOEXEC);
    farm_bench_check(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0, "memfd");
    uint8_t *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    const uint64_t handed = farm_now_ns();
    const uint8_t *opened = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    const uint64_t end = farm_now_ns();
    farm_bench_check(made != MAP_FAILED && opened != MAP_FAILED, "mmap");
    check_pages(made, opened, 0, bytes);
    munmap((void *)opened, bytes);
    munmap(made, bytes);
    close(fd);
    *opened_us = (double)(end - handed) * 1e-3;
    return (double)(end - start) * 1e-3;
}

static void measure(struct farm_bench *bench, const char *name, const char *open_name, size_t bytes, bool huge) {
    double all[SAMPLES], opened[SAMPLES], bare_all[SAMPLES], bare_opened[SAMPLES];
    const double limit_s = bench->seconds / RESULTS;
    const uint64_t start = farm_now_ns();
    size_t samples = 0;
    while (samples < SAMPLES && (samples < 3 || (double)(farm_now_ns() - start) * 1e-9 < limit_s)) {
        bare_all[samples] = bare(bytes, &bare_opened[samples]);
        all[samples] = ours(bytes, huge, &opened[samples]);
        samples++;
    }
    farm_bench_add(bench, name, "us", "lower", all, samples, "bare memfd, both sides mapped and populated", bare_all,
                   samples, NAN);
    if (open_name)
        farm_bench_add(bench, open_name, "us", "lower", opened, samples, "bare mmap with MAP_POPULATE", bare_opened,
                       samples, NAN);
}

int main(int argc, char **argv) {
    struct farm_bench bench = {.name = "segment",
                               .about = "Setting up shared memory: made, populated, sealed, handed over, opened, "
                                        "against a bare memfd."};
    farm_bench_start(&bench, argc, argv, 10);
    measure(&bench, "setup_64k", NULL, 64 * KIB, false);
    measure(&bench, "setup_16m", "open_16m", 16 * MIB, false);
    measure(&bench, "setup_16m_huge", "open_16m_huge", 16 * MIB, true);
    return farm_bench_finish(&bench);
}
