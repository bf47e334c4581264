// See cli.h.
#include "base/cli.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { WORD_MAX = 64, NAMES_MAX = 256 };

bool farm_parse_double(const char *text, double *out) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end || (errno == ERANGE && value == 0) || !isfinite(value)) return false;
    *out = value; // a subnormal number is valid, although strtod reports ERANGE
    return true;
}

bool farm_parse_int(const char *text, int64_t *out) {
    static const struct {
        char suffix;
        double factor;
    } scales[] = {{'k', 1e3}, {'K', 1e3}, {'m', 1e6}, {'M', 1e6}, {'g', 1e9}, {'G', 1e9}};
    char *end;
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (end != text && !*end && !errno) {
        *out = whole;
        return true;
    }
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || errno == ERANGE) return false;
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (end[0] == scales[i].suffix && !end[1]) {
            value *= scales[i].factor;
            end++;
        }
    if (*end || !(fabs(value) < 9e15) || value != floor(value)) return false;
    *out = (int64_t)value;
    return true;
}

bool farm_parse_bool(const char *text, bool *out) {
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < 4; i++) {
        if (strcasecmp(text, yes[i]) == 0) return *out = true, true;
        if (strcasecmp(text, no[i]) == 0) return *out = false, true;
    }
    return false;
}

static size_t edit_distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    size_t row[WORD_MAX + 1];
    if (n > WORD_MAX || m > WORD_MAX) return WORD_MAX;
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]), gap = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < gap ? change : gap;
        }
    }
    return row[m];
}

const char *farm_nearest(const char *word, const char *const *candidates, size_t count) {
    const char *best = NULL;
    size_t best_distance = WORD_MAX;
    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(word, candidates[i]);
        if (distance < best_distance) best_distance = distance, best = candidates[i];
    }
    size_t length = strlen(word);
    return best && best_distance <= (length < 6 ? 2 : length / 2) ? best : NULL;
}

static enum farm_status fail_unknown_flag(const struct farm_cli *cli, const char *name, struct farm_error *err) {
    const char *names[NAMES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < cli->flag_count && count < NAMES_MAX; i++)
        if (cli->flags[i].name[0] != '-') names[count++] = cli->flags[i].name;
    for (size_t i = 0; cli->other_name && count < NAMES_MAX; i++) {
        const char *other = cli->other_name(cli->context, i);
        if (!other) break;
        names[count++] = other;
    }
    const bool is_short = name[0] == '-';
    const char *near = is_short ? NULL : farm_nearest(name, names, count);
    if (near)
        return farm_fail(err, FARM_E_USAGE, "unknown flag --%s: did you mean --%s? (%s --help lists all)", name, near,
                         cli->program);
    return farm_fail(err, FARM_E_USAGE, "unknown flag %s%s (%s --help lists all)", is_short ? "" : "--", name,
                     cli->program);
}

static enum farm_status store_switch(const struct farm_cli_flag *flag, const char *value, struct farm_error *err) {
    enum farm_cli_switch *out = flag->out;
    bool on;
    if (strcmp(value, flag->value_name) == 0) {
        *out = FARM_CLI_WORD;
    } else if (farm_parse_bool(value, &on)) {
        *out = on ? FARM_CLI_ON : FARM_CLI_OFF;
    } else {
        return farm_fail(err, FARM_E_USAGE, "--%s: '%s' is neither %s nor true nor false", flag->name, value,
                         flag->value_name);
    }
    return FARM_OK;
}

static enum farm_status store_value(const struct farm_cli_flag *flag, const char *value, struct farm_error *err) {
    switch (flag->kind) {
    case FARM_CLI_STRING:
        *(const char **)flag->out = value;
        return FARM_OK;
    case FARM_CLI_INT:
        if (farm_parse_int(value, flag->out)) return FARM_OK;
        return farm_fail(err, FARM_E_USAGE, "--%s: '%s' is not a whole number (examples: 500000, 500k, 10M)",
                         flag->name, value);
    case FARM_CLI_DOUBLE:
        if (farm_parse_double(value, flag->out)) return FARM_OK;
        return farm_fail(err, FARM_E_USAGE, "--%s: '%s' is not a number", flag->name, value);
    case FARM_CLI_BOOL:
        if (farm_parse_bool(value, flag->out)) return FARM_OK;
        return farm_fail(err, FARM_E_USAGE, "--%s: '%s' is neither true nor false", flag->name, value);
    case FARM_CLI_SWITCH:
        return store_switch(flag, value, err);
    case FARM_CLI_WORDS: {
        struct farm_cli_words *words = flag->out;
        words->items[words->count++] = value;
        return FARM_OK;
    }
    }
    assert(!"kind");
    return FARM_E_INVALID;
}

