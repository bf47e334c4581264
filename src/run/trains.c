// See trains.h.
#include "run/trains.h"

#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "kernels/head.h"
#include "ring/spec.h"

enum { ONE_HOT_MAX = 1 << 16 };

static bool is_mask(const struct farm_field_spec *field) {
    return strcmp(field->name, FARM_HEAD_MASK_NAME) == 0;
}

static bool has_images(const struct farm_env_spec *env) {
    bool found = false;
    for (uint32_t f = 0; f < env->obs_count; f++) found |= farm_field_is_image(&env->obs[f]) && !is_mask(&env->obs[f]);
    return found;
}

// The first image field decides the shape of all.
static enum farm_status add_image(const struct farm_env_spec *env, uint32_t f, struct farm_net_io *io,
                                  struct farm_error *err) {
    const struct farm_field_spec *field = &env->obs[f], *first = io->images ? &env->obs[io->image_source[0]] : field;
    const struct farm_image image = farm_field_image(field);
    if (field->rank != first->rank || memcmp(field->dims, first->dims, field->rank * sizeof *field->dims) != 0)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "observation fields '%s' and '%s' are images of different shapes: images of one shape can be "
                         "trained (or small ones as f32)",
                         first->name, field->name);
    io->image_source[io->images++] = (int)f;
    io->interleaved = field->rank == 3 && !image.planes;
    io->frame_channels = (int)image.channels;
    io->height = (int)image.height;
    io->width = (int)image.width;
    return FARM_OK;
}

static enum farm_status add_flat(const struct farm_env_spec *env, uint32_t f, struct farm_net_io *io,
                                 struct farm_error *err) {
    const struct farm_field_spec *field = &env->obs[f];
    struct farm_net_input *input = &io->inputs[io->input_count++];
    *input = (struct farm_net_input){.count = (int)farm_field_values(field), .source = (int)f};
    if (field->dtype == FARM_F32) input->kind = FARM_INPUT_NUMBERS;
    if (field->dtype == FARM_I32) input->kind = field->choices ? FARM_INPUT_ONE_HOT : FARM_INPUT_WHOLE;
    if (field->dtype == FARM_U8) {
        input->kind = FARM_INPUT_BYTES;
        input->choices = field->choices == 0 ? 256 : field->choices == 1 ? 2 : (int)field->choices; // a divisor of 1
    }
    if (input->kind == FARM_INPUT_ONE_HOT) {
        const uint64_t numbers = (uint64_t)input->count * field->choices;
        if (numbers > ONE_HOT_MAX)
            return farm_fail(err, FARM_E_UNSUPPORTED,
                             "observation field '%s': %d integers of %u choices are %s numbers one-hot, at most %d can "
                             "be trained; without choices, or as f32, they are %d",
                             field->name, input->count, field->choices, farm_format_count((double)numbers).text,
                             ONE_HOT_MAX, input->count);
        input->choices = (int)field->choices;
    }
    io->flat += farm_net_input_width(input);
    return FARM_OK;
}

static enum farm_status choose_io(const struct farm_env_spec *env, const struct farm_recipe *recipe,
                                  struct farm_net_io *io, struct farm_error *err) {
    struct farm_head head;
    *io = (struct farm_net_io){.stack = (int)recipe->stack, .actions = (int)farm_policy_outputs(&env->action)};
    enum farm_status status = farm_head_make(env, farm_run_head_options(recipe), &head, err);
    if (status) return status;
    io->free_outputs = head.free_outputs;
    io->biased_outputs = env->action.kind == FARM_ACTION_CONTINUOUS ? head.dims : 0; // log sigma
    for (uint32_t f = 0; f < env->obs_count && !status; f++) {
        const struct farm_field_spec *field = &env->obs[f];
        if (!is_mask(field))
            status = farm_field_is_image(field) ? add_image(env, f, io, err) : add_flat(env, f, io, err);
    }
    if (status) return status;
    if (!io->images && !io->input_count)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "the observation has no field besides '" FARM_HEAD_MASK_NAME "': a network needs one to read");
    if (io->images || recipe->stack == 1) return FARM_OK;
    return farm_fail(err, FARM_E_USAGE, "stack: flat observations cannot be stacked (--stack 1)");
}

// What the recipe adds to the observation: statistics, the last action and the last reward.
static enum farm_status add_options(const struct farm_env_spec *env, const struct farm_recipe *recipe,
                                    struct farm_net_io *io, struct farm_error *err) {
    const struct farm_action_spec *action = &env->action;
    struct farm_net_input last = {
        .kind = FARM_INPUT_ONE_HOT, .count = (int)action->dims, .source = FARM_SOURCE_LAST_ACTION};
    io->lstm = (int)recipe->lstm;
    io->lstm_layers = recipe->lstm ? (int)recipe->lstm_layers : 0;
    io->normalise_rewards = recipe->normalise_rewards;
    io->normalise_frames = recipe->normalise_observations && io->images;
    io->bias_start = (float)recipe->log_sigma;
    for (int i = 0; i < io->input_count; i++)
        io->inputs[i].normalise = recipe->normalise_observations &&
                                  (io->inputs[i].kind == FARM_INPUT_NUMBERS || io->inputs[i].kind == FARM_INPUT_WHOLE);
    if (!recipe->last_inputs) return FARM_OK;
    if (io->input_count + 2 > FARM_NET_INPUTS_MAX)
        return farm_fail(err, FARM_E_UNSUPPORTED, "last_inputs: a network reads at most %d fields beside them, not %d",
                         FARM_NET_INPUTS_MAX - 2, io->input_count);
    if (action->kind == FARM_ACTION_CONTINUOUS)
        last.kind = recipe->scale_actions ? FARM_INPUT_SCALED : FARM_INPUT_NUMBERS;
    for (uint32_t d = 0; d < action->dims && last.kind == FARM_INPUT_SCALED; d++)
        farm_head_scale(action, d, &io->last_offset[d], &io->last_scale[d]);
    for (uint32_t d = 0; d < action->dims && last.kind == FARM_INPUT_ONE_HOT; d++)
        if ((int)action->sizes[d] > last.choices) last.choices = (int)action->sizes[d];
    io->inputs[io->input_count++] = last;
    io->inputs[io->input_count++] =
        (struct farm_net_input){.kind = FARM_INPUT_SIGN, .count = 1, .source = FARM_SOURCE_LAST_REWARD};
    io->flat += farm_net_input_width(&last) + 1;
    return FARM_OK;
}

