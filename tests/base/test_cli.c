// The command line parser.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/cli.h"

struct values {
    bool json, pin;
    enum farm_cli_switch resume;
    const char *run, *output;
    int64_t frames;
    double lr;
    char other_name[64], other_value[64];
};

static enum farm_status take_other(void *context, const char *name, const char *value, struct farm_error *err) {
    struct values *values = context;
    if (strncmp(name, "key", 3) != 0) return FARM_E_NOT_FOUND;
    snprintf(values->other_name, sizeof values->other_name, "%s", name);
    snprintf(values->other_value, sizeof values->other_value, "%s", value ? value : "(none)");
    return FARM_OK;
}
static const char *other_name(void *context, size_t i) {
    static const char *const names[] = {"key-one", "key-two"};
    return i < 2 ? names[i] : NULL;
}

struct parsed {
    struct values values;
    enum farm_status status;
    struct farm_error err;
    const char *word;
    bool help;
};

// Parses one command line: arguments up to NULL.
static struct parsed run(const char *const *arguments) {
    struct parsed parsed = {.values = {.pin = true}};
    struct values *values = &parsed.values;
    const struct farm_cli_flag flags[] = {
        {"json", FARM_CLI_BOOL, &values->json, NULL, "prints JSON"},
        {"resume", FARM_CLI_SWITCH, &values->resume, "auto", "continues"},
        {"pin", FARM_CLI_BOOL, &values->pin, NULL, "pins"},
        {"run", FARM_CLI_STRING, &values->run, "DIR", "folder"},
        {"frames", FARM_CLI_INT, &values->frames, "N", "length"},
        {"lr", FARM_CLI_DOUBLE, &values->lr, "X", "rate"},
        {"-o", FARM_CLI_STRING, &values->output, "FILE", "output"},
    };
    const struct farm_cli cli = {.program = "farm test",
                                 .synopsis = "[--json]",
                                 .about = "About.",
                                 .flags = flags,
                                 .flag_count = sizeof flags / sizeof *flags,
                                 .other = take_other,
                                 .other_name = other_name,
                                 .context = values};
    char *argv[16] = {"farm test"};
    int argc = 1;
    for (; arguments[argc - 1]; argc++) argv[argc] = (char *)arguments[argc - 1];
    parsed.status = farm_cli_parse(&cli, argc, argv, &parsed.word, &parsed.help, &parsed.err);
    return parsed;
}
#define PARSE(...) run((const char *const[]){__VA_ARGS__, NULL})

Test(base, accepts_values_after_a_space_or_an_equals_sign) {
    struct parsed p = PARSE("--run", "a/b", "--frames=2.5M", "--lr", "3e-4", "--json");
    cr_assert_eq(p.status, FARM_OK, "%s", p.err.message);
    cr_assert_str_eq(p.values.run, "a/b");
    cr_assert_eq(p.values.frames, 2500000);
    cr_assert_float_eq(p.values.lr, 3e-4, 0);
    cr_assert(p.values.json);
    cr_assert_str_eq(PARSE("-o", "x.png").values.output, "x.png");
    cr_assert_str_eq(PARSE("-o=y.png").values.output, "y.png");
}

Test(base, booleans_accept_an_equals_sign_and_no_but_not_the_next_word) {
    struct parsed p = PARSE("--json", "word", "--no-pin");
    cr_assert_eq(p.status, FARM_OK, "%s", p.err.message);
    cr_assert(p.values.json && !p.values.pin);
    cr_assert_str_eq(p.word, "word");
    cr_assert_null(PARSE("--json").word);
    p = PARSE("--pin=off", "--json=yes");
    cr_assert(p.values.json && !p.values.pin);
}

Test(base, a_switch_takes_its_word_and_no_other) {
    cr_assert_eq(PARSE("--json").values.resume, FARM_CLI_OFF);
    cr_assert_eq(PARSE("--resume").values.resume, FARM_CLI_ON);
    cr_assert_eq(PARSE("--resume=yes").values.resume, FARM_CLI_ON);
    cr_assert_eq(PARSE("--resume", "auto").values.resume, FARM_CLI_WORD);
    cr_assert_eq(PARSE("--resume=auto", "--no-resume").values.resume, FARM_CLI_OFF);
    struct parsed p = PARSE("--resume", "autos", "--json");
    cr_assert_str_eq(p.word, "autos");
    cr_assert(p.values.resume == FARM_CLI_ON && p.values.json);
}

