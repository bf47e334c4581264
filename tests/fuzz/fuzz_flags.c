// Command lines: words, each ended by a zero byte, for flags of every kind and, for unknown names, the recipe. Accepted
// values point into the words, numbers are finite, and the recipe can be written and read back.
#include "base/cli.h"
#include "fuzz_recipe.h"

enum { WORDS_MAX = 24 };

struct values {
    const char *text;
    int64_t whole;
    double real;
    bool json, pin_check;
};

static enum farm_status set(void *context, const char *name, const char *value, struct farm_error *err) {
    return farm_recipe_set(context, FARM_LAYER_FLAG, name, value, err);
}

static const char *name_at(void *context, size_t i) {
    const struct farm_recipe_key *key = farm_recipe_key_at(context, i);
    return key ? key->name : NULL;
}

static bool is_end_of(const char *text, char *const *argv, int argc) {
    for (int i = 1; i < argc; i++)
        if (text >= argv[i] && text <= argv[i] + strlen(argv[i])) return true;
    return false;
}

static void check_accepted(const struct values *values, char **argv, int argc, const char *word) {
    assert(isfinite(values->real));
    assert(!values->text || is_end_of(values->text, argv, argc));
    uint8_t bits[2];
    memcpy(bits, &values->json, 1);
    memcpy(bits + 1, &values->pin_check, 1);
    assert(bits[0] <= 1 && bits[1] <= 1);
    assert(!word || (is_end_of(word, argv, argc) && strncmp(word, "--", 2) != 0));
}

static void parse(char **argv, int argc) {
    struct values values = {.real = 0};
    struct farm_recipe recipe;
    const struct farm_cli_flag flags[] = {
        {"run", FARM_CLI_STRING, &values.text, "DIR", "a text"},
        {"steps", FARM_CLI_INT, &values.whole, "N", "a whole number"},
        {"rate", FARM_CLI_DOUBLE, &values.real, "X", "a number"},
        {"json", FARM_CLI_BOOL, &values.json, NULL, "a truth"},
        {"pin-check", FARM_CLI_BOOL, &values.pin_check, NULL, "another"},
    };
    const struct farm_cli cli = {.program = "farm fuzz",
                                 .synopsis = "[flags]",
                                 .about = "",
                                 .flags = flags,
                                 .flag_count = sizeof flags / sizeof *flags,
                                 .other = set,
                                 .other_name = name_at,
                                 .context = &recipe};
    const char *word = NULL;
    bool help = false;
    struct farm_error err = {0};
    farm_recipe_defaults(&recipe, farm_algo_family_at);
    enum farm_status status = farm_cli_parse(&cli, argc, argv, &word, &help, &err);
    fuzz_recipe_check_ranges(&recipe);
    if (status) {
        assert(status == FARM_E_USAGE && !help);
        fuzz_check_refusal(status, &err);
        return;
    }
    if (help) return;
    check_accepted(&values, argv, argc, word);
    if (farm_recipe_settle(&recipe, &err) == FARM_OK) fuzz_recipe_check_written(&recipe);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_input input = {data, bytes};
    char program[] = "farm", *argv[WORDS_MAX + 1] = {program};
    int argc = 1;
    while (input.left && argc < WORDS_MAX) {
        const uint8_t *end = memchr(input.at, 0, input.left);
        argv[argc++] = fuzz_take_text(&input, end ? (size_t)(end - input.at) : input.left);
        if (input.left) input.at++, input.left--; // the zero byte
    }
    parse(argv, argc);
    for (int i = 1; i < argc; i++) free(argv[i]);
    return 0;
}
