// See bitmap.h.
#include "base/bitmap.h"

#include <assert.h>
#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = FARM_BITMAP_BITS / 64 };

void farm_bitmap_set(struct farm_bitmap *set, int bit) {
    assert(bit >= 0 && bit < FARM_BITMAP_BITS);
    set->words[bit / 64] |= UINT64_C(1) << (bit % 64);
}

void farm_bitmap_clear(struct farm_bitmap *set, int bit) {
    assert(bit >= 0 && bit < FARM_BITMAP_BITS);
    set->words[bit / 64] &= ~(UINT64_C(1) << (bit % 64));
}

int farm_bitmap_count(const struct farm_bitmap *set) {
    int count = 0;
    for (int i = 0; i < WORDS; i++) count += __builtin_popcountll(set->words[i]);
    return count;
}

int farm_bitmap_next(const struct farm_bitmap *set, int from) {
    if (from < 0) from = 0;
    for (int i = from / 64; i < WORDS; i++) {
        uint64_t word = set->words[i];
        if (i == from / 64) word &= ~UINT64_C(0) << (from % 64);
        if (word) return i * 64 + __builtin_ctzll(word);
    }
    return -1;
}

void farm_bitmap_add(struct farm_bitmap *set, const struct farm_bitmap *other) {
    for (int i = 0; i < WORDS; i++) set->words[i] |= other->words[i];
}

void farm_bitmap_keep(struct farm_bitmap *set, const struct farm_bitmap *other) {
    for (int i = 0; i < WORDS; i++) set->words[i] &= other->words[i];
}

void farm_bitmap_remove(struct farm_bitmap *set, const struct farm_bitmap *other) {
    for (int i = 0; i < WORDS; i++) set->words[i] &= ~other->words[i];
}

static const char *skip_blanks(const char *at) {
    while (isspace((unsigned char)*at)) at++;
    return at;
}

// Reads a number at *at and moves past it; -1: there is none, or it is too large.
static int parse_number(const char **at) {
    if (!isdigit((unsigned char)**at)) return -1;
    char *end;
    unsigned long value = strtoul(*at, &end, 10);
    *at = end;
    return value < FARM_BITMAP_BITS ? (int)value : -1;
}

enum farm_status farm_bitmap_parse(const char *text, struct farm_bitmap *set, struct farm_error *err) {
    memset(set, 0, sizeof *set);
    const char *at = skip_blanks(text);
    while (*at) {
        int first = parse_number(&at);
        int last = first;
        if (*at == '-') {
            at++;
            last = parse_number(&at);
        }
        if (first < 0 || last < first)
            return farm_fail(err, FARM_E_FORMAT, "'%.40s' is not a list of numbers below %d such as 0-3,8", text,
                             FARM_BITMAP_BITS);
        for (int bit = first; bit <= last; bit++) farm_bitmap_set(set, bit);
        at = skip_blanks(at);
        if (*at == ',')
            at = skip_blanks(at + 1);
        else if (*at)
            return farm_fail(err, FARM_E_FORMAT, "'%.40s': expected a comma before '%.8s'", text, at);
    }
    return FARM_OK;
}

char *farm_bitmap_format(const struct farm_bitmap *set, char *text, size_t size) {
    assert(size >= 4);
    size_t used = 0;
    text[0] = 0;
    for (int first = farm_bitmap_next(set, 0); first >= 0;) {
        int last = first;
        while (farm_bitmap_has(set, last + 1)) last++;
        char item[32];
        int n = first == last ? snprintf(item, sizeof item, "%s%d", used ? "," : "", first)
                              : snprintf(item, sizeof item, "%s%d-%d", used ? "," : "", first, last);
        if (used + (size_t)n + 4 > size) { // keeps room for "..."
            memcpy(text + used, "...", 4);
            return text;
        }
        memcpy(text + used, item, (size_t)n + 1);
        used += (size_t)n;
        first = farm_bitmap_next(set, last + 1);
    }
    return text;
}

// The kernel's masks are words of the same layout.
enum farm_status farm_bitmap_pin(const struct farm_bitmap *cpus, struct farm_error *err) {
    char list[64];
    if (!farm_bitmap_count(cpus)) return farm_fail(err, FARM_E_INVALID, "cannot pin to an empty set of CPUs");
    if (!sched_setaffinity(0, sizeof cpus->words, (const cpu_set_t *)cpus->words)) return FARM_OK;
    return farm_fail_errno(err, FARM_E_IO, "cannot pin to CPUs %s (--no-pin runs without)",
                           farm_bitmap_format(cpus, list, sizeof list));
}

enum farm_status farm_bitmap_pin_to(int cpu, struct farm_error *err) {
    struct farm_bitmap one = {0};
    if (cpu < 0 || cpu >= FARM_BITMAP_BITS)
        return farm_fail(err, FARM_E_INVALID, "cannot pin to CPU %d: invalid number", cpu);
    farm_bitmap_set(&one, cpu);
    return farm_bitmap_pin(&one, err);
}

enum farm_status farm_bitmap_pinned(struct farm_bitmap *cpus, struct farm_error *err) {
    *cpus = (struct farm_bitmap){0};
    if (!sched_getaffinity(0, sizeof cpus->words, (cpu_set_t *)cpus->words)) return FARM_OK;
    return farm_fail_errno(err, FARM_E_IO, "cannot read the CPUs of a thread");
}
