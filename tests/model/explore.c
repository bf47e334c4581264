// See explore.h: the search. Equal states are recognised by their hash, so it is over states, not over paths; paths are
// counted on the way back.
#include "explore.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

static const char *const KINDS[] = {"loads",          "stores",        "adds",         "fence",      "continues",
                                    "awaits",         "locks",         "polls",        "futex wait", "futex wake",
                                    "writes eventfd", "polls eventfd", "reads eventfd"};

static unsigned list_steps(unsigned t, struct choice *choices) {
    unsigned from, to, count = 0;
    if (world.threads[t].status != S_READY) return 0;
    find_stores(&world.threads[t], &from, &to);
    assert(to - from < CHOICES / THREADS - 2);
    for (unsigned s = from; s < to; s++) choices[count++] = (struct choice){.thread = (uint8_t)t, .store = (uint8_t)s};
    return count;
}

static unsigned list_crash(unsigned p, struct choice *choices) {
    if (!world.crashes_left || !world.processes[p].may_crash) return 0;
    for (unsigned t = 0; t < world.thread_count; t++) { // a living thread represents its process
        if (world.threads[t].process != p || world.threads[t].status == S_ENDED) continue;
        *choices = (struct choice){.thread = (uint8_t)t, .crash = true};
        return 1;
    }
    return 0;
}

// Whether a thread's next step commutes with all steps of the others; then only its own process's crash is tried before
// it. Loads of its own word and stores to a word with one writer commute.
static bool commutes(unsigned t) {
    const struct thread *thread = &world.threads[t];
    const struct word *word = &world.words[thread->next.word];
    if (thread->status != S_READY) return false;
    if (thread->next.kind == K_YIELD) return true;
    if (thread->next.kind == K_UNTIL) return word->stores[word->count - 1].value >= thread->next.value;
    if (thread->next.kind == K_STORE) return word->one_writer;
    return thread->next.kind == K_LOAD && word->one_writer && word->writer == t + 1;
}

// Lists all next choices.
static unsigned list_choices(struct choice *choices) {
    unsigned count = 0;
    for (unsigned t = 0; t < world.thread_count; t++) {
        if (!commutes(t)) continue;
        count = list_steps(t, choices);
        return count + list_crash((unsigned)world.threads[t].process, choices + count);
    }
    for (unsigned t = 0; t < world.thread_count; t++) {
        const struct thread *thread = &world.threads[t];
        unsigned steps = list_steps(t, choices + count);
        bool sleeps =
            thread->status == S_ASLEEP || (thread->status == S_READY && thread->next.kind == K_POLL && !steps);
        count += steps;
        if (sleeps && world.spurious_left) choices[count++] = (struct choice){.thread = (uint8_t)t, .spurious = true};
    }
    for (unsigned p = 0; p < world.process_count; p++) count += list_crash(p, choices + count);
    return count;
}

// ---- states ----

static size_t stack_used(unsigned t) {
    if (world.threads[t].status == S_ENDED) return 0;
    return (size_t)(stacks[t] + STACK - (uint8_t *)world.threads[t].stack_pointer);
}

static size_t state_bytes(void) {
    size_t bytes = offsetof(struct world, user) + world.user_used;
    for (unsigned t = 0; t < world.thread_count; t++) bytes += stack_used(t);
    return bytes;
}

static uint8_t *save_state(void) {
    uint8_t *memory = malloc(state_bytes()), *to = memory;
    if (!memory) abort();
    size_t fixed = offsetof(struct world, user) + world.user_used;
    memcpy(to, &world, fixed);
    to += fixed;
    for (unsigned t = 0; t < world.thread_count; t++) {
        memcpy(to, stacks[t] + STACK - stack_used(t), stack_used(t));
        to += stack_used(t);
    }
    return memory;
}

static void restore_state(const uint8_t *from) {
    memcpy(&world, from, offsetof(struct world, user));
    from += offsetof(struct world, user);
    memcpy(world.user, from, world.user_used);
    from += world.user_used;
    for (unsigned t = 0; t < world.thread_count; t++) {
        memcpy(stacks[t] + STACK - stack_used(t), from, stack_used(t));
        from += stack_used(t);
    }
}

struct key {
    uint64_t a, b;
};

