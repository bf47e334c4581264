// oneDNN 2.x or 3.x as this folder uses it: primitives bound to memory once and run many times. One thread at a time
// may use a farm_dnnl and what was made from it; it need not be the thread that made them, because scratch memory
// belongs to the farm_dnnl and not, as is oneDNN's default, to a thread. Knows nothing of networks.
#ifndef FARM_NN_DNNL_OP_H
#define FARM_NN_DNNL_OP_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

// A layout in memory.
#if DNNL_VERSION_MAJOR < 3
typedef const dnnl_memory_desc_t *farm_dnnl_md;
#else
typedef const_dnnl_memory_desc_t farm_dnnl_md;
#endif

// Memory of farm_dnnl_keep or farm_dnnl_keep_packed.
struct farm_dnnl_kept {
    void *memory;
    void *pointer; // address of a piece's pointer, which farm_dnnl_point sets; else NULL
    size_t at;     // a piece's offset in a block
};

struct farm_dnnl {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    void *scratch; // shared by all operations, which run one after another
    size_t scratch_bytes;
    farm_dnnl_md *mds; // all that were made, each once
    size_t md_count;
    struct farm_dnnl_op *ops; // all that were made, a list
    struct farm_dnnl_kept *kept;
    size_t kept_count;
    size_t packed_bytes; // all pieces of farm_dnnl_keep_packed, one after another, each at a 64-byte boundary
    bool lacking;        // farm_dnnl_keep or farm_dnnl_reserve failed
};

enum { FARM_DNNL_BINDINGS_MAX = 4 };

// One argument of an operation: DNNL_ARG_..., its layout, its address (NULL: set later by farm_dnnl_op_bind).
struct farm_dnnl_binding {
    int arg;
    farm_dnnl_md md;
    void *data;
};

struct farm_dnnl_op {
    dnnl_primitive_t primitive; // NULL: empty
    int arg_count;              // with the scratch memory, which is last
    bool has_scratch;
    dnnl_exec_arg_t args[FARM_DNNL_BINDINGS_MAX + 1]; // owns the memory objects, not what they point at
    struct farm_dnnl_op *next;
};

// close drops all operations, layouts and memory that were made with it.
enum farm_status farm_dnnl_open(struct farm_dnnl *dnnl, struct farm_error *err);
void farm_dnnl_close(struct farm_dnnl *dnnl);

// A layout, or a copy of one that belongs to something else; it lives until farm_dnnl_close. NULL: no memory, or (make)
// no such layout.
farm_dnnl_md farm_dnnl_md_make(struct farm_dnnl *dnnl, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,
                               dnnl_format_tag_t tag);
farm_dnnl_md farm_dnnl_md_copy(struct farm_dnnl *dnnl, farm_dnnl_md md);
void farm_dnnl_mds_drop(struct farm_dnnl *dnnl); // by farm_dnnl_close

enum farm_dnnl_kind {
    FARM_DNNL_CONV,
    FARM_DNNL_PRODUCT,
    FARM_DNNL_COPY // changes type and layout
};

enum farm_dnnl_pass {
    FARM_DNNL_FORWARD, // in -> out
    FARM_DNNL_DATA,    // gradient by out -> gradient by in
    FARM_DNNL_WEIGHTS, // in, gradient by out -> gradients by weights and bias
    FARM_DNNL_PASSES
};

// A pass of an operation on oneDNN. in, out, weights, bias: of what it reads and writes, which may be gradients.
struct farm_dnnl_pd {
    enum farm_dnnl_kind kind;
    enum farm_dnnl_pass pass;
    dnnl_prop_kind_t prop; // the FORWARD pass's
    farm_dnnl_md in, out;
    farm_dnnl_md weights, bias;          // of CONV and PRODUCT
    dnnl_dims_t strides, before, after;  // of CONV; padding before and after
    const_dnnl_primitive_desc_t forward; // the forward pass's, for the other passes
    bool accumulate;                     // adds to its output
    dnnl_alg_kind_t then;                // applied to the output after that; 0: nothing
};

// dnnl_out_of_memory if a layout is NULL.
dnnl_status_t farm_dnnl_pd_make(struct farm_dnnl *dnnl, const struct farm_dnnl_pd *p, dnnl_primitive_desc_t *pd);

// Binds a descriptor, and destroys it in any case. `what` names the operation in errors. op must stay in place.
enum farm_status farm_dnnl_op_make(struct farm_dnnl *dnnl, dnnl_primitive_desc_t pd, const char *what,
                                   const struct farm_dnnl_binding *bindings, int count, struct farm_dnnl_op *op,
                                   struct farm_error *err);

// Makes a copy that changes type and layout; it adds to `to` if `accumulate`. Both bindings' arg is ignored.
enum farm_status farm_dnnl_reorder_make(struct farm_dnnl *dnnl, struct farm_dnnl_binding from,
                                        struct farm_dnnl_binding to, bool accumulate, struct farm_dnnl_op *op,
                                        struct farm_error *err);

// Points argument `arg` at `data`.
void farm_dnnl_op_bind(struct farm_dnnl_op *op, int arg, const void *data);

// Runs and waits; nothing for an empty operation. oneDNN reports only misuse here, so a failure aborts.
void farm_dnnl_op_run(struct farm_dnnl *dnnl, struct farm_dnnl_op *op);

// Zeroed memory at a 64-byte boundary, to be freed with `free`; NULL if there is none. Memory of 2 MiB or more begins
// at a 2 MiB boundary and lies in transparent 2 MiB pages, if the kernel has them.
void *farm_dnnl_alloc(size_t bytes);

// The same, freed by farm_dnnl_close. NULL sets `lacking`.
void *farm_dnnl_keep(struct farm_dnnl *dnnl, size_t bytes);

// The same for a piece of what a new version of the parameters is packed into: sets *pointer, a pointer to any object,
// which must stay in place. The memory is not zeroed: unless something is loaded there, the kernel need not give pages.
void farm_dnnl_keep_packed(struct farm_dnnl *dnnl, size_t bytes, void *pointer);

// Points all these pointers into a block of packed_bytes, which must not move while they do; NULL: at their own memory.
void farm_dnnl_point(struct farm_dnnl *dnnl, const void *block);

// Makes `scratch` at least so large, for kernels that run between oneDNN's; read the pointer at each run. Failure sets
// `lacking`.
void farm_dnnl_reserve(struct farm_dnnl *dnnl, size_t bytes);

// FARM_E_UNSUPPORTED or FARM_E_LIMIT: oneDNN could not do `what`.
enum farm_status farm_dnnl_fail(struct farm_error *err, const char *what, dnnl_status_t status);

#endif
