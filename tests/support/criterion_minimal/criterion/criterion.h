// The part of Criterion that the tests use, for builds without Criterion: ThreadSanitizer cannot map what Criterion
// maps, and AArch64 has no library of it here. Each test runs in a forked child, one after another; a failed cr_assert
// ends it, cr_expect notes the failure and continues. Options: .init .fini .timeout .signal. Takes --json=FILE and
// writes the report that tools/build/run_tests.py reads. FARM_TEST_SKIPS may name a file with lines "suite::name
// reason": those tests are skipped for that reason.
#ifndef FARM_CRITERION_MINIMAL_H
#define FARM_CRITERION_MINIMAL_H

#include <assert.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct lite_options {
    void (*init)(void);
    void (*fini)(void);
    double timeout; // s
    int signal;     // the signal that the test must die of
};

struct lite_test {
    const char *suite, *name;
    void (*body)(void);
    struct lite_options options;
    struct lite_test *next;
};

enum { LITE_FAILED = 211, LITE_SKIPPED = 212, LITE_TIMEOUT_S = 100 };

// One of each in a program, of whose files several may include this.
#define LITE_SHARED __attribute__((weak))
LITE_SHARED struct lite_test *lite_tests;
LITE_SHARED struct lite_options lite_suite_options;
LITE_SHARED bool lite_expectation_failed;
LITE_SHARED char *lite_skip_reason; // shared with the child
static const size_t lite_skip_reason_bytes = 256;

#define TestSuite(suite_, ...)                                                                                         \
    __attribute__((constructor(201))) static void lite_suite_##suite_(void) {                                          \
        lite_suite_options = (struct lite_options){__VA_ARGS__};                                                       \
    }                                                                                                                  \
    struct lite_options

#define Test(suite_, name_, ...)                                                                                       \
    static void suite_##_##name_##_body(void);                                                                         \
    __attribute__((constructor(202))) static void suite_##_##name_##_register(void) {                                  \
        static struct lite_test test;                                                                                  \
        test = (struct lite_test){#suite_, #name_, suite_##_##name_##_body, {__VA_ARGS__}, lite_tests};                \
        lite_tests = &test;                                                                                            \
    }                                                                                                                  \
    static void suite_##_##name_##_body(void)

__attribute__((unused)) static void lite_check(bool holds, bool fatal, const char *file, int line, const char *text,
                                               const char *note) {
    if (holds) return;
    fprintf(stderr, "%s:%d: Assertion failed: %s%s%s\n", file, line, text, note[0] ? ": " : "", note);
    if (fatal) _exit(LITE_FAILED);
    __atomic_store_n(&lite_expectation_failed, true, __ATOMIC_RELAXED);
}

#define LITE_TEXT(...)                                                                                                 \
    __extension__({                                                                                                    \
        static __thread char lite_text[512];                                                                           \
        lite_text[0] = 0;                                                                                              \
        lite_format(lite_text, sizeof lite_text, "" __VA_ARGS__);                                                      \
        lite_text;                                                                                                     \
    })
__attribute__((unused)) static void lite_format(char *text, size_t bytes, const char *format, ...) {
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    vsnprintf(text, bytes, format, arguments);
    __builtin_va_end(arguments);
}

#define LITE(fatal, condition, text, ...)                                                                              \
    do {                                                                                                               \
        bool lite_holds = (condition);                                                                                 \
        lite_check(lite_holds, fatal, __FILE__, __LINE__, text, lite_holds ? "" : LITE_TEXT(__VA_ARGS__));             \
    } while (0)
#define LITE_OP(fatal, a, op, b, ...)     LITE(fatal, (a)op(b), #a " " #op " " #b, ##__VA_ARGS__)
#define LITE_STR(fatal, a, op, b, ...)    LITE(fatal, strcmp(a, b) op 0, #a " " #op " " #b, ##__VA_ARGS__)
#define LITE_MEM(fatal, a, op, b, n, ...) LITE(fatal, memcmp(a, b, n) op 0, #a " " #op " " #b, ##__VA_ARGS__)
#define LITE_NEAR(fatal, a, b, e, ...)    LITE(fatal, fabs((double)(a) - (double)(b)) <= (e), #a " ~ " #b, ##__VA_ARGS__)

#define cr_assert(c, ...)                LITE(true, c, #c, ##__VA_ARGS__)
#define cr_assert_not(c, ...)            LITE(true, !(c), "!(" #c ")", ##__VA_ARGS__)
#define cr_assert_eq(a, b, ...)          LITE_OP(true, a, ==, b, ##__VA_ARGS__)
#define cr_assert_neq(a, b, ...)         LITE_OP(true, a, !=, b, ##__VA_ARGS__)
#define cr_assert_lt(a, b, ...)          LITE_OP(true, a, <, b, ##__VA_ARGS__)
#define cr_assert_leq(a, b, ...)         LITE_OP(true, a, <=, b, ##__VA_ARGS__)
#define cr_assert_gt(a, b, ...)          LITE_OP(true, a, >, b, ##__VA_ARGS__)
#define cr_assert_geq(a, b, ...)         LITE_OP(true, a, >=, b, ##__VA_ARGS__)
#define cr_assert_null(a, ...)           LITE_OP(true, a, ==, NULL, ##__VA_ARGS__)
#define cr_assert_not_null(a, ...)       LITE_OP(true, a, !=, NULL, ##__VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)      LITE_STR(true, a, ==, b, ##__VA_ARGS__)
#define cr_assert_str_neq(a, b, ...)     LITE_STR(true, a, !=, b, ##__VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...)   LITE_MEM(true, a, ==, b, n, ##__VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...) LITE_NEAR(true, a, b, e, ##__VA_ARGS__)