static void mix_bytes(struct key *key, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        key->a = (key->a ^ word) * 0x9fb21c651e98df25u;
        key->a ^= key->a >> 29;
        key->b = (key->b + word) * 0xd6e8feb86659fd93u;
        key->b ^= key->b >> 32;
    }
    uint64_t rest = 0;
    memcpy(&rest, at, bytes);
    key->a = (key->a ^ rest ^ bytes) * 0x9fb21c651e98df25u;
    key->b = (key->b + rest) * 0xd6e8feb86659fd93u;
    key->a ^= key->a >> 31;
    key->b ^= key->b >> 30;
}

static struct key hash_state(void) {
    struct key key = {0x243f6a8885a308d3u, 0x13198a2e03707344u};
    mix_bytes(&key, &world, offsetof(struct world, words));
    for (unsigned w = 0; w < world.word_count; w++) {
        mix_bytes(&key, &world.words[w].count, sizeof world.words[w].count);
        mix_bytes(&key, world.words[w].stores, world.words[w].count * sizeof *world.words[w].stores);
    }
    mix_bytes(&key, world.variables, world.variable_count * sizeof *world.variables);
    mix_bytes(&key, world.threads, world.thread_count * sizeof *world.threads);
    mix_bytes(&key, world.processes, offsetof(struct world, user) - offsetof(struct world, processes));
    mix_bytes(&key, world.user, world.user_used);
    for (unsigned t = 0; t < world.thread_count; t++) mix_bytes(&key, stacks[t] + STACK - stack_used(t), stack_used(t));
    return key;
}

// States seen, with the number of ways from each to an end (-1 while it is being explored).
struct seen {
    struct key key;
    double ways;
};
static struct {
    struct seen *entries;
    uint64_t capacity, count;
} table;

static struct seen *find_seen(struct key key) {
    if (table.count * 2 >= table.capacity) {
        struct seen *old = table.entries;
        uint64_t old_capacity = table.capacity;
        table.capacity = old_capacity ? old_capacity * 2 : 1u << 16;
        table.entries = __real_calloc(table.capacity, sizeof *table.entries);
        if (!table.entries) abort();
        for (uint64_t i = 0; i < old_capacity; i++)
            if (old[i].key.a | old[i].key.b) {
                uint64_t at = old[i].key.a & (table.capacity - 1);
                while (table.entries[at].key.a | table.entries[at].key.b) at = (at + 1) & (table.capacity - 1);
                table.entries[at] = old[i];
            }
        __real_free(old);
    }
    uint64_t at = key.a & (table.capacity - 1);
    while ((table.entries[at].key.a | table.entries[at].key.b) &&
           (table.entries[at].key.a != key.a || table.entries[at].key.b != key.b))
        at = (at + 1) & (table.capacity - 1);
    return &table.entries[at];
}

// ---- the search ----

struct frame {
    uint8_t *state;
    struct key key;
    double ways;
    unsigned count, next;
    struct choice choices[CHOICES];
};
enum { DEPTH = 4000 };
static struct frame frames[DEPTH];

static void print_choice(const struct choice *choice) {
    const struct thread *thread = &world.threads[choice->thread];
    const struct operation *next = &thread->next;
    const char *name = host.threads[choice->thread].name;
    if (choice->crash) {
        printf("  %s is killed\n", host.processes[thread->process].name);
    } else if (choice->spurious) {
        printf("  %s: spurious wake-up\n", name);
    } else {
        printf("  %s: %s", name, KINDS[next->kind]);
        const struct word *word = &world.words[next->word];
        if (next->kind == K_LOAD || next->kind == K_FUTEX_WAIT)
            printf(" %s: %llu%s", word->name, (unsigned long long)word->stores[choice->store].value,
                   choice->store + 1u < word->count ? " (not the newest)" : "");
        if (next->kind == K_AWAIT || next->kind == K_UNTIL) printf(" %s", word->name);
        if (next->kind == K_STORE) printf(" %s = %llu", word->name, (unsigned long long)next->value);
        if (next->kind == K_FUTEX_WAIT) printf(", expecting %llu", (unsigned long long)next->value);
        printf("\n");
    }
}

static void print_failure(unsigned depth) {
    printf("%s: FAILED: %s\nsteps:\n", host.scenario->name, host.failure);
    for (unsigned i = 0; i < depth; i++) {
        restore_state(frames[i].state);
        print_choice(&frames[i].choices[frames[i].next - 1]);
    }
}

