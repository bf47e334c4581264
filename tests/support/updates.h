// 50 updates of a backend over real lanes beside those of PyTorch (tests/vectors/make_updates.py): the same windows,
// with ends of every kind, answers and initial parameters, drawn on both sides; the same settings, from its file.
#ifndef TESTS_SUPPORT_UPDATES_H
#define TESTS_SUPPORT_UPDATES_H

#include <criterion/criterion.h>
#include <math.h>

#include "../vectors/vectors.h"
#include "algo/ppo.h"
#include "algo/r2d2.h"
#include "kernels/random.h"
#include "rig.h"

enum {
    UPDATES = 50,
    UPDATES_FEW = 5, // the file has parameters after 1, 5 and 50
    UPDATES_LANES = 2,
    UPDATES_WIDTH = 4,
    UPDATES_UNROLL = 6,
    UPDATES_SIDE = 12, // pixels of a frame
    UPDATES_STACK = 2,
    UPDATES_FLAT = 5,
    UPDATES_ACTIONS = 4,
    UPDATES_SECOND = 3,  // choices of a second action
    UPDATES_CHOICES = 3, // for each of two integers
    UPDATES_COLUMNS = UPDATES_LANES * UPDATES_WIDTH,
    UPDATES_OPTIONS = 16,
    UPDATES_BYTES = 128104, // in the file
};
// The algorithms, as in the file.
enum { UPDATES_VTRACE, UPDATES_PPO, UPDATES_R2D2, UPDATES_DQN };
#define UPDATES_SCHEDULE 0.5f // all passes'

// As in the file.
struct update_case {
    char name[16];
    int32_t seed;
    int32_t frames;              // else vectors
    int32_t joined;              // frames in colour, vectors, choices, last action and reward
    int32_t separate;            // the net of this name, else mlp
    int32_t actions, dims;       // discrete ones, or if dims > 0 so many continuous ones
    int32_t squash, state_sigma; // their kind
    int32_t masked, normalise, algo, adam, loss_sum, epochs, passes;
    int32_t lstm, lstm_layers, burn_in;
    int32_t numbers; // how many follow: the parameters' change after 1, 5 and 50 updates; then a replay's priorities
    float lr, first_decay, second_decay, epsilon, grad_norm_clip, reward_clip, reward_scale;
    float option[UPDATES_OPTIONS];
    float terms[UPDATES][FARM_ALGO_TERMS_MAX], grad_norm[UPDATES];
};

struct update_run {
    struct rig rig;
    const struct update_case *c;
    uint64_t reborn; // the step that begins new episodes everywhere, as after an actor's death; 0: none
};

static inline bool update_replays(const struct update_case *c) {
    return c->algo == UPDATES_R2D2 || c->algo == UPDATES_DQN;
}

static inline double update_draw(const struct update_case *c, uint64_t column, uint64_t n, uint64_t what) {
    const uint64_t key = farm_random_mix(column ^ (uint64_t)c->seed << 32);
    return (double)(farm_random_mix(what ^ farm_random_mix(n ^ key)) >> 11) / 0x1p53;
}

static inline void update_add_input(struct farm_net_io *io, struct farm_net_input input) {
    io->flat += farm_net_input_width(&input);
    io->inputs[io->input_count++] = input;
}

