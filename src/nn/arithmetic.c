// See arithmetic.h: which forms exist, and which go together.
#include "nn/arithmetic.h"

#include "nn/layer.h"

static bool has_isa(unsigned isa) {
    return ((unsigned)dnnl_get_effective_cpu_isa() & isa) == isa; // sets of bits; richer ones hold the others'
}

// Do the channels of all pictures of this op, except the frames, come in whole blocks?
static bool fits_block(const struct farm_net *net, int i, int block) {
    const struct farm_net_op *op = &net->ops[i];
    if (block == 0) return true;
    return (op->out.height == 0 || op->out.channels % block == 0) &&
           (i == 0 || op->in.height == 0 || op->in.channels % block == 0);
}

// Can kernels/winograd.h compute any op but a first layer over frames?
static bool has_winograd(const struct farm_net *net, int block) {
    for (int i = net->io.frame_channels > 0; i < net->op_count; i++)
        if (farm_winograd_has(&net->ops[i], block)) return true;
    return false;
}

int farm_arithmetic_forms(const struct farm_net *net, enum farm_precision precision,
                          struct farm_form forms[FARM_FORMS_MAX]) {
    // The blocks of oneDNN's kernels of that width; below AVX2 it has no backward convolutions of blocks.
    int block = has_isa(dnnl_cpu_isa_avx512_core) ? 16 : has_isa(dnnl_cpu_isa_avx2) ? 8 : 0, count = 0;
    for (int i = 0; i < net->op_count; i++)
        if (!fits_block(net, i, block)) block = 0;
    const bool f32 = precision != FARM_PRECISION_BF16;
    const bool wanted =
        precision == FARM_PRECISION_BF16 || (precision == FARM_PRECISION_AUTO && net->io.frame_channels > 0);
    const bool bf16 = wanted && has_isa(dnnl_cpu_isa_avx512_core_bf16);
    if (!f32 && !bf16) return 0;
    if (net->io.frame_channels == 0) block = 0;
    // The first three are always timed: oneDNN has no fast kernel for some shapes in one of the layouts.
    if (f32) forms[count++] = (struct farm_form){.block = block};
    if (bf16) forms[count++] = (struct farm_form){.bf16 = true, .block = block};
    if (block > 0) forms[count++] = (struct farm_form){.bf16 = bf16};
    if (f32 && has_winograd(net, block)) forms[count++] = (struct farm_form){.block = block, .winograd = true};
    if (f32 && bf16 && block > 0) forms[count++] = (struct farm_form){0};
    return count;
}

struct farm_conv_u8_shape farm_arithmetic_first(const struct farm_net *net, const struct farm_arithmetic *arithmetic) {
    const struct farm_net_io *io = &net->io;
    const struct farm_net_op *op = &net->ops[0];
    const struct farm_form form = arithmetic->forms[0];
    return (struct farm_conv_u8_shape){.stack = io->images * io->stack,
                                       .channels = io->frame_channels,
                                       .height = io->height,
                                       .width = io->width,
                                       .kernel = op->kernel,
                                       .stride = op->stride,
                                       .pad_before = {op->pad_before[0], op->pad_before[1]},
                                       .pad_after = {op->pad_after[0], op->pad_after[1]},
                                       .outputs = op->out.channels,
                                       .block = form.block ? form.block : op->out.channels,
                                       .relu = op->activation == FARM_ACTIVATION_RELU,
                                       .bf16 = form.bf16,
                                       .precision = arithmetic->first,
                                       .path = arithmetic->path,
                                       .normalised = io->normalise_frames};
}

bool farm_arithmetic_set_path(const struct farm_net *net, int path, struct farm_arithmetic *arithmetic) {
    static const unsigned isas[] = {0, dnnl_cpu_isa_avx2, dnnl_cpu_isa_avx512_core_vnni};
    struct farm_conv_u8_shape shape = farm_arithmetic_first(net, arithmetic);
    shape.path = (enum farm_conv_u8_path)path;
    if (!farm_conv_u8_runs(&shape) || !has_isa(isas[path])) return false;
    arithmetic->path = shape.path;
    return true;
}

struct farm_arithmetic farm_arithmetic_uniform(const struct farm_net *net, enum farm_precision precision,
                                               struct farm_form form) {
    struct farm_arithmetic a = {.first = precision == FARM_PRECISION_F32 ? FARM_CONV_U8_F32 : FARM_CONV_U8_I16};
    for (int i = 0; i < net->op_count; i++) a.forms[i] = form;
    for (int path = 0; path < FARM_CONV_U8_PATHS && net->io.frame_channels > 0; path++)
        farm_arithmetic_set_path(net, path, &a);
    return a;
}

bool farm_form_equal(struct farm_form a, struct farm_form b) {
    return a.bf16 == b.bf16 && a.block == b.block && a.winograd == b.winograd;
}

bool farm_arithmetic_may_change(const struct farm_net *net, int i) {
    const enum farm_net_op_kind kind = net->ops[i].kind;
    if (i == 0 || kind == FARM_NET_OP_RELU || kind == FARM_NET_OP_LSTM || kind == FARM_NET_OP_NORM ||
        kind == FARM_NET_OP_ACTIVATION || (i == 1 && net->io.frame_channels > 0))
        return false;
    for (int j = i; j < net->op_count; j++)
        if (net->ops[j].skip >= 0) return net->ops[j].skip >= i;
    return true;
}

enum farm_status farm_arithmetic_check(const struct farm_net *net, const struct farm_arithmetic *arithmetic,
                                       struct farm_error *err) {
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_form form = arithmetic->forms[i];
        if (form.winograd && form.bf16) return farm_fail(err, FARM_E_INVALID, "Winograd's convolutions are f32");
        if (form.bf16 && !has_isa(dnnl_cpu_isa_avx512_core_bf16))
            return farm_fail(err, FARM_E_UNSUPPORTED,
                             "this CPU has no bf16 arithmetic (AVX512_BF16 or AMX); use precision auto or f32");
        if ((form.block != 0 && form.block != 8 && form.block != 16) || !fits_block(net, i, form.block))
            return farm_fail(err, FARM_E_INVALID, "op %d of network %s cannot have blocks of %d channels", i,
                             net->spec.text, form.block);
        if (i > 0 && !farm_arithmetic_may_change(net, i) && !farm_form_equal(form, arithmetic->forms[i - 1]))
            return farm_fail(err, FARM_E_INVALID, "op %d of network %s must have the form of op %d", i, net->spec.text,
                             i - 1);
    }
    if (net->io.frame_channels == 0) return FARM_OK;
    struct farm_arithmetic copy = *arithmetic;
    if (arithmetic->path < 0 || arithmetic->path >= FARM_CONV_U8_PATHS ||
        !farm_arithmetic_set_path(net, (int)arithmetic->path, &copy))
        return farm_fail(err, FARM_E_INVALID, "this CPU lacks instructions of the first layer's path");
    const struct farm_conv_u8_shape shape = farm_arithmetic_first(net, arithmetic);
    return farm_conv_u8_check(&shape, err);
}
