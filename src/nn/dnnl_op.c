// See dnnl_op.h.
#include "nn/dnnl_op.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

// Of the room: measured, a primitive takes 1 MB at most, and the first matrix product 9 MB.
enum { ALIGNMENT = 64, ROOM_BYTES = 32 << 20, HUGE_BYTES = 2 << 20 };

static size_t round_up(size_t bytes) {
    return (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
}

static void *allocate(size_t rounded) {
    void *memory;
    if (posix_memalign(&memory, rounded < HUGE_BYTES ? ALIGNMENT : HUGE_BYTES, rounded) != 0) return NULL;
    if (rounded >= HUGE_BYTES)
        (void)madvise(memory, rounded / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE); // fewer TLB misses
    return memory;
}

void *farm_dnnl_alloc(size_t bytes) {
    void *memory = allocate(round_up(bytes));
    return memory ? memset(memory, 0, round_up(bytes)) : NULL;
}

enum farm_status farm_dnnl_fail(struct farm_error *err, const char *what, dnnl_status_t status) {
    if (status == dnnl_out_of_memory) return farm_fail(err, FARM_E_LIMIT, "%s: oneDNN is out of memory", what);
    return farm_fail(err, FARM_E_UNSUPPORTED, "%s: oneDNN %s on this CPU (its status %d)", what,
                     status == dnnl_unimplemented ? "has no such operation" : "fails", (int)status);
}

// oneDNN 2.x, for one, does not check the memory for the code that it generates: it crashes without it. Therefore
// nothing is made unless there is ample room.
static enum farm_status check_room(struct farm_error *err) {
    struct rlimit limit;
    void *room = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room != MAP_FAILED) {
        munmap(room, ROOM_BYTES);
        return FARM_OK;
    }
    const int error = errno;
    const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    errno = error;
    if (!limited)
        return farm_fail_errno(err, FARM_E_LIMIT, "no %d MiB of memory for the code that oneDNN generates",
                               ROOM_BYTES >> 20);
    return farm_fail_errno(err, FARM_E_LIMIT,
                           "no %d MiB of address space for the code that oneDNN generates: RLIMIT_AS allows %llu KiB; "
                           "raise it with `ulimit -v unlimited` (systemd: LimitAS=; docker: --ulimit as=)",
                           ROOM_BYTES >> 20, (unsigned long long)limit.rlim_cur >> 10);
}

// The code of matrix products, which oneDNN otherwise generates at the first run, when other threads may have taken the
// room.
static dnnl_status_t generate_product(void) {
    const float one = 1;
    float product;
    return dnnl_sgemm('N', 'N', 1, 1, 1, 1.0f, &one, 1, &one, 1, 0.0f, &product, 1);
}

enum farm_status farm_dnnl_open(struct farm_dnnl *dnnl, struct farm_error *err) {
    *dnnl = (struct farm_dnnl){0};
    const enum farm_status room = check_room(err);
    if (room) return room;
    dnnl_status_t status = generate_product();
    if (status == dnnl_success) status = dnnl_engine_create(&dnnl->engine, dnnl_cpu, 0);
    if (status == dnnl_success) status = dnnl_stream_create(&dnnl->stream, dnnl->engine, dnnl_stream_default_flags);
    if (status == dnnl_success) return FARM_OK;
    farm_dnnl_close(dnnl);
    return farm_dnnl_fail(err, "CPU engine", status);
}

static void drop_op(struct farm_dnnl_op *op) {
    for (int i = 0; i < op->arg_count; i++) dnnl_memory_destroy(op->args[i].memory);
    if (op->primitive != NULL) dnnl_primitive_destroy(op->primitive);
    *op = (struct farm_dnnl_op){0};
}

void farm_dnnl_close(struct farm_dnnl *dnnl) {
    for (struct farm_dnnl_op *op = dnnl->ops, *next; op != NULL; op = next) {
        next = op->next;
        drop_op(op);
    }
    farm_dnnl_mds_drop(dnnl);
    if (dnnl->stream != NULL) dnnl_stream_destroy(dnnl->stream);
    if (dnnl->engine != NULL) dnnl_engine_destroy(dnnl->engine);
    for (size_t i = 0; i < dnnl->kept_count; i++) free(dnnl->kept[i].memory);
    free(dnnl->kept);
    free(dnnl->scratch);
    *dnnl = (struct farm_dnnl){0};
}

// Owns `memory` from here on. NULL: there is no memory, or no room in the list.
static void *keep(struct farm_dnnl *dnnl, void *memory, void *pointer) {
    struct farm_dnnl_kept *kept = realloc(dnnl->kept, (dnnl->kept_count + 1) * sizeof *kept);
    if (kept != NULL) dnnl->kept = kept;
    if (kept != NULL && memory != NULL) {
        kept[dnnl->kept_count++] = (struct farm_dnnl_kept){memory, pointer, dnnl->packed_bytes};
        return memory;
    }
    free(memory);
    dnnl->lacking = true;
    return NULL;
}

void *farm_dnnl_keep(struct farm_dnnl *dnnl, size_t bytes) {
    return keep(dnnl, farm_dnnl_alloc(bytes), NULL);
}

static void set(void *pointer, const void *value) {
    memcpy(pointer, &value, sizeof value);
}