// Fields of observations, the environment's actions, the net.
static inline void update_configure_spaces(struct update_run *run, struct farm_ring_spec *spec) {
    const struct update_case *c = run->c;
    struct farm_learner_config *learner = &run->rig.learner;
    struct farm_env_spec *env = &spec->env;
    *spec =
        farm_ring_spec_plain(UPDATES_LANES, UPDATES_WIDTH, 4 * UPDATES_UNROLL, FARM_F32, UPDATES_FLAT, UPDATES_ACTIONS);
    const struct farm_field_spec numbers = env->obs[0];
    *learner = test_learner_config(UPDATES_FLAT, UPDATES_ACTIONS, UPDATES_UNROLL);
    if (c->frames) test_learner_deeper_frames(learner, spec, UPDATES_SIDE, UPDATES_STACK);
    if (c->separate) learner->net = *net_spec("separate");
    struct farm_net_io *io = &learner->io;
    if (c->joined) {
        env->obs[0].rank = 3;
        env->obs[0].dims[2] = 3;
        env->obs[env->obs_count++] = numbers;
        env->obs[env->obs_count++] = (struct farm_field_spec){
            .name = "choices", .dtype = FARM_I32, .rank = 1, .dims = {2}, .choices = UPDATES_CHOICES};
        io->frame_channels = 3;
        io->interleaved = true;
    }
    if (c->normalise || c->joined) {
        io->flat = 0;
        update_add_input(io, (struct farm_net_input){.kind = FARM_INPUT_NUMBERS,
                                                     .count = UPDATES_FLAT,
                                                     .normalise = c->normalise,
                                                     .source = c->joined ? 1 : 0});
        io->normalise_rewards = c->normalise;
        io->normalise_frames = c->normalise && c->frames;
    }
    if (c->joined) {
        update_add_input(io, (struct farm_net_input){FARM_INPUT_ONE_HOT, 2, UPDATES_CHOICES, false, 2});
        update_add_input(
            io, (struct farm_net_input){FARM_INPUT_ONE_HOT, 1, UPDATES_ACTIONS, false, FARM_SOURCE_LAST_ACTION});
        update_add_input(io, (struct farm_net_input){FARM_INPUT_SIGN, 1, 0, false, FARM_SOURCE_LAST_REWARD});
    }
    if (c->actions == 2)
        env->action = (struct farm_action_spec){
            .kind = FARM_ACTION_MULTI_DISCRETE, .dims = 2, .sizes = {UPDATES_ACTIONS, UPDATES_SECOND}};
    if (c->dims) {
        env->action = (struct farm_action_spec){.kind = FARM_ACTION_CONTINUOUS, .dims = (uint32_t)c->dims};
        for (int d = 0; d < c->dims; d++) env->action.low[d] = -1.0f - (float)d, env->action.high[d] = 1 + 2 * (float)d;
    }
    if (c->masked)
        env->obs[env->obs_count++] = (struct farm_field_spec){
            .name = FARM_HEAD_MASK_NAME, .dtype = FARM_U8, .rank = 1, .dims = {farm_policy_outputs(&env->action)}};
    learner->head = (struct farm_head_options){.state_sigma = c->state_sigma,
                                               .squash = c->squash,
                                               .scale = true,
                                               .q = update_replays(c),
                                               .duelling = update_replays(c) && c->option[FARM_R2D2_DUELLING] > 0};
    struct farm_head head;
    cr_assert_eq(farm_head_make(env, learner->head, &head, NULL), FARM_OK);
    farm_ring_spec_answers(spec);
    if (c->squash) farm_ring_spec_sample(spec);
    io->actions = head.outputs;
    io->free_outputs = head.free_outputs;
    io->lstm = c->lstm;
    io->lstm_layers = c->lstm_layers;
    if (c->lstm)
        farm_ring_spec_state(spec, (uint32_t)(2 * c->lstm * c->lstm_layers),
                             c->burn_in ? (uint32_t)c->burn_in : UPDATES_UNROLL);
}