Test(base, negative_numbers_are_values) {
    struct parsed p = PARSE("--frames", "-3", "--lr", "-1.5");
    cr_assert_eq(p.status, FARM_OK, "%s", p.err.message);
    cr_assert_eq(p.values.frames, -3);
    cr_assert_float_eq(p.values.lr, -1.5, 0);
}

Test(base, refuses_unknown_flags_wrong_and_missing_values_and_a_second_word) {
    static const char *const cases[][4] = {
        // a command line, and a word of its refusal
        {"--frmaes", "3", NULL, "--frmaes"},
        {"--frmaes", "3", NULL, "--frames?"},
        {"--kee-two=3", NULL, NULL, "--key-two?"},
        {"--zzzzzzzzzz", NULL, NULL, "--zzz"},
        {"--", NULL, NULL, ""},
        {"--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", NULL, NULL, ""},
        {"-q", NULL, NULL, "unknown flag -q ("},
        {"--o", "x.png", NULL, ""},
        {"--json=maybe", NULL, NULL, ""},
        {"--resume=maybe", NULL, NULL, "neither auto nor"},
        {"--no-run", NULL, NULL, ""},
        {"--frames", "3.5", NULL, ""},
        {"--frames", "1e300", NULL, ""},
        {"--frames", "12x", NULL, ""},
        {"--lr", "fast", NULL, ""},
        {"--lr", "nan", NULL, ""},
        {"--run", "--json", NULL, "--run DIR"},
        {"--run", NULL, NULL, ""},
        {"-o", NULL, NULL, "-o FILE"},
        {"one", "two", NULL, "'two'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct parsed p = run(cases[i]);
        cr_assert_eq(p.status, FARM_E_USAGE, "%s", cases[i][0]);
        cr_assert(strstr(p.err.message, cases[i][3]), "%s: %s", cases[i][0], p.err.message);
        if (i == 3) cr_assert(!strstr(p.err.message, "did you mean"), "%s", p.err.message);
    }
}

Test(base, passes_other_flags_on_with_and_without_value) {
    struct parsed p = PARSE("--key-one", "7");
    cr_assert_eq(p.status, FARM_OK, "%s", p.err.message);
    cr_assert_str_eq(p.values.other_name, "key-one");
    cr_assert_str_eq(p.values.other_value, "7");
    p = PARSE("--key-one", "--json");
    cr_assert_str_eq(p.values.other_value, "(none)");
    cr_assert(p.values.json);
    p = PARSE("--key-one=", "--json");
    cr_assert_str_eq(p.values.other_value, "");
}

Test(base, takes_many_words_and_a_flag_several_times) {
    const char *words[8], *curves[8];
    struct farm_cli_words all = {words, 0}, repeated = {curves, 0};
    const struct farm_cli_flag flag = {"curve", FARM_CLI_WORDS, &repeated, "FILE", "curve"};
    const struct farm_cli cli = {.program = "farm test", .flags = &flag, .flag_count = 1, .words = &all};
    char *argv[] = {"farm test", "one", "--curve", "a", "-", "--curve=b", "two"};
    struct farm_error err;
    bool help;
    cr_assert_eq(farm_cli_parse(&cli, 7, argv, NULL, &help, &err), FARM_OK, "%s", err.message);
    cr_assert(all.count == 3 && repeated.count == 2);
    cr_assert_str_eq(words[1], "-");
    cr_assert_str_eq(words[2], "two");
    cr_assert_str_eq(curves[1], "b");
}

Test(base, help_precedes_every_error) {
    struct parsed p = PARSE("--nonsense", "--help");
    cr_assert_eq(p.status, FARM_OK);
    cr_assert(p.help);
    cr_assert(PARSE("-h").help);
    cr_assert(!PARSE("--json").help);
}

Test(base, finds_the_nearest_word_only_if_it_is_near) {
    const char *const names[] = {"train", "eval", "topo", "envs", "doctor"};
    cr_assert_str_eq(farm_nearest("trian", names, 5), "train");
    cr_assert_str_eq(farm_nearest("docter", names, 5), "doctor");
    cr_assert_null(farm_nearest("environment", names, 5));
    cr_assert_null(farm_nearest("x", names, 0));
}