void farm_dnnl_keep_packed(struct farm_dnnl *dnnl, size_t bytes, void *pointer) {
    set(pointer, keep(dnnl, allocate(round_up(bytes)), pointer));
    dnnl->packed_bytes += round_up(bytes);
}

void farm_dnnl_point(struct farm_dnnl *dnnl, const void *block) {
    for (const struct farm_dnnl_kept *kept = dnnl->kept; kept < dnnl->kept + dnnl->kept_count; kept++)
        if (kept->pointer) set(kept->pointer, block ? (const char *)block + kept->at : kept->memory);
}

// Operations made earlier are pointed at the new memory when they run.
void farm_dnnl_reserve(struct farm_dnnl *dnnl, size_t bytes) {
    if (bytes <= dnnl->scratch_bytes) return;
    void *scratch = farm_dnnl_alloc(bytes);
    if (scratch == NULL) {
        dnnl->lacking = true;
        return;
    }
    free(dnnl->scratch);
    dnnl->scratch = scratch;
    dnnl->scratch_bytes = bytes;
}

static dnnl_status_t bind_new(struct farm_dnnl *dnnl, struct farm_dnnl_op *op,
                              const struct farm_dnnl_binding *binding) {
    dnnl_exec_arg_t *arg = &op->args[op->arg_count];
    arg->arg = binding->arg;
    const dnnl_status_t status = dnnl_memory_create(&arg->memory, binding->md, dnnl->engine,
                                                    binding->data == NULL ? DNNL_MEMORY_NONE : binding->data);
    if (status == dnnl_success) op->arg_count++;
    return status;
}

static dnnl_status_t bind_all(struct farm_dnnl *dnnl, const_dnnl_primitive_desc_t pd,
                              const struct farm_dnnl_binding *bindings, int count, struct farm_dnnl_op *op) {
    dnnl_status_t status = dnnl_primitive_create(&op->primitive, pd);
    for (int i = 0; i < count && status == dnnl_success; i++) status = bind_new(dnnl, op, &bindings[i]);
    const farm_dnnl_md scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    op->has_scratch = scratch != NULL && dnnl_memory_desc_get_size(scratch) > 0;
    if (status != dnnl_success || !op->has_scratch) return status;
    farm_dnnl_reserve(dnnl, dnnl_memory_desc_get_size(scratch));
    if (dnnl->lacking) return dnnl_out_of_memory;
    return bind_new(dnnl, op, &(struct farm_dnnl_binding){DNNL_ARG_SCRATCHPAD, scratch, dnnl->scratch});
}

enum farm_status farm_dnnl_op_make(struct farm_dnnl *dnnl, dnnl_primitive_desc_t pd, const char *what,
                                   const struct farm_dnnl_binding *bindings, int count, struct farm_dnnl_op *op,
                                   struct farm_error *err) {
    assert(count <= FARM_DNNL_BINDINGS_MAX);
    *op = (struct farm_dnnl_op){0};
    const enum farm_status room = check_room(err);
    const dnnl_status_t status = room ? dnnl_out_of_memory : bind_all(dnnl, pd, bindings, count, op);
    dnnl_primitive_desc_destroy(pd);
    if (room) return room;
    if (status != dnnl_success) {
        drop_op(op);
        return farm_dnnl_fail(err, what, status);
    }
    op->next = dnnl->ops;
    dnnl->ops = op;
    return FARM_OK;
}

enum farm_status farm_dnnl_reorder_make(struct farm_dnnl *dnnl, struct farm_dnnl_binding from,
                                        struct farm_dnnl_binding to, bool accumulate, struct farm_dnnl_op *op,
                                        struct farm_error *err) {
    const struct farm_dnnl_binding bindings[] = {{DNNL_ARG_FROM, from.md, from.data}, {DNNL_ARG_TO, to.md, to.data}};
    const struct farm_dnnl_pd copy = {.kind = FARM_DNNL_COPY, .in = from.md, .out = to.md, .accumulate = accumulate};
    dnnl_primitive_desc_t pd = NULL;
    const dnnl_status_t made = farm_dnnl_pd_make(dnnl, &copy, &pd);
    if (made != dnnl_success) return farm_dnnl_fail(err, "reorder", made);
    return farm_dnnl_op_make(dnnl, pd, "reorder", bindings, 2, op, err);
}

void farm_dnnl_op_bind(struct farm_dnnl_op *op, int arg, const void *data) {
    for (int i = 0; i < op->arg_count; i++) {
        if (op->args[i].arg != arg) continue;
        const dnnl_status_t status = dnnl_memory_set_data_handle(op->args[i].memory, (void *)(uintptr_t)data);
        assert(status == dnnl_success);
        return;
    }
    assert(!"the operation has no such argument");
}

void farm_dnnl_op_run(struct farm_dnnl *dnnl, struct farm_dnnl_op *op) {
    if (op->primitive == NULL) return;
    if (op->has_scratch) farm_dnnl_op_bind(op, DNNL_ARG_SCRATCHPAD, dnnl->scratch);
    const dnnl_status_t status = dnnl_primitive_execute(op->primitive, dnnl->stream, op->arg_count, op->args);
    assert(status == dnnl_success);
}
