// Checks of every accepted recipe, from a file or from flags.
#ifndef FARM_TESTS_FUZZ_RECIPE_H
#define FARM_TESTS_FUZZ_RECIPE_H

#include <math.h>
#include <stdbool.h>

#include "algo/registry.h"
#include "config/recipe.h"
#include "fuzz.h"

static inline const char *fuzz_option(const struct farm_recipe *recipe, const char *key) {
    for (size_t i = 0; i < recipe->option_count; i++)
        if (strcmp(recipe->options[i].key, key) == 0) return recipe->options[i].value;
    return NULL;
}

// Equal values and options, in any order and from any layer.
static inline bool fuzz_recipe_same(const struct farm_recipe *a, const struct farm_recipe *b) {
    if (a->option_count != b->option_count) return false;
    for (size_t i = 0; i < a->option_count; i++) {
        const char *value = fuzz_option(b, a->options[i].key);
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

static inline void fuzz_recipe_check_ranges(const struct farm_recipe *recipe) {
    const struct farm_recipe_key *key;
    for (size_t i = 0; (key = farm_recipe_key_at(recipe, i)); i++) {
        char text[FARM_RECIPE_PATH_BYTES];
        const double number = strtod(farm_recipe_value(recipe, i, text, sizeof text), NULL);
        if (key->type == FARM_RECIPE_TEXT)
            assert(text[0] && strlen(text) < key->text_bytes);
        else if (key->type == FARM_RECIPE_BOOL)
            assert(strcmp(text, "true") == 0 || strcmp(text, "false") == 0);
        else
            assert(isfinite(number) && number >= key->least && number <= key->most);
    }
}

// The recipe that is written in a run's folder has the same values, and the same text when it is written again.
static inline void fuzz_recipe_check_written(const struct farm_recipe *recipe) {
    struct farm_recipe again;
    struct farm_error err = {0};
    size_t bytes = 0, bytes_again = 0;
    char *text = farm_recipe_format(recipe, &bytes);
    assert(text && strlen(text) == bytes);
    farm_recipe_defaults(&again, farm_algo_family_at);
    enum farm_status status = farm_recipe_parse(&again, FARM_LAYER_FILE, text, bytes, "written", &err);
    assert(status == FARM_OK && farm_recipe_settle(&again, &err) == FARM_OK);
    assert(fuzz_recipe_same(recipe, &again));
    char *text_again = farm_recipe_format(&again, &bytes_again);
    assert(text_again && bytes_again == bytes && strcmp(text, text_again) == 0);
    free(text);
    free(text_again);
}

#endif
