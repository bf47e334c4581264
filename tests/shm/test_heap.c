// Node-bound memory of one process, from jemalloc's arenas if this executable is linked with it.
#include <criterion/criterion.h>
#include <errno.h>
#include <numaif.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/heap.h"

enum { PAGE = 4096 };

TestSuite(shm, .timeout = 30);

static struct farm_heap *open_heap(int node) {
    struct farm_heap *heap;
    struct farm_error err = {0};
    cr_assert_eq(farm_heap_open(node, &heap, &err), FARM_OK, "%s", err.message);
    return heap;
}

static void close_heap(struct farm_heap **heap) {
    farm_heap_close(*heap);
}

#define with_heap __attribute__((cleanup(close_heap))) struct farm_heap // closed at the end of its scope

Test(shm, blocks_are_aligned_apart_and_hold_what_is_written) {
    with_heap *heap = open_heap(-1);
    enum { BLOCKS = 64 };
    unsigned char *blocks[BLOCKS];
    size_t bytes[BLOCKS], align[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++) {
        align[i] = (size_t)1 << (i % 22); // up to 2 MiB
        bytes[i] = 1 + (i * 7919u) % 300000u;
        blocks[i] = farm_heap_alloc(heap, bytes[i], align[i]);
        cr_assert_not_null(blocks[i]);
        cr_assert_eq((uintptr_t)blocks[i] % align[i], 0);
        memset(blocks[i], (int)i, bytes[i]);
    }
    for (unsigned i = 0; i < BLOCKS; i++) {
        for (size_t b = 0; b < bytes[i]; b++) cr_assert(blocks[i][b] == i, "block %u overwritten at %zu", i, b);
        farm_heap_free(heap, blocks[i], bytes[i], align[i]);
    }
    farm_heap_free(heap, NULL, 1, 1);
    farm_heap_close(NULL);
}

static bool may_bind(void) {
    unsigned long node0 = 1;
    void *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mbind(page, PAGE, MPOL_PREFERRED, &node0, 8 * sizeof node0, 0) == 0;
}

Test(shm, every_page_of_a_block_is_bound_to_the_node) {
    with_heap *heap = open_heap(0);
    enum { BYTES = 8 << 20 };
    unsigned char *block = farm_heap_alloc(heap, BYTES, 64);
    cr_assert_not_null(block);
    memset(block, 1, BYTES);
    for (size_t at = 0; at < BYTES; at += PAGE) {
        void *page = block + at;
        int node = -1;
        if (move_pages(0, 1, &page, NULL, &node, 0)) cr_skip_test("move_pages(2) is refused here: %s", strerror(errno));
        cr_assert_eq(node, 0, "page %zu", at / PAGE);
    }
    if (!may_bind()) cr_skip_test("mbind(2) is refused here");
    cr_assert(farm_heap_is_bound(heap));
    struct farm_heap *missing;
    struct farm_error err = {0};
    cr_assert_eq(farm_heap_open(1000, &missing, &err), FARM_E_LIMIT);
    cr_assert(!missing && strstr(err.message, "NUMA node 1000"), "%s", err.message);
    int policy = -1;
    unsigned long nodes[16] = {0};
    cr_assert_eq(get_mempolicy(&policy, nodes, 8 * sizeof nodes, block + BYTES / 2, MPOL_F_ADDR), 0);
    cr_assert_eq(policy, MPOL_PREFERRED);
    cr_assert_eq(nodes[0], 1ul);
    farm_heap_free(heap, block, BYTES, 64);
}

static void *churn(void *argument) {
    struct farm_heap *heap = argument;
    void *held[16] = {0};
    for (unsigned i = 0; i < 2000; i++) {
        unsigned slot = i * 7 % 16;
        farm_heap_free(heap, held[slot], 5000 + slot, 64);
        held[slot] = farm_heap_alloc(heap, 5000 + slot, 64);
        if (!held[slot]) return heap;
        memset(held[slot], (int)slot, 5000 + slot);
    }
    for (unsigned slot = 0; slot < 16; slot++) farm_heap_free(heap, held[slot], 5000 + slot, 64);
    return NULL;
}

Test(shm, threads_share_a_heap) {
    with_heap *heap = open_heap(0);
    for (int i = 0; i < 100; i++) farm_heap_close(open_heap(0)); // arenas are reused
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) cr_assert_eq(pthread_create(&threads[i], NULL, churn, heap), 0);
    for (int i = 0; i < 2; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        cr_assert_null(failed);
    }
}
