// See r2d2.h.
#include "algo/r2d2.h"

#include "algo/algo.h"

#define KEY(option, kind, name, value, ...) [FARM_R2D2_##option] = {#name, FARM_RECIPE_##kind, 0, value, __VA_ARGS__}

// Both tables' keys, with their defaults.
#define KEYS(discount_text, n_step_text, target_every_text, rescale_text, loss_text)                                   \
    KEY(DISCOUNT, DOUBLE, discount, discount_text, .most = 1, .help = "gamma, for each step"),                         \
        KEY(N_STEP, WHOLE, n_step, n_step_text, .least = 1, .most = 64, .uses = FARM_USE_FPS,                          \
            .help = "rewards before a target reads the value of an observation"),                                      \
        KEY(TARGET_EVERY, WHOLE, target_every, target_every_text, .least = 1, .most = 1e9,                             \
            .help = "updates between copies of the parameters to the target network"),                                 \
        KEY(DOUBLE, CHOICE, double, "true", .choices = "false|true",                                                   \
            .help = "the network in training chooses the action whose value the target network gives"),                \
        KEY(DUELLING, CHOICE, duelling, "true", .choices = "false|true", .uses = FARM_USE_NET,                         \
            .help = "action-values are the state's value plus advantages of mean 0"),                                  \
        KEY(RESCALE, CHOICE, rescale, rescale_text, .choices = "false|true",                                           \
            .help = "the network learns h(Q) = sign(Q) (sqrt(|Q| + 1) - 1) + 0.001 Q, for rewards of any size"),       \
        KEY(LOSS, CHOICE, loss, loss_text, .choices = "huber|square",                                                  \
            .help = "of a target's error; huber: linear beyond 1")

static const struct farm_recipe_key r2d2_keys[] = {
    KEYS("0.997", "5", "2500", "true", "square"),
    KEY(PRIORITY_MAX, DOUBLE, priority_max, "0.9", .most = 1,
        .help = "share of the largest error in a window's priority; the rest is the mean's"),
};
static const struct farm_recipe_key dqn_keys[] = {KEYS("0.99", "3", "300", "false", "huber")};

// Windows of n steps behind T transitions, each of which has all its rewards.
static void plan_steps(const struct farm_algo_config *config, struct farm_algo_plan *plan) {
    plan->bootstrap = (uint32_t)config->option[FARM_R2D2_N_STEP];
    plan->shape.length = plan->shape.burn_in + plan->shape.stride + plan->bootstrap;
    plan->sets[0] = (struct farm_algo_set){"target", (uint64_t)config->option[FARM_R2D2_TARGET_EVERY]};
}

static enum farm_status plan_r2d2(const struct farm_algo_config *config, struct farm_algo_plan *plan,
                                  struct farm_error *err) {
    if (config->option[FARM_R2D2_N_STEP] >= (float)config->unroll)
        return farm_fail(err, FARM_E_USAGE, "n_step (%g) must be less than unroll (%u), the transitions of a window",
                         (double)config->option[FARM_R2D2_N_STEP], config->unroll);
    plan_steps(config, plan);
    return FARM_OK;
}

static enum farm_status plan_dqn(const struct farm_algo_config *config, struct farm_algo_plan *plan,
                                 struct farm_error *err) {
    if (plan->recurrent)
        return farm_fail(err, FARM_E_USAGE,
                         "lstm: dqn trains on single transitions, without a memory; r2d2 trains on sequences");
    plan->shape.stride = 1;
    plan->sparse = true;
    plan_steps(config, plan);
    return FARM_OK;
}

// As vtrace.c.
static const struct farm_algo_scale scale[] = {{"batch", 1},           {"lr", 0.5}, {"lr_end", 0.5}, {"frames", 0.5},
                                               {"epsilon_steps", 0.5}, {NULL, 0}};

#define TABLE(name_text, about_text, family_keys, ...)                                                                 \
    {                                                                                                                  \
        .recipe = {.name = name_text,                                                                                  \
                   .about = about_text,                                                                                \
                   .keys = family_keys,                                                                                \
                   .key_count = sizeof family_keys / sizeof *family_keys},                                             \
        .statistics = {{.key = "loss"},                                                                                \
                       {"q_mean", "q"},                                                                                \
                       {.key = "target_mean"},                                                                         \
                       {"td_error", "td"},                                                                             \
                       {.key = "weight_mean"}},                                                                        \
        .scale = scale, .scratch = FARM_R2D2_SCRATCH, .replay = true, .q = true, .prepare = farm_r2d2_prepare,         \
        .column = farm_r2d2_column, .row = farm_r2d2_row, __VA_ARGS__                                                  \
    }

const struct farm_algo farm_r2d2 =
    TABLE("r2d2", "Q-learning on replayed windows, which a net with a memory (lstm) enters with a burn-in", r2d2_keys,
          .plan = plan_r2d2);
const struct farm_algo farm_dqn = TABLE(
    "dqn", "Q-learning on replayed transitions: double, duelling, n steps, priorities", dqn_keys, .plan = plan_dqn);
