// Recipes: all settings of a run as one plain struct behind one table of keys. A key is both a line of a YAML file
// ("key: value") and a command-line flag. Layers, weakest first:
//   built-in defaults < the recipe shipped for the environment < --recipe FILE < flags
// Runs in the supervisor and in tools, before any process is started. The struct owns its texts (fixed arrays), so
// assignment copies it. Checks names and ranges only, not whether an environment or a network exists.
#ifndef FARM_CONFIG_RECIPE_H
#define FARM_CONFIG_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    FARM_RECIPE_FAMILY_KEYS_MAX = 64, // for all families together
    FARM_RECIPE_KEYS_MAX = 68 + FARM_RECIPE_FAMILY_KEYS_MAX,
    FARM_RECIPE_OPTIONS_MAX = 32,
    FARM_RECIPE_TEXT_BYTES = 64,   // a text, zero included
    FARM_RECIPE_PATH_BYTES = 1024, // a text that may hold a path: env, and the values of options
};

enum farm_recipe_layer {
    FARM_LAYER_DEFAULT,
    FARM_LAYER_SHIPPED,
    FARM_LAYER_FILE,
    FARM_LAYER_FLAG,
};

enum farm_recipe_type {
    FARM_RECIPE_TEXT,   // char[text_bytes]; limited to `choices` if given
    FARM_RECIPE_INT,    // int64_t; 10000000, 10M, 1e7
    FARM_RECIPE_DOUBLE, // double, finite
    FARM_RECIPE_BOOL,   // bool
    // Of an algorithm's keys, stored as double:
    FARM_RECIPE_WHOLE,  // a whole number
    FARM_RECIPE_CHOICE, // one of `choices`: its place among them
};

struct farm_recipe_key {
    const char *name;
    enum farm_recipe_type type;
    size_t offset;            // in struct farm_recipe
    const char *default_text; // as in a recipe
    double least, most;       // numbers: the range, both ends included
    const char *choices;      // texts: "a|b|c", or NULL: any
    const char *help;         // one line, with the unit
    size_t text_bytes;        // texts: size of the member, zero included
};

// The keys of one algorithm. The recipe holds their values as numbers; a choice's is its place among the choices. The
// key `algo` selects the family; files and flags may not set keys of other families. Families may share names.
struct farm_recipe_family {
    const char *name, *about;
    const struct farm_recipe_key *keys; // offset is unused
    size_t key_count;
};
typedef const struct farm_recipe_family *farm_recipe_families(size_t i); // the i-th; NULL after the last

// An option of the environment: key "env.noop_max" is option "noop_max".
struct farm_recipe_option {
    char key[48], value[FARM_RECIPE_PATH_BYTES];
    uint8_t layer; // enum farm_recipe_layer
};

// One member for each key, of the same name; the table in recipe.c and --help describe them.
struct farm_recipe {
    char env[FARM_RECIPE_PATH_BYTES];
    char device[FARM_RECIPE_TEXT_BYTES], net[FARM_RECIPE_TEXT_BYTES], init[FARM_RECIPE_TEXT_BYTES],
        algo[FARM_RECIPE_TEXT_BYTES], precision[FARM_RECIPE_TEXT_BYTES], mirror[FARM_RECIPE_TEXT_BYTES],
        optimiser[FARM_RECIPE_TEXT_BYTES], wait[FARM_RECIPE_TEXT_BYTES], bad_values[FARM_RECIPE_TEXT_BYTES],
        regime[FARM_RECIPE_TEXT_BYTES], sigma[FARM_RECIPE_TEXT_BYTES];
    int64_t seed, frames, actors, envs_per_actor, envs_total, lanes, ring_steps, gpus;
    int64_t unroll, batch, stack, lstm, lstm_layers, burn_in, micro_batch, train_threads, infer_threads,
        infer_batch_max, max_lag;
    int64_t checkpoint_updates, metrics_updates;
    int64_t checkpoints_keep, restarts_max, eval_every, eval_episodes;
    double seconds, reward_clip, reward_scale, log_sigma;
    double lr, lr_end, lr_hold, grad_norm_clip, rmsprop_decay, rmsprop_epsilon, adam_beta1, adam_beta2, adam_epsilon;
    double infer_wait_ms, checkpoint_every, metrics_every, hang_seconds, hang_kill, sync_grace_s, node_grace_s;
    bool deterministic, squash, normalise_observations, normalise_rewards, last_inputs, loss_sum, pin, numa, huge_pages,
        csv, tensorboard;
    struct farm_recipe_option options[FARM_RECIPE_OPTIONS_MAX];
    size_t option_count;
    char continuous[FARM_RECIPE_PATH_BYTES + 128]; // the shipped recipe for continuous actions; "": none, or it is read
    farm_recipe_families *families;                // NULL: none
    double values[FARM_RECIPE_FAMILY_KEYS_MAX];    // values of the families' keys, family after family
    uint8_t layers[FARM_RECIPE_KEYS_MAX];          // enum farm_recipe_layer that set each key, in key_at's order
};