static inline void update_configure(struct update_run *run) {
    const struct update_case *c = run->c;
    struct farm_learner_config *learner = &run->rig.learner;
    struct farm_algo_config *algo = &learner->algo;
    static const struct farm_algo *const algos[] = {&farm_vtrace, &farm_ppo, &farm_r2d2, &farm_dqn};
    algo->algo = algos[c->algo];
    memcpy(algo->option, c->option, sizeof c->option);
    if (c->algo == UPDATES_PPO) {
        algo->option[FARM_PPO_ENTROPY_COST] /= UPDATES_SCHEDULE; // what is left of it is the case's
        algo->option[FARM_PPO_ENTROPY_SCHEDULE] = FARM_PPO_ENTROPY_LR;
    }
    algo->batch = UPDATES_COLUMNS;
    algo->recurrent = c->lstm > 0;
    algo->burn_in = (uint32_t)c->burn_in; // a divisor of the unroll
    algo->optimiser = c->adam ? FARM_OPTIMISER_ADAM : FARM_OPTIMISER_RMSPROP;
    algo->adam_beta1 = (double)c->first_decay;
    algo->adam_beta2 = algo->rmsprop_decay = (double)c->second_decay;
    algo->adam_epsilon = algo->rmsprop_epsilon = (double)c->epsilon;
    algo->grad_norm_clip = (double)c->grad_norm_clip;
    algo->reward_clip = (double)c->reward_clip;
    algo->reward_scale = (double)c->reward_scale;
    algo->loss_sum = c->loss_sum;
    learner->inference.batch_max = UPDATES_COLUMNS;
    learner->training.micro_batch = 4; // several pieces a pass
    learner->training.threads = 2;
    learner->training.group_count = 2; // one has a copy of the parameters
    learner->training.groups[0] = (struct farm_pool_group){.node = -1, .threads = 1};
    learner->training.groups[1] = (struct farm_pool_group){.node = 0, .threads = 1};
    run->rig.learning_rate = (double)c->lr;
    run->rig.schedule = (double)UPDATES_SCHEDULE;
    run->rig.passes = (uint32_t)c->passes;
    run->rig.epochs = (uint32_t)c->epochs;
}

// The initial weights, by tensor and place in it.
static inline void update_draw_params(struct update_run *run) {
    float *params = rig_params(&run->rig), *mask = malloc(run->rig.net.parameter_count * sizeof *mask);
    farm_net_trainable(&run->rig.net, mask);
    for (int t = 0; t < run->rig.net.tensor_count; t++) {
        const struct farm_tensor *tensor = &run->rig.net.tensors[t];
        const double bound = tensor->rank > 1 ? sqrt(3.0 / (double)(tensor->count / (size_t)tensor->dims[0])) : 0.1;
        for (size_t i = 0, at = tensor->offset; i < tensor->count; i++, at++)
            if (mask[at] > 0) params[at] = (float)(bound * (2 * update_draw(run->c, 1000 + (uint64_t)t, i, 0) - 1));
    }
    free(mask);
    run->rig.version = 1;
    must(run->rig.ops->state_changed(run->rig.backend, 1, 0, &run->rig.err), &run->rig.err);
    if (farm_algo_sets(&run->rig.plan)) must(run->rig.ops->copy(run->rig.backend, 1, &run->rig.err), &run->rig.err);
}

static inline void update_open_backend(struct update_run *run, const struct farm_backend_ops *ops) {
    must(rig_open_backend(&run->rig, ops), &run->rig.err);
    update_draw_params(run);
}

static inline struct update_run *update_open(const struct update_case *c, const struct farm_backend_ops *ops,
                                             enum farm_precision precision) {
    struct farm_ring_spec spec;
    struct update_run *run = calloc(1, sizeof *run);
    run->c = c;
    update_configure_spaces(run, &spec);
    update_configure(run);
    run->rig.learner.arithmetic.precision = precision;
    rig_open(&run->rig, spec, 1);
    update_open_backend(run, ops);
    return run;
}

// Another actor on the same ring.
static inline void update_reopen_actor(struct update_run *run) {
    farm_ring_close(&run->rig.actors[0]);
    run->rig.actors[0] = open_view(&run->rig.made[0], FARM_RING_ACTOR);
    for (uint32_t l = 0; l < UPDATES_LANES; l++) farm_lane_actor_take_over(rig_actor(&run->rig, l));
}

