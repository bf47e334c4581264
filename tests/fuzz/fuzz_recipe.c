// Recipes as YAML bytes in two layers: a byte with the length of the shipped recipe (in units of 8 bytes), that recipe,
// and the user's file. Accepted values are in their ranges, in any order of the layers, and the effective recipe can be
// written and read back.
#include <math.h>
#include <stdbool.h>

#include "algo/registry.h"
#include "config/recipe.h"
#include "fuzz.h"

static const char *option_of(const struct farm_recipe *recipe, const char *key) {
    for (size_t i = 0; i < recipe->option_count; i++)
        if (strcmp(recipe->options[i].key, key) == 0) return recipe->options[i].value;
    return NULL;
}

// Equal values and options, in any order and from any layer.
static bool is_same(const struct farm_recipe *a, const struct farm_recipe *b) {
    if (a->option_count != b->option_count) return false;
    for (size_t i = 0; i < a->option_count; i++) {
        const char *value = option_of(b, a->options[i].key);
        if (!value || strcmp(value, a->options[i].value) != 0) return false;
    }
    for (size_t i = 0; farm_recipe_key_at(a, i); i++) {
        char from[FARM_RECIPE_PATH_BYTES], to[FARM_RECIPE_PATH_BYTES]; // numbers with all their digits
        if (farm_recipe_counts(a, i) &&
            strcmp(farm_recipe_value(a, i, from, sizeof from), farm_recipe_value(b, i, to, sizeof to)) != 0)
            return false;
    }
    return true;
}

static void check_ranges(const struct farm_recipe *recipe) {
    const struct farm_recipe_key *key;
    for (size_t i = 0; (key = farm_recipe_key_at(recipe, i)); i++) {
        char text[FARM_RECIPE_PATH_BYTES];
        const double number = strtod(farm_recipe_value(recipe, i, text, sizeof text), NULL);
        if (key->type == FARM_RECIPE_TEXT || key->type == FARM_RECIPE_PATH || key->type == FARM_RECIPE_LIST)
            assert(text[0] && strlen(text) < sizeof text);
        else if (key->type == FARM_RECIPE_BOOL)
            assert(strcmp(text, "true") == 0 || strcmp(text, "false") == 0);
        else
            assert(isfinite(number) && number >= key->least && number <= key->most);
    }
}

// The recipe that is written in a run's folder has the same values, and the same text when it is written again.
static void check_written(const struct farm_recipe *recipe) {
    struct farm_recipe again;
    struct farm_error err = {0};
    size_t bytes = 0, bytes_again = 0;
    char *text = farm_recipe_format(recipe, &bytes);
    assert(text && strlen(text) == bytes);
    farm_recipe_defaults(&again, farm_algo_family_at);
    enum farm_status status = farm_recipe_parse(&again, FARM_LAYER_FILE, text, bytes, "written", &err);
    assert(status == FARM_OK && farm_recipe_settle(&again, &err) == FARM_OK);
    assert(is_same(recipe, &again));
    char *text_again = farm_recipe_format(&again, &bytes_again);
    assert(text_again && bytes_again == bytes && strcmp(text, text_again) == 0);
    free(text);
    free(text_again);
}

static enum farm_status read_layer(struct farm_recipe *recipe, enum farm_recipe_layer layer, const char *text,
                                   size_t bytes) {
    struct farm_error err = {0};
    enum farm_status status = farm_recipe_parse(recipe, layer, text, bytes, "x.yaml", &err);
    if (!status) return FARM_OK;
    assert(status == FARM_E_USAGE && strncmp(err.message, "x.yaml:", 7) == 0);
    fuzz_check_refusal(status, &err);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_input input = {data, bytes};
    struct farm_recipe recipe, turned;
    struct farm_error err = {0};
    uint8_t units;
    fuzz_take(&input, &units, 1);
    size_t shipped_bytes = units * 8u < input.left ? units * 8u : input.left, file_bytes = input.left - shipped_bytes;
    char *shipped = fuzz_take_text(&input, shipped_bytes), *file = fuzz_take_text(&input, file_bytes);

    farm_recipe_defaults(&recipe, farm_algo_family_at);
    farm_recipe_defaults(&turned, farm_algo_family_at);
    enum farm_status status = read_layer(&recipe, FARM_LAYER_SHIPPED, shipped, shipped_bytes);
    if (!status) status = read_layer(&recipe, FARM_LAYER_FILE, file, file_bytes);
    check_ranges(&recipe);
    enum farm_status status_turned = read_layer(&turned, FARM_LAYER_FILE, file, file_bytes);
    if (!status_turned) status_turned = read_layer(&turned, FARM_LAYER_SHIPPED, shipped, shipped_bytes);
    assert(!status == !status_turned);
    if (!status) {
        assert(is_same(&recipe, &turned));
        status = farm_recipe_settle(&recipe, &err);
        if (status)
            fuzz_check_refusal(status, &err);
        else
            check_written(&recipe);
    }
    free(shipped);
    free(file);
    return 0;
}
