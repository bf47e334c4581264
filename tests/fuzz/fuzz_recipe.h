// What must hold for every recipe that was accepted, whether it came from a file or from flags.
#ifndef FARM_TESTS_FUZZ_RECIPE_H
#define FARM_TESTS_FUZZ_RECIPE_H

#include <math.h>
#include <stdbool.h>

#include "fuzz.h"
#include "report/recipe.h"

static inline const char *fuzz_option(const struct farm_recipe *recipe, const char *key) {
    for (size_t i = 0; i < recipe->option_count; i++)
        if (strcmp(recipe->options[i].key, key) == 0) return recipe->options[i].value;
    return NULL;
}

// The same values and the same options, in whatever order and from whatever layer.
static inline bool fuzz_recipe_same(const struct farm_recipe *a, const struct farm_recipe *b) {
    struct farm_recipe x = *a, y = *b;
    if (a->option_count != b->option_count) return false;
    for (size_t i = 0; i < a->option_count; i++) {
        const char *value = fuzz_option(b, a->options[i].key);
        if (!value || strcmp(value, a->options[i].value) != 0) return false;
    }
    for (size_t i = 0; i < FARM_RECIPE_KEYS; i++) {
        const struct farm_recipe_key *key = farm_recipe_key_at(i);
        const char *from = (const char *)&x + key->offset, *to = (const char *)&y + key->offset;
        static const size_t bytes[] = {
            [FARM_RECIPE_TEXT] = 0, [FARM_RECIPE_INT] = 8, [FARM_RECIPE_DOUBLE] = 8, [FARM_RECIPE_BOOL] = 1};
        if (key->type == FARM_RECIPE_TEXT ? strcmp(from, to) != 0 : memcmp(from, to, bytes[key->type]) != 0)
            return false;
    }
    return true;
}

static inline void fuzz_recipe_check_ranges(const struct farm_recipe *recipe) {
    for (size_t i = 0; i < FARM_RECIPE_KEYS; i++) {
        const struct farm_recipe_key *key = farm_recipe_key_at(i);
        const char *at = (const char *)recipe + key->offset;
        double number = key->type == FARM_RECIPE_INT      ? (double)*(const int64_t *)(const void *)at
                        : key->type == FARM_RECIPE_DOUBLE ? *(const double *)(const void *)at
                                                          : 0;
        if (key->type == FARM_RECIPE_TEXT)
            assert(at[0] && memchr(at, 0, key->text_bytes));
        else if (key->type == FARM_RECIPE_BOOL)
            assert(*(const uint8_t *)at <= 1);
        else
            assert(isfinite(number) && number >= key->least && number <= key->most);
    }
}

// The effective recipe in a run's folder says the same recipe again: values, text, and once more.
static inline void fuzz_recipe_check_written(const struct farm_recipe *recipe) {
    struct farm_recipe again;
    struct farm_error err = {0};
    size_t bytes = 0, bytes_again = 0;
    char *text = farm_recipe_format(recipe, &bytes);
    assert(text && strlen(text) == bytes);
    farm_recipe_defaults(&again);
    enum farm_status status = farm_recipe_parse(&again, FARM_LAYER_FILE, text, bytes, "written", &err);
    assert(status == FARM_OK && farm_recipe_settle(&again, &err) == FARM_OK);
    assert(fuzz_recipe_same(recipe, &again));
    char *text_again = farm_recipe_format(&again, &bytes_again);
    assert(text_again && bytes_again == bytes && strcmp(text, text_again) == 0);
    free(text);
    free(text_again);
}

#endif