// Another learner, after rig_close_learner, and another actor on the same ring.
static inline void update_reopen(struct update_run *run) {
    update_reopen_actor(run); // first: a forked child unmaps addresses that the backend could get
    rig_open_lanes(&run->rig);
    update_open_backend(run, run->rig.ops);
    run->rig.n = run->rig.lanes.lanes[0].answered;
}

static inline void update_close(struct update_run *run) {
    rig_close(&run->rig);
    free(run);
}

// ---- windows ----

static inline bool update_boundary(const struct update_case *c, uint64_t column,
                                   uint64_t n) { // an episode ends between n and n + 1
    return update_draw(c, column, n, 1) < 0.15;
}

static inline unsigned update_flags(const struct update_case *c, uint64_t column, uint64_t n) {
    const double kind = update_draw(c, column, n, 2);
    const unsigned first = n == 0 || update_boundary(c, column, n - 1) ? FARM_STEP_FIRST : 0;
    if (!update_boundary(c, column, n)) return first;
    return first | (kind < 0.4   ? FARM_STEP_LAST | FARM_STEP_TERMINATED
                    : kind < 0.7 ? FARM_STEP_LAST | FARM_STEP_TRUNCATED
                                 : 0u); // abandoned
}

static inline float update_number(const struct update_case *c, uint64_t column, uint64_t n, uint64_t i) {
    const double number = 2 * update_draw(c, column, n, 1000 + i) - 1;
    return (float)(c->normalise ? ldexp(number, 2 * (int)i - 4) + (double)i : number);
}

static inline int32_t update_choice(const struct update_run *run, uint64_t column, uint64_t n, int d) {
    return (int32_t)(run->rig.head.sizes[d] * update_draw(run->c, column, n, 50 + (uint64_t)d));
}

// The action mask: the chosen actions and others, but nothing at an episode's last step.
static inline void update_permit(const struct update_run *run, uint64_t column, uint64_t n, uint8_t *mask) {
    const bool last = update_flags(run->c, column, n) & FARM_STEP_LAST;
    for (int o = 0; o < run->rig.head.outputs; o++)
        mask[o] = !last && update_draw(run->c, column, n, 60 + (uint64_t)o) < 0.5;
    for (int d = 0; d < run->rig.head.dims && !last; mask += run->rig.head.sizes[d++])
        mask[update_choice(run, column, n, d)] = 1;
}

static inline void update_publish(struct update_run *run) {
    const uint64_t n = run->rig.n;
    for (uint64_t column = 0; column < UPDATES_COLUMNS; column++) {
        struct farm_lane *lane = rig_actor(&run->rig, (uint32_t)column / UPDATES_WIDTH);
        const uint32_t env = column % UPDATES_WIDTH;
        cr_assert(farm_lane_actor_can_write(lane));
        for (size_t i = 0; run->c->frames && i < lane->obs_bytes[0]; i++)
            ((uint8_t *)farm_lane_obs(lane, 0, n, env))[i] = (uint8_t)(256 * update_draw(run->c, column, n, 100 + i));
        float *numbers = farm_lane_obs(lane, run->c->joined ? 1 : 0, n, env);
        for (size_t i = 0; (run->c->joined || !run->c->frames) && i < UPDATES_FLAT; i++)
            numbers[i] = update_number(run->c, column, n, i);
        for (size_t i = 0; run->c->joined && i < 2; i++)
            ((int32_t *)farm_lane_obs(lane, 2, n, env))[i] =
                (int32_t)(UPDATES_CHOICES * update_draw(run->c, column, n, 2000 + i));
        if (run->c->masked) update_permit(run, column, n, farm_lane_obs(lane, 1, n, env));
        farm_lane_flags(lane, n)[env] =
            (uint8_t)(update_flags(run->c, column, n) | (n && n == run->reborn ? FARM_STEP_FIRST : 0));
        farm_lane_reward(lane, n)[env] = (float)(3 * update_draw(run->c, column, n, 3) - 1.5);
    }
    for (uint32_t l = 0; l < UPDATES_LANES; l++) farm_lane_actor_publish(rig_actor(&run->rig, l));
    rig_take_in(&run->rig);
}