// The net of key net "auto": for frames, "shallow", or "deep" if they are too small for its first layers.
static const char *choose_net(const struct farm_net_io *io) {
    struct farm_net made;
    if (!io->frame_channels) return "mlp";
    return farm_net_make(farm_net_find("shallow", NULL), io, &made, NULL) ? "deep" : "shallow";
}

struct farm_head_options farm_run_head_options(const struct farm_recipe *recipe) {
    return (struct farm_head_options){
        .state_sigma = strcmp(recipe->sigma, "state") == 0, .squash = recipe->squash, .scale = recipe->scale_actions};
}

enum farm_status farm_run_trains(const struct farm_env_spec *env, struct farm_recipe *recipe, struct farm_net_io *io,
                                 struct farm_error *err) {
    struct farm_net made;
    enum farm_status status = farm_recipe_vary(recipe, env->action.kind == FARM_ACTION_CONTINUOUS, err);
    if (status) return status;
    // A shipped recipe stacks the frames of its family; the user may have chosen an observation without frames.
    if (!has_images(env) && !farm_recipe_set_by(recipe, "stack", FARM_LAYER_FILE)) recipe->stack = 1;
    status = choose_io(env, recipe, io, err);
    if (!status) status = add_options(env, recipe, io, err);
    if (status) return status;
    // Likewise its net.
    const struct farm_net_spec *net = farm_net_find(recipe->net, err);
    const bool shipped =
        farm_recipe_set_by(recipe, "net", FARM_LAYER_SHIPPED) && !farm_recipe_set_by(recipe, "net", FARM_LAYER_FILE);
    if (strcmp(recipe->net, "auto") == 0 || (shipped && net && farm_net_make(net, io, &made, err))) {
        snprintf(recipe->net, sizeof recipe->net, "%s", choose_net(io));
        net = farm_net_find(recipe->net, err);
    }
    return net && !farm_net_make(net, io, &made, err) ? FARM_OK : farm_fail_in(err, FARM_E_USAGE, "net");
}

// ---- deterministic runs ----

// Steps of an environment between checkpoints, several games: at each of them the present games are cut off.
enum { STEPS_BETWEEN = 20000, METRICS_LINES = 100 };

static bool set_by_user(const struct farm_recipe *recipe, const char *key) {
    return farm_recipe_set_by(recipe, key, FARM_LAYER_FILE);
}

static enum farm_status refuse_deterministic(const struct farm_recipe *recipe, bool listens, struct farm_error *err) {
    const char *why = NULL;
    if (recipe->seconds > 0 && set_by_user(recipe, "seconds"))
        why = "--seconds ends a run at another update each time: end it by --frames N, or by Ctrl-C at its next "
              "checkpoint";
    else if (listens)
        why = "--listen: actors of other machines join at any moment; leave one of the two out";
    else if (strcmp(recipe->regime, "async") == 0 && set_by_user(recipe, "regime"))
        why = "--regime async trains on windows in the order of their arrival: --regime sync, or leave it out";
    else if (strcmp(recipe->device, "cuda") == 0)
        why = "--device cuda: cuDNN and cuBLASLt promise no order of their sums; --device cpu";
    else if (recipe->infer_threads > 1)
        why = "--infer-threads above 1, which count frames and games in an order that their timing decides: "
              "--infer-threads 1, or leave it out";
    else if (recipe->eval_every && set_by_user(recipe, "eval_every"))
        why = "--eval-every plays beside the training, and its results come at any moment: keep all checkpoints "
              "(--checkpoints-keep 0) and play them by `farm eval` afterwards";
    return why ? farm_fail(err, FARM_E_USAGE, "--deterministic and %s", why) : FARM_OK;
}

enum farm_status farm_run_deterministic_settle(struct farm_recipe *recipe, bool listens, struct farm_error *err) {
    const enum farm_status status = refuse_deterministic(recipe, listens, err);
    if (status) return status;
    recipe->seconds = 0;
    recipe->eval_every = 0;
    recipe->infer_threads = 1;
    snprintf(recipe->regime, sizeof recipe->regime, "sync");
    snprintf(recipe->device, sizeof recipe->device, "cpu");
    if (!recipe->checkpoint_updates) recipe->checkpoint_updates = 1 + (STEPS_BETWEEN - 1) / recipe->unroll;
    if (!recipe->metrics_updates) recipe->metrics_updates = 1 + (recipe->checkpoint_updates - 1) / METRICS_LINES;
    return FARM_OK;
}
