// Networks as text (net.h): items with commas between them become rows of a table of layers. The text may come from
// another process: characters and numbers are bounded, and nothing is allocated.
#include <stdio.h>
#include <string.h>

#include "base/cli.h"
#include "nn/net.h"

// Activations in their enum's order, kinds of layers, then names.
enum word {
    CONV = FARM_ACTIVATION_SILU + 1,
    DENSE,
    POOL,
    RESIDUAL,
    SECTION,
    NORM,
    SAME,
    SEPARATE,
    WORDS = SEPARATE + 6
};
static const char *const words[WORDS] = {"relu",     "tanh",    "none",     "elu",     "silu", "conv",
                                         "dense",    "pool",    "residual", "section", "norm", "same",
                                         "separate", "shallow", "nature",   "lite",    "mlp",  "deep"};
static const char *const texts[] = {"separate, tanh, dense 64, 64",
                                    "conv 16@8x8/4, 32@4x4/2, dense 256",
                                    "conv 32@8x8/4, 64@4x4/2, 64@3x3/1, dense 512",
                                    "conv 16@8x8/4, 32@4x4/2, 32@3x3/2, dense 128",
                                    "tanh, dense 64, 64",
                                    "section 16, 32, 32 relu, dense 256"};
static const char *const usages[] = {"conv CHANNELS@KxK/STRIDE [same] [norm] [ACTIVATION]",
                                     "dense UNITS [norm] [ACTIVATION]",
                                     "pool [KxK/STRIDE]",
                                     "residual [CHANNELS] [ACTIVATION]",
                                     "section CHANNELS [ACTIVATION]",
                                     "norm [ACTIVATION]"};

struct reading {
    struct farm_net_spec *spec;
    enum farm_activation all;     // what conv and dense have without one of their own
    int kind;                     // enum word of the item before; 0: none
    struct farm_net_words source; // the present item's
    struct farm_error *err;
};

static int find(const char *word) {
    int i = 0;
    while (i < WORDS && strcmp(words[i], word) != 0) i++;
    return i;
}

static const char *layers_of(const char *text) {
    const int word = find(text);
    return word >= SEPARATE && word < WORDS ? texts[word - SEPARATE] : text;
}

enum farm_status farm_net_fail_layer(const struct farm_net_spec *spec, struct farm_net_words source,
                                     struct farm_error *err) {
    const char *text = layers_of(spec->text);
    if (source.number)
        farm_fail_in(err, FARM_E_INVALID, "layer %d (%.*s)", source.number, source.bytes, text + source.at);
    if (source.number && text == spec->text) return FARM_E_INVALID;
    return farm_fail_in(err, FARM_E_INVALID, "network %s", spec->text);
}

#define FAIL(reading, ...)                                                                                             \
    (farm_fail((reading)->err, FARM_E_INVALID, __VA_ARGS__),                                                           \
     farm_net_fail_layer((reading)->spec, (reading)->source, (reading)->err))

static enum farm_status append(struct reading *reading, struct farm_layer row) {
    struct farm_net_spec *spec = reading->spec;
    if (spec->layer_count == FARM_NET_LAYERS_MAX)
        return FAIL(reading, "more than %d layers in all; a section counts as 4, `norm` as 1", FARM_NET_LAYERS_MAX);
    spec->words[spec->layer_count] = reading->source;
    spec->layers[spec->layer_count++] = row;
    return FARM_OK;
}

// Rows of an item of sizes OUT@KxK/S.
static enum farm_status append_item(struct reading *reading, const int sizes[4], bool same, bool norm,
                                    enum farm_activation last) {
    const enum farm_activation none = FARM_ACTIVATION_NONE, first = norm ? none : last;
    const int out = sizes[0], kind = reading->kind;
    const enum farm_layer_kind conv = same ? FARM_LAYER_CONV_SAME : FARM_LAYER_CONV;
    enum farm_status status = FARM_OK;
    if (kind == CONV) status = append(reading, (struct farm_layer){conv, out, sizes[1], sizes[3], first});
    if (kind == DENSE) status = append(reading, (struct farm_layer){FARM_LAYER_DENSE, out, 0, 0, first});
    if (kind == SECTION) status = append(reading, (struct farm_layer){FARM_LAYER_CONV_SAME, out, 3, 1, none});
    if (!status && (kind == POOL || kind == SECTION))
        status = append(reading, (struct farm_layer){FARM_LAYER_POOL, 0, sizes[1], sizes[3], none});
    if (!status && kind == SECTION) status = append(reading, (struct farm_layer){FARM_LAYER_RESIDUAL, out, 3, 0, none});
    if (!status && (kind == RESIDUAL || kind == SECTION))
        status = append(reading, (struct farm_layer){FARM_LAYER_RESIDUAL, out, 3, 0, last});
    if (!status && (kind == NORM || norm))
        status = append(reading, (struct farm_layer){FARM_LAYER_NORM, 0, 0, 0, last});
    return status;
}