// To the newest answered step, in place of what inference has drawn.
static inline void update_write_answer(struct update_run *run, uint64_t column) {
    const struct farm_lane *lane = rig_lane(&run->rig, (uint32_t)column / UPDATES_WIDTH);
    const uint64_t n = run->rig.n - 1;
    const uint32_t env = column % UPDATES_WIDTH;
    float *policy = farm_lane_policy(lane, n, env);
    const struct farm_head *head = &run->rig.head;
    uint8_t *action = farm_lane_action(lane, n, env);
    for (int o = 0; o < head->outputs; o++) policy[o] = (float)(update_draw(run->c, column, n, 10 + (uint64_t)o) - 0.5);
    if (run->c->masked) farm_head_mask(head, farm_lane_obs(lane, 1, n, env), policy);
    for (int d = 0; d < head->dims; d++) {
        const float drawn = (float)((double)policy[d] + 2 * update_draw(run->c, column, n, 50 + (uint64_t)d) - 1);
        const int32_t choice = update_choice(run, column, n, d);
        const float number =
            (run->c->squash ? farm_tanh_action : farm_gaussian_action)(drawn, head->offset[d], head->scale[d]);
        const void *written = run->c->dims ? (const void *)&number : &choice;
        memcpy(action + (size_t)d * sizeof drawn, written, sizeof drawn);
        if (run->c->squash) ((float *)farm_lane_answer_at(lane, FARM_ANSWER_SAMPLE, n, env))[d] = drawn;
    }
    farm_lane_value(lane, n)[env] = (float)(2 * update_draw(run->c, column, n, 4) - 1);
}

// Inference answers the published step, as it brings observations to a device; drawn: then the draws are the answer.
static inline void update_answer(struct update_run *run, bool drawn) {
    must(rig_answer(&run->rig), &run->rig.err);
    for (uint64_t column = 0; drawn && column < UPDATES_COLUMNS; column++) update_write_answer(run, column);
}

// The next update. PPO trains before the last step is answered, as in the synchronous regime.
static inline void update_make(struct update_run *run) {
    struct rig *rig = &run->rig;
    const uint64_t last = rig->trained + rig->plan.shape.length - 1;
    const bool ppo = run->c->algo == UPDATES_PPO;
    if (ppo && rig->trained > 0) update_answer(run, true);
    while (rig->n < last) {
        update_publish(run);
        update_answer(run, true);
    }
    update_publish(run);
    if (!ppo) update_answer(run, true);
    must(rig_update(rig, false), &rig->err);
}

// ---- comparison ----

// Distance between the change of each tensor and PyTorch's, over the largest change so far (sizes [tensors]: of
// PyTorch's squares). change: PyTorch's, of the file's entries.
static inline void update_expect(const struct update_run *run, const float *initial, double *sizes, const float *change,
                                 uint64_t updates) {
    for (int t = 0; t < run->rig.net.tensor_count; t++) {
        const struct farm_tensor *tensor = &run->rig.net.tensors[t];
        const size_t step = tensor->count <= 256 ? 1 : tensor->count / 128 | 1;
        const double most = strncmp(tensor->name, "normalise.", 10) == 0 ? 1e-5 : 1e-4;
        double off = 0, size = 0;
        for (size_t i = tensor->offset; i < tensor->offset + tensor->count; i += step, change++) {
            const double ours = (double)rig_params(&run->rig)[i] - (double)initial[i];
            off += pow(ours - (double)*change, 2);
            size += pow((double)*change, 2);
        }
        sizes[t] = fmax(sizes[t], size);
        const double share = off > 0 ? sqrt(off / sizes[t]) : 0; // normalised frames are 0 in the first update
        cr_assert_leq(share, most, "%s, %s: the change of %s after %lu updates is off by %.2g of it", run->c->name,
                      run->rig.ops->name, tensor->name, updates, share);
    }
}

