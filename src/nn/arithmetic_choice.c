// farm_arithmetic_choose (arithmetic.h): an earlier choice from a file of lines "KEY<tab>PLAN", else a timing now; and
// the line for the log.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/time.h"
#include "nn/arithmetic.h"
#include "nn/layer.h"

enum { PLAN_MAX = FARM_ARITHMETIC_PLAN_BYTES };
enum { KERNELS_VERSION = 3 }; // raise it when what is timed changes: choices in users' files are then timed again

// What the choice depends on: CPU, instruction sets, oneDNN's version, network; from *sizes_at on, what a run's own
// file may differ in: numbers of rows, and the kernels that were timed.
static void make_key(const struct farm_arithmetic_request *request, char key[PLAN_MAX], size_t *sizes_at) {
    const struct farm_net *net = request->net;
    const dnnl_version_t *version = dnnl_version();
    uint64_t shapes = 14695981039346656037u; // FNV-1a over the ops, number by number
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_net_op *op = &net->ops[i];
        const int numbers[] = {(int)op->kind,     (int)op->activation, op->kernel,      op->stride,
                               op->skip,          op->in.channels,     op->in.height,   op->in.width,
                               op->out.channels,  op->out.height,      op->out.width,   op->pad_before[0],
                               op->pad_before[1], op->pad_after[0],    op->pad_after[1]};
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++)
            shapes = (shapes ^ (unsigned)numbers[k]) * 1099511628211u;
    }
    const struct farm_arithmetic most = farm_arithmetic_uniform(net, request->precision, (struct farm_form){0});
    snprintf(key, PLAN_MAX / 2, "%.128s, %s, isa %x, oneDNN %d.%d.%d, %.32s %016llx, stack %d, precision %d",
             request->cpu_name ? request->cpu_name : "unknown CPU", farm_conv_u8_path_name(most.path),
             (unsigned)dnnl_get_effective_cpu_isa(), version->major, version->minor, version->patch, net->spec.text,
             (unsigned long long)shapes, net->io.images * net->io.stack, (int)request->precision);
    *sizes_at = strlen(key);
    snprintf(key + *sizes_at, PLAN_MAX / 2, ", rows %d %d %d, kernels %d", request->train_rows, request->infer_rows,
             request->version_rows, KERNELS_VERSION);
}

// Of a form's type and way in a plan.
static char letter_of(struct farm_form form) {
    return form.bf16 ? 'b' : form.winograd ? 'w' : 'f';
}

void farm_arithmetic_write(const struct farm_net *net, const struct farm_arithmetic *a,
                           char plan[FARM_ARITHMETIC_PLAN_BYTES]) {
    int n = snprintf(plan, PLAN_MAX, "%d %d", (int)a->first, (int)a->path);
    for (int i = 0; i < net->op_count && n < PLAN_MAX; i++)
        n += snprintf(plan + n, (size_t)(PLAN_MAX - n), " %c%d", letter_of(a->forms[i]), a->forms[i].block);
}

bool farm_arithmetic_read(const struct farm_net *net, const char *plan, struct farm_arithmetic *a) {
    int first, path, n;
    *a = (struct farm_arithmetic){0};
    if (sscanf(plan, "%d %d%n", &first, &path, &n) != 2) return false;
    a->first = first == 0 ? FARM_CONV_U8_F32 : FARM_CONV_U8_I16;
    a->path = (enum farm_conv_u8_path)path;
    for (int i = 0; i < net->op_count; i++) {
        char type;
        int block, more;
        if (sscanf(plan + n, " %c%d%n", &type, &block, &more) != 2) return false;
        a->forms[i] = (struct farm_form){.bf16 = type == 'b', .block = block, .winograd = type == 'w'};
        if (letter_of(a->forms[i]) != type) return false;
        n += more;
    }
    return farm_arithmetic_check(net, a, NULL) == FARM_OK;
}

static bool find_plan(const char *path, const char *key, size_t length, const struct farm_net *net,
                      struct farm_arithmetic *out) {
    char plan[PLAN_MAX];
    return farm_file_find_value(path, key, length, plan, sizeof plan) && farm_arithmetic_read(net, plan, out);
}

// ---- the line for the log ----

__attribute__((format(printf, 2, 3))) static void append(char text[FARM_ARITHMETIC_TEXT], const char *format, ...) {
    const size_t used = strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + used, FARM_ARITHMETIC_TEXT - used, format, values);
    va_end(values);
}

static const char *op_name(const struct farm_net *net, int i) {
    if (i == net->op_count - 1) return "heads";
    static const char *const names[] = {[FARM_NET_OP_CONV] = "conv", [FARM_NET_OP_DENSE] = "dense",
                                        [FARM_NET_OP_JOIN] = "join", [FARM_NET_OP_LSTM] = "lstm",
                                        [FARM_NET_OP_POOL] = "pool", [FARM_NET_OP_RELU] = "relu",
                                        [FARM_NET_OP_NORM] = "norm", [FARM_NET_OP_ACTIVATION] = "activation"};
    return names[net->ops[i].kind];
}

static bool is_winograd(const struct farm_net *net, const struct farm_arithmetic *a, int i) {
    const struct farm_form form = a->forms[i];
    return form.winograd && farm_winograd_has(&net->ops[i], form.block);
}

