// How each op of a network is computed on this CPU: the number format and layout of its rows, and the instructions with
// which the first layer reads u8 frames (always kernels/conv_u8.h's: pixels are never copied into f32 or bf16). Chosen
// once for a network, by timing, for inference and training together. Runs in the learner before its threads start.
#ifndef FARM_NN_ARITHMETIC_H
#define FARM_NN_ARITHMETIC_H

#include <stdbool.h>

#include "kernels/conv_u8.h"
#include "nn/net.h"

enum farm_precision {
    FARM_PRECISION_AUTO, // each op in the fastest; a first layer over frames in I16 (conv_u8.h)
    FARM_PRECISION_F32,  // f32 throughout
    FARM_PRECISION_BF16, // as AUTO, but all of oneDNN's products have bf16 inputs and f32 sums
};

// Rows of an op: its inputs, packed weights, outputs and their gradients. Gradients of parameters are f32.
struct farm_form {
    bool bf16;     // else f32
    int block;     // channels of a picture that lie together: 0 all of them (NHWC), 8 or 16 (nChw8c, nChw16c)
    bool winograd; // f32: kernels/winograd.h computes the convolutions that it can, oneDNN the remaining ones
};

struct farm_arithmetic {
    enum farm_conv_u8_precision first; // how a first layer over frames is computed
    enum farm_conv_u8_path path;       // by which kernel
    // Of each op. Op 0 over frames has the form of op 1, a residual block that of what it adds to, an LSTM that of the
    // op before; elsewhere rows are converted when the form changes.
    struct farm_form forms[FARM_NET_OPS_MAX];
};

// Writes the forms that every op of this network can have on this CPU under this precision; returns how many. 0: bf16
// is forced, and the CPU lacks it.
enum { FARM_FORMS_MAX = 5 };
int farm_arithmetic_forms(const struct farm_net *net, enum farm_precision precision,
                          struct farm_form forms[FARM_FORMS_MAX]);

// The same form for all ops, and the path with the widest instructions; nothing is timed.
struct farm_arithmetic farm_arithmetic_uniform(const struct farm_net *net, enum farm_precision precision,
                                               struct farm_form form);

// FARM_E_INVALID if a form does not fit an op or changes within a residual block, FARM_E_UNSUPPORTED if this CPU or
// executors cannot compute it.
enum farm_status farm_arithmetic_check(const struct farm_net *net, const struct farm_arithmetic *arithmetic,
                                       struct farm_error *err);

// One line, "1 2 b16 f0": how the first layer is computed, by which path, and each op's form. Reading fails if the line
// is not of this network, or farm_arithmetic_check refuses it here.
enum { FARM_ARITHMETIC_PLAN_BYTES = 1024 };
void farm_arithmetic_write(const struct farm_net *net, const struct farm_arithmetic *a,
                           char plan[FARM_ARITHMETIC_PLAN_BYTES]);
bool farm_arithmetic_read(const struct farm_net *net, const char *plan, struct farm_arithmetic *a);

bool farm_form_equal(struct farm_form a, struct farm_form b);

// May op i have another form than op i - 1? Not if both read or write what a residual block adds to, if op i - 1 is the
// first layer over frames, or if op i is an LSTM.
bool farm_arithmetic_may_change(const struct farm_net *net, int i);

// Sets the first layer's path if this CPU has it and ONEDNN_MAX_CPU_ISA allows as much.
bool farm_arithmetic_set_path(const struct farm_net *net, int path, struct farm_arithmetic *arithmetic);

// The shape of the first layer over frames.
struct farm_conv_u8_shape farm_arithmetic_first(const struct farm_net *net, const struct farm_arithmetic *arithmetic);

struct farm_arithmetic_request {
    const struct farm_net *net;
    enum farm_precision precision;
    int train_rows;       // in one forward and backward pass; 0: inference only
    int infer_rows;       // in one inference
    int version_rows;     // trained on between two versions of the parameters
    bool fixed;           // times nothing: bf16 if the CPU has it and `precision` allows, else Winograd's with AVX2
                          // alone; blocks, the widest path
    const char *cpu_name; // model; NULL: unknown
    // A file of the run's folder and one of the user's, read in this order; NULL: none. A run keeps its choice for all
    // sizes, and evaluation uses it. A new choice is appended to both (evaluation: to the user's).
    const char *run_file, *user_file;
};

// The cheapest form of each op, from op_seconds[form][op] (seconds a row) and a guess of the conversions' costs: a
// shortest path through a table of ops and forms (Bellman). Pure.
void farm_arithmetic_mix(const struct farm_net *net, int count, const struct farm_form *forms,
                         const double op_seconds[][FARM_NET_OPS_MAX], struct farm_form out[FARM_NET_OPS_MAX]);

// Times the forms and paths and returns the fastest, in about FARM_ARITHMETIC_SECONDS of CPU time: the first three
// forms, then as many more as fit.
#define FARM_ARITHMETIC_SECONDS 0.5
enum farm_status farm_arithmetic_time(const struct farm_arithmetic_request *request, struct farm_arithmetic *out,
                                      struct farm_error *err);

enum { FARM_ARITHMETIC_TEXT = 512 };

// The choice that a file holds for this CPU and network, else farm_arithmetic_time's; fixed: the run's, else the fixed
// one. text: one line for the log, e.g.
// "u8 conv i16 avx512, conv bf16 nChw16c x2, dense bf16, heads bf16 (timed in 0.21 s of CPU time); kernels of our own:
// u8 conv; oneDNN: conv x2, dense, heads". FARM_E_UNSUPPORTED if bf16 is forced and the CPU lacks it. Files that cannot
// be read or written are ignored.
enum farm_status farm_arithmetic_choose(const struct farm_arithmetic_request *request, struct farm_arithmetic *out,
                                        char text[FARM_ARITHMETIC_TEXT], struct farm_error *err);

#endif