#define cr_expect(c, ...)                LITE(false, c, #c, ##__VA_ARGS__)
#define cr_expect_not(c, ...)            LITE(false, !(c), "!(" #c ")", ##__VA_ARGS__)
#define cr_expect_eq(a, b, ...)          LITE_OP(false, a, ==, b, ##__VA_ARGS__)
#define cr_expect_neq(a, b, ...)         LITE_OP(false, a, !=, b, ##__VA_ARGS__)
#define cr_expect_lt(a, b, ...)          LITE_OP(false, a, <, b, ##__VA_ARGS__)
#define cr_expect_leq(a, b, ...)         LITE_OP(false, a, <=, b, ##__VA_ARGS__)
#define cr_expect_gt(a, b, ...)          LITE_OP(false, a, >, b, ##__VA_ARGS__)
#define cr_expect_geq(a, b, ...)         LITE_OP(false, a, >=, b, ##__VA_ARGS__)
#define cr_expect_null(a, ...)           LITE_OP(false, a, ==, NULL, ##__VA_ARGS__)
#define cr_expect_not_null(a, ...)       LITE_OP(false, a, !=, NULL, ##__VA_ARGS__)
#define cr_expect_str_eq(a, b, ...)      LITE_STR(false, a, ==, b, ##__VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...)   LITE_MEM(false, a, ==, b, n, ##__VA_ARGS__)
#define cr_expect_float_eq(a, b, e, ...) LITE_NEAR(false, a, b, e, ##__VA_ARGS__)

#define cr_log_warn(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr))
#define cr_skip_test(...)                                                                                              \
    do {                                                                                                               \
        lite_format(lite_skip_reason, lite_skip_reason_bytes, "" __VA_ARGS__);                                         \
        _exit(LITE_SKIPPED);                                                                                           \
    } while (0)

#include <sys/mman.h>

// Ends by exit(), so that the sanitizer sets its status (66) if it has reported.
static void lite_child(const struct lite_test *test) {
    double timeout_s = test->options.timeout > 0 ? test->options.timeout : lite_suite_options.timeout;
    void (*init)(void) = test->options.init ? test->options.init : lite_suite_options.init;
    void (*fini)(void) = test->options.fini ? test->options.fini : lite_suite_options.fini;
    alarm(timeout_s > 0 ? (unsigned)timeout_s + 1 : LITE_TIMEOUT_S);
    if (init) init();
    test->body();
    if (fini) fini();
    exit(lite_expectation_failed ? LITE_FAILED : 0);
}

// Whether the list of skips has the test; copies the reason.
static bool lite_listed(const struct lite_test *test) {
    const char *path = getenv("FARM_TEST_SKIPS");
    FILE *list = path ? fopen(path, "r") : NULL;
    char line[512], name[256];
    bool found = false;
    snprintf(name, sizeof name, "%s::%s ", test->suite, test->name);
    while (!found && list && fgets(line, sizeof line, list)) {
        found = strncmp(line, name, strlen(name)) == 0;
        line[strcspn(line, "\n")] = 0;
        if (found) snprintf(lite_skip_reason, lite_skip_reason_bytes, "%s", line + strlen(name));
    }
    if (list) fclose(list);
    return found;
}

static const char *lite_run(const struct lite_test *test) {
    if (lite_listed(test)) return "SKIPPED";
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) return "FAILED";
    if (child == 0) lite_child(test);
    int status = 0;
    if (waitpid(child, &status, 0) != child) return "FAILED";
    if (WIFEXITED(status) && WEXITSTATUS(status) == LITE_SKIPPED) return "SKIPPED";
    if (test->options.signal ? WIFSIGNALED(status) && WTERMSIG(status) == test->options.signal : status == 0)
        return "PASSED";
    fprintf(stderr, "[FAIL] %s::%s (%s %d)\n", test->suite, test->name, WIFEXITED(status) ? "status" : "signal",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return "FAILED";
}

static void lite_print_escaped(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        fputc((unsigned char)*text < 32 ? ' ' : *text, out);
    }
}

LITE_SHARED int main(int argc, char **argv) {
    const char *report = "/dev/null";
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--json=", 7) == 0) report = argv[i] + 7;
    }
    lite_skip_reason = mmap(NULL, lite_skip_reason_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FILE *out = fopen(report, "w");
    if (!out || lite_skip_reason == MAP_FAILED) return 2;
    int passed = 0, failed = 0, skipped = 0;
    fprintf(out, "{\"test_suites\": [{\"name\": \"%s\", \"tests\": [", lite_tests ? lite_tests->suite : "");
    for (const struct lite_test *test = lite_tests; test; test = test->next) {
        lite_skip_reason[0] = 0;
        const char *status = lite_run(test);
        passed += status[0] == 'P', failed += status[0] == 'F', skipped += status[0] == 'S';
        fprintf(out, "%s{\"name\": \"%s\", \"status\": \"%s\", \"messages\": [\"", test == lite_tests ? "" : ", ",
                test->name, status);
        lite_print_escaped(out, lite_skip_reason);
        fputs("\"]}", out);
    }
    fprintf(out, "]}], \"passed\": %d, \"failed\": %d, \"skipped\": %d}\n", passed, failed, skipped);
    fclose(out);
    return failed > 0;
}

#endif