static inline void update_expect_stats(const struct update_run *run, const struct farm_pass_stats *stats, uint64_t k) {
    const double most = 1e-4 * (1 + (double)k / 50); // differences of f32 grow with the updates
    for (int term = 0; term < FARM_ALGO_TERMS_MAX; term++) {
        const double theirs = (double)run->c->terms[k][term];
        cr_assert_float_eq(stats->terms[term], theirs, most * (1 + fabs(theirs)),
                           "%s, %s: update %lu: term %d: %g, not %g", run->c->name, run->rig.ops->name, k, term,
                           stats->terms[term], theirs);
    }
    const double norm = (double)run->c->grad_norm[k];
    cr_assert_float_eq(stats->grad_norm, norm, 1e-4 * norm, "%s, %s: update %lu: norm %g, not %g", run->c->name,
                       run->rig.ops->name, k, stats->grad_norm, norm);
}

static inline size_t update_priorities(const struct update_case *c) {
    return update_replays(c) ? UPDATES * UPDATES_COLUMNS : 0;
}

// theirs: [UPDATES_COLUMNS]
static inline void update_expect_priorities(const struct update_run *run, const float *theirs, uint64_t k) {
    for (int i = 0; i < UPDATES_COLUMNS && update_replays(run->c); i++)
        cr_assert_float_eq(run->rig.pass_stats.priorities[i], theirs[i], 1e-4 * (1 + (double)k / 50),
                           "%s, %s: update %lu: priority %d", run->c->name, run->rig.ops->name, k, i);
}

// The next case of the file after c (NULL: the first one); NULL after the last one.
static inline const struct update_case *update_next(const struct update_case *c) {
    static _Alignas(8) uint8_t file[UPDATES_BYTES];
    if (!c) vectors_read("tests/vectors/updates.bin", file, sizeof file);
    const size_t numbers = c ? 3 * (size_t)c->numbers + update_priorities(c) : 0;
    const uint8_t *at = c ? (const uint8_t *)(c + 1) + numbers * sizeof(float) : file;
    return at < file + sizeof file ? (const void *)at : NULL;
}

// Runs `updates` updates of each case of the file.
static inline void updates_expect(const struct farm_backend_ops *ops, uint64_t updates) {
    for (const struct update_case *c = NULL; (c = update_next(c));) {
        struct update_run *run = update_open(c, ops, FARM_PRECISION_F32);
        const size_t bytes = run->rig.net.parameter_count * sizeof(float);
        const float *change = (const void *)(c + 1), *priorities = change + 3 * c->numbers;
        double sizes[FARM_TENSORS_MAX] = {0};
        float *initial = memcpy(malloc(bytes), rig_params(&run->rig), bytes);
        for (uint64_t k = 0; k < updates; k++) {
            update_make(run);
            update_expect_stats(run, &run->rig.pass_stats, k);
            update_expect_priorities(run, priorities + k * UPDATES_COLUMNS, k);
            if (k > 0 && k != UPDATES_FEW - 1 && k != UPDATES - 1) continue;
            update_expect(run, initial, sizes, change, k + 1);
            change += c->numbers;
        }
        free(initial);
        update_close(run);
    }
}