// Makes a frame for the current state unless it was seen. Returns the ways from it if they are known, else -1.
static double enter_state(unsigned depth, struct model_result *result) {
    struct key key = hash_state();
    struct seen *seen = find_seen(key);
    if (seen->key.a | seen->key.b) return seen->ways > 0 ? seen->ways : 0; // 0 also: a cycle
    struct frame *frame = &frames[depth];
    frame->count = list_choices(frame->choices);
    frame->next = 0;
    frame->ways = 0;
    frame->key = key;
    if (!frame->count) {
        for (unsigned t = 0; t < world.thread_count; t++)
            if (world.threads[t].status != S_ENDED)
                fail("deadlock: %s %s for ever", host.threads[t].name,
                     world.threads[t].status == S_ASLEEP || world.threads[t].next.kind == K_POLL ? "sleeps" : "waits");
        if (!host.failure[0] && host.scenario->end) host.scenario->end();
        frame->ways = 1;
    }
    *seen = (struct seen){.key = key, .ways = -1};
    table.count++;
    result->states++;
    if (depth > result->depth) result->depth = depth;
    frame->state = save_state();
    return -1;
}

static void check_capacity(unsigned depth) {
    if (depth + 1 < DEPTH) return;
    fprintf(stderr, "model: deeper than %d steps\n", DEPTH);
    abort();
}

struct model_result model_explore(const struct model_scenario *scenario) {
    struct model_result result = {0};
    memset(&world, 0, sizeof world);
    memset(&host, 0, sizeof host);
    if (table.entries) memset(table.entries, 0, table.capacity * sizeof *table.entries);
    table.count = 0;
    host.scenario = scenario;
    world.crashes_left = scenario->crashes;
    world.spurious_left = scenario->spurious;
    scenario->set_up();
    unsigned depth = 0;
    enter_state(0, &result);
    for (;;) {
        struct frame *frame = &frames[depth];
        if (frame->next == frame->count) {
            find_seen(frame->key)->ways = frame->ways;
            __real_free(frame->state);
            if (!depth) break;
            frames[--depth].ways += frame->ways;
            continue;
        }
        restore_state(frame->state);
        apply_choice(&frame->choices[frame->next++]);
        forget_stores();
        renumber_clocks();
        result.steps++;
        if (!host.failure[0] && scenario->invariant) scenario->invariant();
        check_capacity(depth);
        double ways = host.failure[0] ? 0 : enter_state(depth + 1, &result);
        if (host.failure[0]) {
            print_failure(depth + 1);
            result.failed = true;
            return result;
        }
        if (ways < 0)
            depth++;
        else
            frame->ways += ways;
    }
    result.interleavings = frames[0].ways;
    return result;
}

static bool is_chosen(const char *name, bool extensive, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0 || strcmp(argv[i], "all") == 0) return true;
    return argc == 1 && !extensive;
}

int model_main(int argc, char **argv, unsigned count, bool (*choose)(unsigned i, struct model_scenario *scenario)) {
    unsigned run = 0, failed = 0;
    uint64_t states = 0, steps = 0;
    double interleavings = 0;
    for (unsigned i = 0; i < count && !failed; i++) {
        struct model_scenario scenario;
        const bool extensive = choose(i, &scenario);
        if (argc == 2 && strcmp(argv[1], "list") == 0) printf("%s%s\n", scenario.name, extensive ? " (extensive)" : "");
        if (!is_chosen(scenario.name, extensive, argc, argv)) continue;
        const struct model_result result = model_explore(&scenario);
        run++;
        failed += result.failed;
        states += result.states;
        steps += result.steps;
        interleavings += result.interleavings;
        if (!result.failed)
            printf("%s: %llu states, %llu steps, %.3g interleavings, up to %u steps long\n", scenario.name,
                   (unsigned long long)result.states, (unsigned long long)result.steps, result.interleavings,
                   result.depth);
        fflush(stdout);
    }
    printf("%u scenarios, %u failed, %llu states, %llu steps, %.3g interleavings\n", run, failed,
           (unsigned long long)states, (unsigned long long)steps, interleavings);
    return failed ? 1 : 0;
}
