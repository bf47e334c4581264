// native/menu: ten guests order, one per step. Of 12 dishes 3 are in stock; `action_mask` says which. Each guest has a
// fixed order of preference, and the best dish in stock pays 0.1, others 0. A dish that is not in stock ends the game
// with -1. A perfect player's return is 1, random dishes in stock return 0.33, random dishes about -0.9: the
// smallest environment that a policy without the mask cannot play, because no other field shows the stock. With the
// option `drinks` each step also takes one of 8 drinks, of which 3 are in stock. Runs in an actor process.
#include <stdlib.h>
#include <string.h>

#include "envs/native/native.h"

enum { GUESTS = 6, ORDERS = 10, STOCK = 3, DIMS = 2, CHOICES = 20 };

static const uint32_t sizes[DIMS] = {12, 8}; // dishes, drinks

struct menu_env {
    struct farm_native_random random;
    uint32_t dims; // 1: dishes only
    int32_t guest;
    int orders;
    uint8_t stock[CHOICES]; // dishes, then drinks
};

static int menu_read(const struct farm_env_config *config, struct menu_env *env, char *error, size_t error_bytes) {
    struct farm_native_option drinks = {.key = "drinks", .is_switch = true};
    if (farm_native_read_options(config, farm_env_menu.name, &drinks, 1, error, error_bytes)) return -1;
    env->dims = drinks.value ? DIMS : 1;
    return 0;
}

static int menu_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                     size_t error_bytes) {
    struct menu_env env;
    if (menu_read(config, &env, error, error_bytes)) return -1;
    const uint32_t items = env.dims == 1 ? sizes[0] : CHOICES;
    *spec = (struct farm_env_spec){
        .obs_count = 2,
        .obs[0] = {.name = "guest", .dtype = FARM_I32, .rank = 1, .dims = {1}, .choices = GUESTS},
        .obs[1] = {.name = "action_mask", .dtype = FARM_U8, .rank = 1, .dims = {items}, .choices = 2},
        .action = {.kind = env.dims == 1 ? FARM_ACTION_DISCRETE : FARM_ACTION_MULTI_DISCRETE, .dims = env.dims},
        .frames_per_step = 1,
    };
    memcpy(spec->action.sizes, sizes, env.dims * sizeof *sizes);
    return 0;
}

FARM_NATIVE_CREATE(menu)

// The guest's rank of a dish or drink: 0 is the best of n.
static uint32_t menu_rank(int32_t guest, uint32_t item, uint32_t n) {
    return (item + n - 5 * (uint32_t)guest % n) % n;
}

// guest: i32. action_mask: u8 [dishes, then drinks], 1 in stock.
static void menu_order(struct menu_env *env, void *const *obs) {
    uint8_t *stock = env->stock;
    memset(env->stock, 0, sizeof env->stock);
    env->guest = (int32_t)farm_native_below(&env->random, GUESTS);
    for (uint32_t d = 0; d < env->dims; stock += sizes[d++])
        for (int count = 0; count < STOCK;) {
            uint8_t *item = &stock[farm_native_below(&env->random, sizes[d])];
            count += !*item;
            *item = 1;
        }
    memcpy(obs[0], &env->guest, sizeof env->guest);
    memcpy(obs[1], env->stock, (size_t)(stock - env->stock));
}

static void menu_reset(void *self, void *const *obs) {
    struct menu_env *env = self;
    env->orders = 0;
    menu_order(env, obs);
}

// Whether it is the guest's best in stock; -1: it is not in stock.
static int menu_judge(const struct menu_env *env, const uint8_t *stock, uint32_t item, uint32_t n) {
    if (item >= n || !stock[item]) return -1;
    for (uint32_t other = 0; other < n; other++)
        if (stock[other] && menu_rank(env->guest, other, n) < menu_rank(env->guest, item, n)) return 0;
    return 1;
}

static uint32_t menu_step(void *self, const void *action, void *const *obs, float *reward) {
    struct menu_env *env = self;
    int32_t items[DIMS];
    const uint8_t *stock = env->stock;
    bool served = true;
    memcpy(items, action, env->dims * sizeof *items);
    *reward = 0;
    for (uint32_t d = 0; d < env->dims; stock += sizes[d++]) {
        const int best = menu_judge(env, stock, (uint32_t)items[d], sizes[d]);
        served = served && best >= 0;
        *reward += (float)best / (float)(ORDERS * env->dims);
    }
    if (!served) *reward = -1;
    menu_order(env, obs);
    return !served || ++env->orders == ORDERS ? FARM_STEP_TERMINATED | FARM_STEP_GAME_END : 0;
}

// A pixel per item: the guest above the dishes, those in stock the brighter the better they suit it; below, the drinks.
static void menu_render(void *self, uint32_t size[2], uint8_t *rgb) {
    const struct menu_env *env = self;
    const uint8_t *stock = env->stock;
    if (!farm_native_clear(size, sizes[0], 1 + env->dims, rgb)) return;
    farm_native_fill(rgb, (int)sizes[0], 0, 2 * env->guest, 1, 2, 0x40a0ff);
    for (uint32_t d = 0; d < env->dims; stock += sizes[d++])
        for (uint32_t item = 0; item < sizes[d]; item++)
            farm_native_fill(rgb, (int)sizes[0], 1 + (int)d, (int)item, 1, 1,
                             stock[item] ? (255 - 16 * menu_rank(env->guest, item, sizes[d])) << 8 : 0x303030);
}

const struct farm_env_api farm_env_menu = FARM_ENV_API_RENDER(
    "native/menu",
    "serve 10 guests from what is in stock: 3 of 12 dishes (drinks: and 3 of 8 drinks) by an action mask; a "
    "perfect player gets 1",
    menu, free, menu_render);