// Inference and training compute the same policy in the same arithmetic, in batches of other sizes, so perhaps in
// another order. Logits that differ by up to d give ratios within 1 +- 2d, the bound of |pi/mu - 1| in the first pass
// of each case by PPO, and, by Hoeffding's lemma, a KL divergence of at most d^2 / 2 (and the rounding of its sum). In
// f32 another order of n products moves a logit by n 2^-24 of their sizes; in int16 the first layer's sums are exact;
// in bf16 each layer's stored features may besides round to their other neighbour, 2^-8 of them.
static inline void updates_expect_on_policy(const struct farm_backend_ops *ops, enum farm_precision precision,
                                            double bound) {
    for (const struct update_case *c = NULL; (c = update_next(c));) {
        if (c->algo != UPDATES_PPO) continue;
        struct update_case own = *c;
        struct farm_pass_stats stats;
        own.option[FARM_PPO_CLIP] = (float)bound;
        own.passes = 0; // one pass over all
        own.lr = 0.1f;
        struct update_run *run = update_open(&own, ops, precision);
        struct rig *rig = &run->rig;
        for (; rig->n < UPDATES_UNROLL + (uint64_t)c->burn_in; update_answer(run, false)) update_publish(run);
        update_publish(run);
        for (int moved = 0; moved < 2; moved++) {
            enum farm_status status = rig_begin(rig, 0);
            if (!status) status = rig_passes(rig);
            must(status ? status : ops->finish(rig->backend, &stats, &rig->err), &rig->err);
            const double beyond = stats.terms[FARM_PPO_CLIPPED], kl = stats.terms[FARM_PPO_KL];
            cr_assert(moved ? beyond > 0 : beyond == 0 && fabs(kl) < stats.terms[0] * (bound * bound / 8 + 1e-6),
                      "%s, %s: %g of %g rows, %g nats", c->name, ops->name, beyond, stats.terms[0], kl);
        }
        update_close(run);
    }
}

// ---- parameter sets ----

// The value that inference answers to the present step by a set.
static inline float update_value_by(struct update_run *run, uint32_t set) {
    struct rig *rig = &run->rig;
    must(rig->ops->publish(rig->backend, set, ++rig->version, &rig->err), &rig->err);
    must(rig->ops->finish(rig->backend, &rig->pass_stats, &rig->err), &rig->err);
    must(rig_infer(rig), &rig->err);
    cr_assert_eq(*farm_lane_version(rig_lane(rig, 0), rig->n), rig->version);
    return farm_lane_value(rig_lane(rig, 0), rig->n)[0];
}

// Whether a set equals the one in training.
static inline bool update_set_is_online(const struct update_run *run, const char *name) {
    const struct farm_backend_state state = run->rig.ops->state(run->rig.backend);
    return memcmp(farm_backend_vector(&state, name), farm_backend_vector(&state, ""),
                  run->rig.net.parameter_count * sizeof(float)) == 0;
}

// A set of the plan keeps the parameters of its last copy, in state() under its name, and answers once published.
static inline void updates_expect_sets(const struct farm_backend_ops *ops, enum farm_precision precision) {
    const struct update_case *c = update_next(NULL);
    while (c->algo != UPDATES_VTRACE) c = update_next(c);
    struct update_run *run = update_open(c, ops, precision);
    struct rig *rig = &run->rig;
    rig_close_backend(rig);
    rig->plan.sets[0] = (struct farm_algo_set){"target", 1000};
    update_open_backend(run, ops);
    for (int moved = 0; moved < 2; moved++) {
        must(ops->copy(rig->backend, 1, &rig->err), &rig->err);
        cr_assert(update_set_is_online(run, "target"));
        update_make(run);
        cr_assert_not(update_set_is_online(run, "target"));
    }
    update_publish(run);
    const float online = update_value_by(run, FARM_SET_ONLINE);
    cr_assert_neq(update_value_by(run, 1), online);
    must(ops->copy(rig->backend, 1, &rig->err), &rig->err);
    cr_assert_eq(update_value_by(run, 1), online);
    cr_assert(update_set_is_online(run, "target"));
    must(ops->state_changed(rig->backend, rig->version, 0, &rig->err), &rig->err);
    cr_assert(update_set_is_online(run, "target"));
    update_close(run);
}

#endif