// Ops with weights; neighbours of the same name and form share an entry.
static void describe(const struct farm_net *net, const struct farm_arithmetic *a, char text[FARM_ARITHMETIC_TEXT]) {
    int last = -1, same = 1; // the op of the entry before, and how many it stands for
    text[0] = '\0';
    for (int i = 0; i < net->op_count; i++) {
        const bool frames = i == 0 && net->io.frame_channels > 0;
        const char *layout = a->forms[i].block == 16 ? " nChw16c" : a->forms[i].block == 8 ? " nChw8c" : "";
        if (net->ops[i].weight < 0) continue;
        const bool shared = last >= 0 && (last > 0 || net->io.frame_channels == 0) &&
                            strcmp(op_name(net, last), op_name(net, i)) == 0 &&
                            farm_form_equal(a->forms[last], a->forms[i]) &&
                            is_winograd(net, a, last) == is_winograd(net, a, i);
        if (!shared && same > 1) append(text, " x%d", same);
        same = shared ? same + 1 : 1;
        last = i;
        if (shared) continue;
        if (*text != '\0') append(text, ", ");
        if (frames)
            append(text, "u8 conv %s %s", a->first == FARM_CONV_U8_I16 ? "i16" : "f32",
                   farm_conv_u8_path_name(a->path));
        else
            append(text, "%s %s%s%s", op_name(net, i), a->forms[i].bf16 ? "bf16" : "f32",
                   net->ops[i].in.height > 0 ? layout : "", is_winograd(net, a, i) ? " winograd" : "");
    }
}

// What computes op i, as executor.c chooses: oneDNN "conv", "dense" and "heads", kernels of our own the others.
static const char *kernel_name(const struct farm_net *net, const struct farm_arithmetic *a, int i) {
    return i == 0 && net->io.frame_channels > 0 ? "u8 conv" : is_winograd(net, a, i) ? "winograd" : op_name(net, i);
}

static void list_kernels(const struct farm_net *net, const struct farm_arithmetic *a, bool own,
                         char text[FARM_ARITHMETIC_TEXT]) {
    const char *before = own ? "; kernels of our own: " : "; oneDNN: ";
    for (int i = 0; i < net->op_count; i++) {
        const char *name = kernel_name(net, a, i);
        int first = i, count = 0;
        for (int j = net->op_count - 1; j >= 0; j--)
            if (strcmp(kernel_name(net, a, j), name) == 0) first = j, count++;
        if (first < i || own != (strcmp(name, "conv") && strcmp(name, "dense") && strcmp(name, "heads"))) continue;
        append(text, "%s%s", before, name);
        if (count > 1) append(text, " x%d", count);
        before = ", ";
    }
}

// The first form in bf16; without one Winograd's where oneDNN's blocks are AVX2's, as its kernels are; else the first.
// The same on all CPUs of the same instruction sets.
static struct farm_form fixed_form(const struct farm_form *forms, int count) {
    struct farm_form fixed = forms[0];
    for (int i = 0; i < count && !fixed.bf16; i++)
        if (forms[i].bf16 || (forms[i].winograd && forms[i].block == 8)) fixed = forms[i];
    return fixed;
}

enum farm_status farm_arithmetic_choose(const struct farm_arithmetic_request *request, struct farm_arithmetic *out,
                                        char text[FARM_ARITHMETIC_TEXT], struct farm_error *err) {
    const struct farm_net *net = request->net;
    struct farm_form forms[FARM_FORMS_MAX];
    char key[PLAN_MAX], plan[PLAN_MAX];
    size_t sizes_at;
    const int count = farm_arithmetic_forms(net, request->precision, forms);
    *out = farm_arithmetic_uniform(net, request->precision, count > 0 ? forms[0] : (struct farm_form){.bf16 = true});
    enum farm_status status = farm_arithmetic_check(net, out, err);
    if (status != FARM_OK) return status;
    if (net->io.frame_channels == 0) { // flat rows have one form
        describe(net, out, text);
        list_kernels(net, out, true, text);
        list_kernels(net, out, false, text);
        return FARM_OK;
    }
    make_key(request, key, &sizes_at);
    const bool in_run = find_plan(request->run_file, key, sizes_at, net, out); // whatever the sizes
    const bool in_user = !in_run && !request->fixed && find_plan(request->user_file, key, strlen(key), net, out);
    const bool timed = !in_run && !in_user && !request->fixed;
    const uint64_t start = farm_thread_cpu_ns();
    if (timed) status = farm_arithmetic_time(request, out, err);
    if (!in_run && request->fixed) *out = farm_arithmetic_uniform(net, request->precision, fixed_form(forms, count));
    if (status != FARM_OK) return status;
    const double seconds = 1e-9 * (double)(farm_thread_cpu_ns() - start);
    farm_arithmetic_write(net, out, plan);
    if (!in_run && request->train_rows > 0) farm_file_append_value(request->run_file, key, plan);
    if (timed) farm_file_append_value(request->user_file, key, plan);
    describe(net, out, text);
    if (timed)
        append(text, " (timed in %.2f s of CPU time)", seconds);
    else
        append(text, request->fixed ? " (fixed, not timed)" : " (as timed earlier)");
    list_kernels(net, out, true, text);
    list_kernels(net, out, false, text);
    return FARM_OK;
}
