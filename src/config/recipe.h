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
    FARM_RECIPE_OPTIONS_MAX = 32,
    FARM_RECIPE_TEXT_BYTES = 64,   // a text, zero included
    FARM_RECIPE_PATH_BYTES = 1024, // a longer text: env, net, and the values of options
};

// The recipe's own keys: FARM_KEY_env, FARM_KEY_seed, ...
enum farm_recipe_own_key {
#define KEY(kind, key, ...) FARM_KEY_##key,
#include "config/keys.h"
    FARM_RECIPE_OWN_KEYS,
    FARM_RECIPE_FAMILY_KEYS_MAX = 64, // for all families together
    FARM_RECIPE_KEYS_MAX = FARM_RECIPE_OWN_KEYS + FARM_RECIPE_FAMILY_KEYS_MAX,
};

enum farm_recipe_layer { FARM_LAYER_DEFAULT, FARM_LAYER_SHIPPED, FARM_LAYER_FILE, FARM_LAYER_FLAG };

enum farm_recipe_type {
    FARM_RECIPE_TEXT,   // char[FARM_RECIPE_TEXT_BYTES]; limited to `choices` if given
    FARM_RECIPE_PATH,   // char[FARM_RECIPE_PATH_BYTES]
    FARM_RECIPE_LIST,   // the same; a flag that is repeated adds to it, with a comma
    FARM_RECIPE_INT,    // int64_t; 10000000, 10M, 1e7
    FARM_RECIPE_DOUBLE, // double, finite
    FARM_RECIPE_BOOL,   // bool
    // Of an algorithm's keys, stored as double:
    FARM_RECIPE_WHOLE,  // a whole number
    FARM_RECIPE_CHOICE, // one of `choices`: its place among them
};

// Commands that take a key as a flag (others refuse it, but a recipe may hold it), and what a checkpoint fixes.
enum farm_recipe_use {
    FARM_USE_NONE,
    FARM_USE_TRAIN, // takes every key
    FARM_USE_EVAL = 2,
    FARM_USE_FPS = 4,
    FARM_USE_BRIDGE = 8,
    FARM_USE_POLICY = 16, // farm eval takes it from the checkpoint
    FARM_USE_NET = 32,    // so it does, and --resume refuses another value
    FARM_USE_ENVS = 64,
    FARM_USE_SERVE = 128,
};

struct farm_recipe_key {
    const char *name;
    enum farm_recipe_type type;
    size_t offset;            // in struct farm_recipe; families: unused
    const char *default_text; // as in a recipe
    double least, most;       // numbers: the range, both ends included
    const char *choices;      // "a|b|c", or NULL: any
    unsigned uses;            // enum farm_recipe_use
    const char *before;       // what runs made before the key was added do; NULL: as default_text
    // Without which it has no effect: "NAME=VALUE", or "NAME" (neither 0 nor false), or several of them, "A|B", of
    // which one suffices. NAME is a key, or a fact of the run that run/plan.c knows. NULL: nothing.
    const char *needs;
    const char *help; // one line, with the unit
};

// What a run knows beside its recipe, or in place of a key's `auto`.
struct farm_recipe_fact {
    const char *name, *value; // as in `needs`
};

// The keys of one algorithm. The recipe holds their values as numbers; a choice's is its place among the choices. The
// key `algo` selects the family; files and flags may not set keys of other families. Families may share names.
struct farm_recipe_family {
    const char *name, *about;
    const struct farm_recipe_key *keys;
    size_t key_count;
};
typedef const struct farm_recipe_family *farm_recipe_families(size_t i); // the i-th; NULL after the last

// An option of the environment: key "env.noop_max" is option "noop_max".
struct farm_recipe_option {
    char key[48], value[FARM_RECIPE_PATH_BYTES];
    uint8_t layer; // enum farm_recipe_layer
};

typedef char farm_key_TEXT[FARM_RECIPE_TEXT_BYTES];
typedef char farm_key_PATH[FARM_RECIPE_PATH_BYTES], farm_key_LIST[FARM_RECIPE_PATH_BYTES];
typedef int64_t farm_key_INT;
typedef uint32_t farm_setting_INT; // in struct farm_algo_config and farm_learner_training: ALGO_KEY, LEARNER_KEY
typedef double farm_key_DOUBLE, farm_setting_DOUBLE;
typedef bool farm_key_BOOL, farm_setting_BOOL;