// Reads a layer from `word` on, the one after its kind; NULL: there is none.
static enum farm_status read_layer(struct reading *reading, char *word, char **rest) {
    const struct farm_net_spec *spec = reading->spec;
    const int kind = reading->kind;
    int sizes[4] = {1, 3, 3, 2}, used = 0, own = kind <= DENSE ? (int)reading->all : FARM_ACTIVATION_NONE;
    bool same = false, norm = false, given = false;
    for (int i = 0; i < spec->layer_count && kind == RESIDUAL; i++)
        if (spec->layers[i].out) sizes[0] = spec->layers[i].out;
    if (word && kind == CONV) sscanf(word, "%6d@%6dx%6d/%6d%n", &sizes[0], &sizes[1], &sizes[2], &sizes[3], &used);
    if (word && kind == POOL) sscanf(word, "%6dx%6d/%6d%n", &sizes[1], &sizes[2], &sizes[3], &used);
    if (word && (kind == DENSE || kind == RESIDUAL || kind == SECTION)) sscanf(word, "%6d%n", &sizes[0], &used);
    if (used ? word[used] != 0 : kind <= DENSE || kind == SECTION)
        return FAIL(reading, "it must be written as %s", usages[kind - CONV]);
    for (int i = 0; i < 4; i++)
        if (sizes[i] < 1 || sizes[i] > FARM_NET_SIZE_MAX)
            return FAIL(reading, "%d is outside its range, 1 to %d", sizes[i], FARM_NET_SIZE_MAX);
    if (sizes[1] != sizes[2]) return FAIL(reading, "a kernel of %dx%d is not square", sizes[1], sizes[2]);
    for (word = used ? strtok_r(NULL, " ", rest) : word; word; word = strtok_r(NULL, " ", rest)) {
        const int found = find(word);
        if ((found == SAME   ? same || kind != CONV
             : found == NORM ? norm || kind > DENSE
                             : found >= CONV || given || kind == POOL))
            return FAIL(reading, "'%.40s' is unexpected: it must be written as %s", word, usages[kind - CONV]);
        same |= found == SAME;
        norm |= found == NORM;
        if (found < CONV) own = found, given = true;
    }
    return append_item(reading, sizes, same, norm, (enum farm_activation)own);
}

static enum farm_status read_item(struct reading *reading, const char *text, const char *at, size_t bytes) {
    char copy[FARM_NET_TEXT_BYTES], *rest = NULL;
    while (bytes && *at == ' ') at++, bytes--;
    while (bytes && at[bytes - 1] == ' ') bytes--;
    snprintf(copy, sizeof copy, "%.*s", (int)bytes, at);
    reading->source.at = (uint8_t)(at - text);
    reading->source.bytes = (uint8_t)bytes;
    const int found = find(copy);
    if (found < CONV) {
        reading->all = (enum farm_activation)found;
        return FARM_OK;
    }
    if (found == SEPARATE) {
        reading->spec->separate = true;
        return FARM_OK;
    }
    char *word = strtok_r(copy, " ", &rest);
    if (!word)
        return farm_fail(reading->err, FARM_E_INVALID, "a layer is missing at byte %td of '%s'", at - text + 1, text);
    const int kind = find(word);
    const char *near = kind < WORDS ? NULL : farm_nearest(word, words, WORDS);
    if (kind >= CONV && kind <= NORM) {
        reading->kind = kind;
        word = strtok_r(NULL, " ", &rest);
    } else if (!reading->kind || !strchr("-0123456789", *word)) {
        return farm_fail(reading->err, FARM_E_INVALID,
                         "unexpected word '%.40s'%s%s%sA network is shallow, nature, lite, deep, mlp or separate, or "
                         "its layers, as in \"conv 32@4x4/2, pool, dense 256 norm\" (docs/TRAINING.md)",
                         word, near ? "; did you mean '" : "", near ? near : "", near ? "'? " : ". ");
    }
    reading->source.number++;
    return read_layer(reading, word, &rest);
}

enum farm_status farm_net_find(const char *text, struct farm_net_spec *spec, struct farm_error *err) {
    struct reading reading = {.spec = spec, .err = err};
    const size_t bytes = strlen(text), plain = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789@/-, ");
    *spec = (struct farm_net_spec){.separate = false};
    if (bytes >= sizeof spec->text)
        return farm_fail(err, FARM_E_INVALID, "a network's text has at most %zu bytes (here: %zu)",
                         sizeof spec->text - 1, bytes);
    if (plain < bytes)
        return farm_fail(err, FARM_E_INVALID,
                         "byte %zu: a network's text has small letters, whole numbers, @ / - , and spaces", plain + 1);
    memcpy(spec->text, text, bytes);
    text = layers_of(spec->text);
    for (const char *at = text;; at++) {
        const size_t item = strcspn(at, ",");
        const enum farm_status status = read_item(&reading, text, at, item);
        if (status) return status;
        at += item;
        if (!*at) break;
    }
    if (spec->layer_count == 0) return farm_fail(err, FARM_E_INVALID, "'%s': a network needs a layer", text);
    for (int i = 0; i < spec->layer_count && spec->separate; i++) spec->layers[i].out *= 2;
    return FARM_OK;
}
