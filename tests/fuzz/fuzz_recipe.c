// Recipes as YAML bytes in two layers: a byte with the length of the shipped recipe (in units of 8 bytes), that recipe,
// and the user's file. Accepted values are in their ranges, in any order of the layers, and the effective recipe can be
// written and read back.
#include "fuzz_recipe.h"

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
    fuzz_recipe_check_ranges(&recipe);
    enum farm_status status_turned = read_layer(&turned, FARM_LAYER_FILE, file, file_bytes);
    if (!status_turned) status_turned = read_layer(&turned, FARM_LAYER_SHIPPED, shipped, shipped_bytes);
    assert(!status == !status_turned);
    if (!status) {
        assert(fuzz_recipe_same(&recipe, &turned));
        status = farm_recipe_settle(&recipe, &err);
        if (status)
            fuzz_check_refusal(status, &err);
        else
            fuzz_recipe_check_written(&recipe);
    }
    free(shipped);
    free(file);
    return 0;
}
