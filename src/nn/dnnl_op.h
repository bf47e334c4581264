// oneDNN 2.x as this folder uses it: primitives bound to memory once and then run many times. One thread at a time may
// use a farm_dnnl and what was made from it, but it need not be the thread that made it: scratch memory is ours, not
// oneDNN's thread-local one. Runs wherever networks run. Knows nothing of networks.
#ifndef FARM_NN_DNNL_OP_H
#define FARM_NN_DNNL_OP_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct farm_dnnl {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    void *scratch; // shared by all operations: they run one after another
    size_t scratch_bytes;
};

enum { FARM_DNNL_BINDINGS_MAX = 4 };

// One argument of an operation: DNNL_ARG_..., what lies there, where (NULL: given later by farm_dnnl_op_bind).
struct farm_dnnl_binding {
    int arg;
    const dnnl_memory_desc_t *md;
    void *data;
};

struct farm_dnnl_op {
    dnnl_primitive_t primitive; // NULL: nothing was made
    int arg_count;              // with the scratch memory, which is the last one where there is one
    bool has_scratch;
    dnnl_exec_arg_t
        args[FARM_DNNL_BINDINGS_MAX + 1]; // the memory objects are the operation's own, what they point at is not
};

enum farm_status farm_dnnl_open(struct farm_dnnl *dnnl, struct farm_error *err);
void farm_dnnl_close(struct farm_dnnl *dnnl);

// Attributes that every descriptor here is created with: scratch memory from the caller; outputs multiplied by `scale`;
// the result added to what stands in the output where `accumulate`; then `eltwise` (dnnl_alg_kind_undef: none). Destroy
// with dnnl_primitive_attr_destroy.
dnnl_status_t farm_dnnl_attr_make(dnnl_primitive_attr_t *attr, float scale, bool accumulate, dnnl_alg_kind_t eltwise);

// A descriptor with these attributes (scale 1). forward: the hint that backward descriptors need, else NULL.
dnnl_status_t farm_dnnl_pd_make(struct farm_dnnl *dnnl, const_dnnl_op_desc_t desc, const_dnnl_primitive_desc_t forward,
                                bool accumulate, dnnl_alg_kind_t eltwise, dnnl_primitive_desc_t *pd);

// Takes the descriptor (destroys it, also on errors) and binds it. `what` names the operation in errors.
enum farm_status farm_dnnl_op_make(struct farm_dnnl *dnnl, dnnl_primitive_desc_t pd, const char *what,
                                   const struct farm_dnnl_binding *bindings, int count, struct farm_dnnl_op *op,
                                   struct farm_error *err);

// Copies from `from` to `to` with change of type and layout: to = scale * from, or to += scale * from where
// `accumulate`.
enum farm_status farm_dnnl_reorder_make(struct farm_dnnl *dnnl, const struct farm_dnnl_binding *from,
                                        const struct farm_dnnl_binding *to, float scale, bool accumulate,
                                        struct farm_dnnl_op *op, struct farm_error *err);
void farm_dnnl_op_drop(struct farm_dnnl_op *op); // an empty one too

// Points argument `arg` at `data`.
void farm_dnnl_op_bind(struct farm_dnnl_op *op, int arg, const void *data);

// Runs and waits. oneDNN reports only misuse here, so a failure is a broken invariant and aborts.
void farm_dnnl_op_run(struct farm_dnnl *dnnl, struct farm_dnnl_op *op);

// Zeroed memory at a 64-byte boundary for `free`; NULL when there is none.
void *farm_dnnl_alloc(size_t bytes);

// FARM_E_UNSUPPORTED saying that oneDNN could not do `what`.
enum farm_status farm_dnnl_fail(struct farm_error *err, const char *what, dnnl_status_t status);

#endif