static const struct farm_cli_flag *find_flag(const struct farm_cli *cli, const char *name) {
    for (size_t i = 0; i < cli->flag_count; i++)
        if (strcmp(cli->flags[i].name, name) == 0) return &cli->flags[i];
    return NULL;
}

// Handles argv[*at], which starts with dashes; moves *at over a value in the next word.
static enum farm_status parse_flag(const struct farm_cli *cli, int argc, char **argv, int *at, struct farm_error *err) {
    char name[WORD_MAX];
    const char *word = argv[*at] + (argv[*at][1] == '-' ? 2 : 0), *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    if (length >= sizeof name) return farm_fail(err, FARM_E_USAGE, "unknown flag --%.40s...", word);
    memcpy(name, word, length);
    name[length] = 0;
    const char *value = equals ? equals + 1 : NULL;

    const struct farm_cli_flag *flag = find_flag(cli, name);
    if (!flag && strncmp(name, "no-", 3) == 0 && !value) {
        const struct farm_cli_flag *positive = find_flag(cli, name + 3);
        if (positive && (positive->kind == FARM_CLI_BOOL || positive->kind == FARM_CLI_SWITCH))
            return store_value(positive, "false", err);
    }
    if (flag && flag->kind == FARM_CLI_BOOL) return store_value(flag, value ? value : "true", err);

    bool next = *at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0;
    if (flag && flag->kind == FARM_CLI_SWITCH) {
        if (!value && next && strcmp(argv[*at + 1], flag->value_name) == 0) value = argv[++*at];
        return store_value(flag, value ? value : "true", err);
    }
    if (!value && next) value = argv[*at + 1];
    enum farm_status status;
    if (flag) {
        if (!value)
            return farm_fail(err, FARM_E_USAGE, "%s needs a value: %s %s", argv[*at], argv[*at], flag->value_name);
        status = store_value(flag, value, err);
    } else {
        status = cli->other ? cli->other(cli->context, name, value, err) : FARM_E_NOT_FOUND;
        if (status == FARM_E_NOT_FOUND) return fail_unknown_flag(cli, name, err);
    }
    if (value && !equals) ++*at;
    return status;
}

enum farm_status farm_cli_parse(const struct farm_cli *cli, int argc, char **argv, const char **word, bool *help,
                                struct farm_error *err) {
    bool taken = !word;
    *help = false;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *help = true;
            return FARM_OK;
        }
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1] && !isdigit((unsigned char)argv[i][1])) { // "-2" is a word
            enum farm_status status = parse_flag(cli, argc, argv, &i, err);
            if (status) return status;
        } else if (cli->words) {
            cli->words->items[cli->words->count++] = argv[i];
        } else if (taken) {
            return farm_fail(err, FARM_E_USAGE, "unexpected word '%s' (%s --help shows the usage)", argv[i],
                             cli->program);
        } else {
            *word = argv[i];
            taken = true;
        }
    }
    return FARM_OK;
}

void farm_cli_print_help(const struct farm_cli *cli) {
    printf("usage: %s %s\n\n%s\n", cli->program, cli->synopsis, cli->about);
    if (cli->flag_count) printf("\nflags:\n");
    for (size_t i = 0; i < cli->flag_count; i++) {
        char left[WORD_MAX];
        const char *value = cli->flags[i].value_name;
        const bool optional = cli->flags[i].kind == FARM_CLI_SWITCH;
        snprintf(left, sizeof left, "%s%s%s%s%s", cli->flags[i].name[0] == '-' ? "" : "--", cli->flags[i].name,
                 optional ? " ["
                 : value  ? " "
                          : "",
                 value ? value : "", optional ? "]" : "");
        printf("  %-26s %s\n", left, cli->flags[i].help);
    }
    if (cli->other_help) cli->other_help(cli->context);
    if (cli->examples) printf("\nexamples:\n%s", cli->examples);
}
