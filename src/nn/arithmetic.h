// How each op of a network is computed on this CPU: the number format and the layout of its rows, and by which
// instructions the first layer reads u8 frames. Chosen once for a network, by timing, for inference and training
// together. Runs in the learner before its threads start, and in tests.
//
// A first layer over frames is always kernels/conv_u8.h's: pixels are never copied into f32 or bf16.
#ifndef FARM_NN_ARITHMETIC_H
#define FARM_NN_ARITHMETIC_H

#include <stdbool.h>

#include "kernels/conv_u8.h"
#include "nn/net.h"

enum farm_precision {
    FARM_PRECISION_AUTO, // each op in whichever is fastest here; a first layer over frames in I16 (conv_u8.h)
    FARM_PRECISION_F32,  // f32 throughout
    FARM_PRECISION_BF16, // as AUTO, but all products that oneDNN computes have bf16 inputs and f32 sums
};

// Rows of an op: its inputs, packed weights, outputs and their gradients. Gradients of parameters are f32.
struct farm_form {
    bool bf16; // else f32
    int block; // channels of a picture that lie together: 0 all of them (NHWC), 8 or 16 (nChw8c, nChw16c)
};

struct farm_arithmetic {
    enum farm_conv_u8_precision first; // of a first layer over frames
    enum farm_conv_u8_path path;       // likewise
    // Of each op. Op 0 over frames has that of op 1, and a residual block that of what it adds to; elsewhere rows are
    // converted when the form changes.
    struct farm_form forms[FARM_NET_OPS_MAX];
};

// The forms that every op of this network can have on this CPU under this precision, at most FARM_FORMS_MAX; returns
// how many. 0: bf16 is forced, and the CPU lacks it.
enum { FARM_FORMS_MAX = 4 };
int farm_arithmetic_forms(const struct farm_net *net, enum farm_precision precision,
                          struct farm_form forms[FARM_FORMS_MAX]);

// The same form for all ops, and the path with the most instructions; nothing is timed.
struct farm_arithmetic farm_arithmetic_uniform(const struct farm_net *net, enum farm_precision precision,
                                               struct farm_form form);

// Can executors compute it? FARM_E_INVALID if a form does not fit an op or changes within a residual block.
enum farm_status farm_arithmetic_check(const struct farm_net *net, const struct farm_arithmetic *arithmetic,
                                       struct farm_error *err);

bool farm_form_equal(struct farm_form a, struct farm_form b);

// May op i have another form than op i - 1? Not where both read or write what a residual block adds to, nor where op
// i - 1 is the first layer over frames.
bool farm_arithmetic_may_change(const struct farm_net *net, int i);

// Takes the path for the first layer if this CPU has it, and oneDNN's limit (ONEDNN_MAX_CPU_ISA) allows as much.
bool farm_arithmetic_take_path(const struct farm_net *net, int path, struct farm_arithmetic *arithmetic);

// The first layer over frames.
struct farm_conv_u8_shape farm_arithmetic_first(const struct farm_net *net, const struct farm_arithmetic *arithmetic);

struct farm_arithmetic_request {
    const struct farm_net *net;
    enum farm_precision precision;
    int train_rows;       // of one forward and backward pass; 0: inference alone
    int infer_rows;       // of one inference
    int version_rows;     // that are trained on between two versions of the parameters
    const char *cpu_name; // model; NULL: unknown
    // A file of the run's folder and one of the user's, read in this order; NULL: none. A run keeps its choice whatever
    // the sizes, and evaluation takes it over. What is chosen is written to both (evaluation: to the user's).
    const char *run_file, *user_file;
};

// The cheapest form of each op, from what each costs (op_seconds[form][op], seconds a row) and a guess of what
// conversions cost: a shortest path through a table of ops and forms (Bellman). Pure.
void farm_arithmetic_mix(const struct farm_net *net, int count, const struct farm_form *forms,
                         const double op_seconds[][FARM_NET_OPS_MAX], struct farm_form out[FARM_NET_OPS_MAX]);

// Times the forms and paths, and gives the fastest. Takes about FARM_ARITHMETIC_SECONDS of CPU time at most: beyond f32
// and bf16 once each, what does not fit is not tried.
#define FARM_ARITHMETIC_SECONDS 0.5
enum farm_status farm_arithmetic_time(const struct farm_arithmetic_request *request, struct farm_arithmetic *out,
                                      struct farm_error *err);

enum { FARM_ARITHMETIC_TEXT = 512 };

// The choice that a file holds for this CPU and network, else what farm_arithmetic_time gives. told: one line for the
// log, e.g. "u8 conv i16 avx512, conv bf16 nChw16c x2, dense bf16, heads bf16 (timed in 0.21 s of CPU time)". Errors:
// FARM_E_UNSUPPORTED if bf16 is forced and the CPU lacks it. Files that cannot be read or written are ignored.
enum farm_status farm_arithmetic_choose(const struct farm_arithmetic_request *request, struct farm_arithmetic *out,
                                        char told[FARM_ARITHMETIC_TEXT], struct farm_error *err);

#endif