// The i-th key, in the order of --help: the recipe's own, then those of each family; NULL after the last.
const struct farm_recipe_key *farm_recipe_key_at(const struct farm_recipe *recipe, size_t i);

// Whether the key applies to this recipe: it does not belong to another algorithm.
bool farm_recipe_counts(const struct farm_recipe *recipe, size_t i);

// Whether the key is one of `names`, which spaces separate; NULL: all are.
bool farm_recipe_among(const char *names, const char *key);

// Whether a key has this name, written with '_'.
bool farm_recipe_has(const struct farm_recipe *recipe, const char *name);

// Whether this layer or a stronger one has set the key `name`.
bool farm_recipe_set_by(const struct farm_recipe *recipe, const char *name, enum farm_recipe_layer layer);

// families: those of src/algo; NULL: no keys of algorithms.
void farm_recipe_defaults(struct farm_recipe *recipe, farm_recipe_families *families);

// The value of the k-th key of the family that `algo` names.
double farm_recipe_family_value(const struct farm_recipe *recipe, size_t k);

// Sets one key from text, unless a stronger layer has set it (the text is checked in any case, so layers may be set in
// any order). '-' and '_' are the same in `name`; for boolean keys, value NULL means true and "no-KEY" false. Errors:
// FARM_E_NOT_FOUND an unknown key; FARM_E_USAGE an invalid value, with the range or the choices, or text that is not
// UTF-8.
enum farm_status farm_recipe_set(struct farm_recipe *recipe, enum farm_recipe_layer layer, const char *name,
                                 const char *value, struct farm_error *err);

// Sets keys from YAML text: one flat mapping of plain values. `where` (a file name) and the line open every message.
// Errors: FARM_E_USAGE unknown key (naming the nearest known one), invalid value, key given twice, nested or aliased
// values, invalid YAML. *recipe may then be partly changed.
enum farm_status farm_recipe_parse(struct farm_recipe *recipe, enum farm_recipe_layer layer, const char *text,
                                   size_t bytes, const char *where, struct farm_error *err);

// farm_recipe_parse of a file. Errors also: FARM_E_USAGE a missing file, or one longer than 1 MiB.
enum farm_status farm_recipe_load(struct farm_recipe *recipe, enum farm_recipe_layer layer, const char *path,
                                  struct farm_error *err);

// Call it after all layers. Of `frames` and `seconds`, and of `envs_total` and `envs_per_actor`, the one set by the
// weaker layer becomes 0; `algo` auto becomes the first family; `lr_end` of a weaker layer than `lr` is at most `lr`.
// Checks keys against each other. Errors: FARM_E_USAGE.
enum farm_status farm_recipe_settle(struct farm_recipe *recipe, struct farm_error *err);

// The recipe as YAML text, every key (malloc'd, the caller frees; *bytes without the final zero). NULL when out of
// memory.
char *farm_recipe_format(const struct farm_recipe *recipe, size_t *bytes);

// A key's value as text, as in a recipe. Returns text.
char *farm_recipe_value(const struct farm_recipe *recipe, size_t key, char *text, size_t text_bytes);

// Finds the shipped recipe of an environment and an algorithm (auto: any): the first that exists in `folder` of
// native_catch_ppo.yaml, native_ppo.yaml, native_catch.yaml, native.yaml. False: none does. continuous: only the file
// that lies over it if actions are continuous, native_continuous_ppo.yaml or native_continuous.yaml for the second and
// fourth.
bool farm_recipe_shipped(const char *folder, const char *env, const char *algo, bool continuous, char *path,
                         size_t path_bytes);

// Lays the recipe for continuous actions over a settled one, once, and settles it again. Errors: those of load, settle.
enum farm_status farm_recipe_vary(struct farm_recipe *recipe, bool continuous, struct farm_error *err);

// Prints the keys on stdout, a part of --help: those among `only`, or all, with their defaults (NULL).
void farm_recipe_print_help(const struct farm_recipe *recipe, const char *only);

#endif