struct farm_recipe {
#define KEY(kind, key, ...) farm_key_##kind key;
#include "config/keys.h" // a member for each key
    struct farm_recipe_option options[FARM_RECIPE_OPTIONS_MAX];
    size_t option_count;
    char continuous[FARM_RECIPE_PATH_BYTES + 128]; // the shipped recipe for continuous actions; "": none, or it is read
    char pictures[FARM_RECIPE_PATH_BYTES + 128];   // the same for frames as observations and other actions
    char under[2 * FARM_RECIPE_PATH_BYTES + 272];  // the shipped recipes that lie under a file; "": none
    farm_recipe_families *families;                // NULL: none
    double values[FARM_RECIPE_FAMILY_KEYS_MAX];    // values of the families' keys, family after family
    uint8_t layers[FARM_RECIPE_KEYS_MAX];          // enum farm_recipe_layer that set each key, in key_at's order
};

// The i-th key, in the order of --help: the recipe's own, then those of each family; NULL after the last.
const struct farm_recipe_key *farm_recipe_key_at(const struct farm_recipe *recipe, size_t i);

// Whether the key applies to this recipe: it does not belong to another algorithm.
bool farm_recipe_counts(const struct farm_recipe *recipe, size_t i);

// The key of this name, written with '_'; NULL: there is none.
const struct farm_recipe_key *farm_recipe_find(const struct farm_recipe *recipe, const char *name);

// The value of a key with choices as its place among them: the enum that it means has their order.
int farm_recipe_choice(const struct farm_recipe *recipe, enum farm_recipe_own_key key);

// Whether this layer or a stronger one has set the key `name`.
bool farm_recipe_set_by(const struct farm_recipe *recipe, const char *name, enum farm_recipe_layer layer);

// families: those of src/algo; NULL: no keys of algorithms.
void farm_recipe_defaults(struct farm_recipe *recipe, farm_recipe_families *families);

// The value of the k-th key of the family that `algo` names.
double farm_recipe_family_value(const struct farm_recipe *recipe, size_t k);

// Makes the defaults those of a run made before keys with `before` were added. Call it before the run's own recipe.
void farm_recipe_default_before(struct farm_recipe *recipe);

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
// weaker layer becomes 0; `algo` auto becomes the first family; a weaker `lr_end` is at most `lr`. FARM_E_USAGE.
enum farm_status farm_recipe_settle(struct farm_recipe *recipe, struct farm_error *err);

// The recipe as YAML text, every key (malloc'd, the caller frees; *bytes without the final zero). NULL: no memory.
char *farm_recipe_format(const struct farm_recipe *recipe, size_t *bytes);

// A key's value as text, as in a recipe. Returns text.
char *farm_recipe_value(const struct farm_recipe *recipe, size_t key, char *text, size_t text_bytes);

// Whether the key's value has an effect, as its `needs` say. facts: {NULL} ends them. FARM_E_USAGE: no, and why.
enum farm_status farm_recipe_check_effect(const struct farm_recipe *recipe, size_t key,
                                          const struct farm_recipe_fact *facts, struct farm_error *err);

// Finds the shipped recipe of an environment and an algorithm (auto: any): the first that exists in `folder` of
// native_catch_ppo.yaml, native_ppo.yaml, native_catch.yaml, native.yaml. Before the family comes the name as far as
// its first '-' or second '/': envpool_MiniGrid.yaml for envpool/MiniGrid-Empty-8x8-v0. False: none does. variant, if
// not "": "_continuous" or "_frames", only the file that lies over the family's, native_continuous_ppo.yaml or
// native_continuous.yaml.
bool farm_recipe_shipped(const char *folder, const char *env, const char *algo, const char *variant, char *path,
                         size_t path_bytes);

// Lays the recipe for continuous actions, or else for frames, over a settled one, once, and settles it again. Errors:
// those of load, settle.
enum farm_status farm_recipe_vary(struct farm_recipe *recipe, bool continuous, bool frames, struct farm_error *err);

// The keys to which shipped recipes alone give other values than the defaults, "key: value, ...", into text ("": none).
// Returns text.
char *farm_recipe_shipped_keys(const struct farm_recipe *recipe, char *text, size_t text_bytes);

// Prints the keys of a use on stdout, a part of --help; FARM_USE_TRAIN: all, with their defaults.
void farm_recipe_print_help(const struct farm_recipe *recipe, enum farm_recipe_use use);

#endif
