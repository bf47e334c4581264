// The choice of arithmetic: what may be chosen, what files keep, and what is ignored. Which form is fastest depends on
// the machine, so no test expects one.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../support/nets.h"
#include "nn/arithmetic.h"

static struct farm_net net_of(const char *name, struct farm_net_io io) {
    struct farm_error err = {.message = ""};
    struct farm_net net;
    cr_assert_eq(farm_net_make(net_spec(name), &io, &net, &err), FARM_OK, "%s", err.message);
    return net;
}

static const struct farm_net_io grey = {.frame_channels = 1, .height = 42, .width = 42, .stack = 4, .actions = 6};
static const struct farm_net_io flat = {.flat = 5, .stack = 1, .actions = 3};

static struct farm_arithmetic_request request_of(const struct farm_net *net) {
    return (struct farm_arithmetic_request){
        .net = net, .precision = FARM_PRECISION_AUTO, .train_rows = 8, .infer_rows = 8, .version_rows = 64};
}

static struct farm_arithmetic choose(const struct farm_arithmetic_request *request, char text[FARM_ARITHMETIC_TEXT]) {
    struct farm_arithmetic a;
    struct farm_error err = {.message = ""};
    cr_assert_eq(farm_arithmetic_choose(request, &a, text, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_arithmetic_check(request->net, &a, &err), FARM_OK, "%s", err.message);
    return a;
}

static bool same(const struct farm_net *net, const struct farm_arithmetic *a, const struct farm_arithmetic *b) {
    for (int i = 0; i < net->op_count; i++)
        if (!farm_form_equal(a->forms[i], b->forms[i])) return false;
    return a->first == b->first && a->path == b->path;
}

static int bf16_count(const struct farm_net *net, const struct farm_arithmetic *a) {
    int count = 0;
    for (int i = 0; i < net->op_count; i++) count += a->forms[i].bf16;
    return count;
}

// Choices are kept only in folders that others cannot write, so not in /tmp itself.
static char folder[] = "/tmp/farm-arithmetic-XXXXXX";
static void make_folder(void) {
    cr_assert(mkdtemp(folder));
}
static void remove_folder(void) {
    cr_assert_eq(rmdir(folder), 0);
}
TestSuite(arithmetic, .init = make_folder, .fini = remove_folder);

// A file in it that holds `text`; NULL: an empty one.
static char *file_new(const char *text) {
    static char path[64];
    snprintf(path, sizeof path, "%s/XXXXXX", folder);
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    if (text != NULL) cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return strdup(path);
}

static int line_count(const char *path) {
    FILE *file = fopen(path, "r");
    int lines = 0;
    for (int c; file != NULL && (c = fgetc(file)) != EOF;) lines += c == '\n';
    if (file != NULL) fclose(file);
    return lines;
}

// Sets a new run file and reads the choice's line from it.
static char *chosen_line(struct farm_arithmetic_request *request, char line[4096]) {
    char text[FARM_ARITHMETIC_TEXT], *file = file_new(NULL);
    request->run_file = file;
    choose(request, text);
    FILE *in = fopen(file, "r");
    cr_assert_not_null(fgets(line, 4096, in));
    fclose(in);
    return file;
}

// The first layer's path in such a line.
static int path_in(const char *line) {
    int first, path;
    cr_assert_eq(sscanf(strchr(line, '\t'), "%d %d", &first, &path), 2);
    return path;
}

// Ends the line at `to` with a plan for Nature: this path, and all ops in the form `op`.
static void end_with_plan(char line[4096], char *to, int path, const char *op) {
    snprintf(to, 4096 - (size_t)(to - line), "\t1 %d %s %s %s %s %s\n", path, op, op, op, op, op);
}

Test(arithmetic, every_network_gets_a_choice_that_executors_can_compute) {
    static const char *const names[] = {"shallow", "nature", "deep"};
    for (int i = 0; i < 3; i++)
        for (int evaluation = 0; evaluation < 2; evaluation++) {
            const struct farm_net net = net_of(names[i], grey);
            struct farm_arithmetic_request request = request_of(&net);
            char text[FARM_ARITHMETIC_TEXT];
            if (evaluation) request.train_rows = 0;
            const struct farm_arithmetic a = choose(&request, text);
            cr_expect_eq(a.first, FARM_CONV_U8_I16);
            cr_expect_not_null(strstr(text, "timed in"), "%s", text);
        }
}

Test(arithmetic, forced_precisions_are_obeyed) {
    const struct farm_net net = net_of("shallow", grey);
    struct farm_arithmetic_request request = request_of(&net);
    struct farm_form forms[FARM_FORMS_MAX];
    char text[FARM_ARITHMETIC_TEXT];
    request.precision = FARM_PRECISION_F32;
    struct farm_arithmetic a = choose(&request, text);
    cr_expect_eq(a.first, FARM_CONV_U8_F32);
    cr_expect_eq(bf16_count(&net, &a), 0);
    request.precision = FARM_PRECISION_BF16;
    if (farm_arithmetic_forms(&net, FARM_PRECISION_BF16, forms) == 0) {
        struct farm_error err;
        cr_expect_eq(farm_arithmetic_choose(&request, &a, text, &err), FARM_E_UNSUPPORTED);
        cr_expect_not_null(strstr(err.message, "use precision auto or f32"));
        return;
    }
    a = choose(&request, text);
    cr_expect_eq(bf16_count(&net, &a), net.op_count);
}

Test(arithmetic, flat_observations_are_f32_and_nothing_is_timed) {
    const struct farm_net net = net_of("mlp", flat);
    const struct farm_arithmetic_request request = request_of(&net);
    char text[FARM_ARITHMETIC_TEXT];
    const struct farm_arithmetic a = choose(&request, text);
    cr_expect_eq(bf16_count(&net, &a), 0);
    cr_expect_null(strstr(text, "timed"), "%s", text);
}

// The run's file goes before the user's, and receives the user's choice.
Test(arithmetic, a_choice_is_kept_in_both_files) {
    const struct farm_net net = net_of("shallow", grey);
    struct farm_arithmetic_request request = request_of(&net);
    char text[FARM_ARITHMETIC_TEXT], *run = file_new(NULL), *user = file_new(NULL);
    request.user_file = user;
    const struct farm_arithmetic first = choose(&request, text);
    cr_expect_eq(line_count(user), 1);
    request.run_file = run;
    for (int i = 0; i < 2; i++) { // from the user's file, then from the run's
        const struct farm_arithmetic again = choose(&request, text);
        cr_expect(same(&net, &again, &first));
        cr_expect_not_null(strstr(text, "as timed earlier"), "%s", text);
        cr_expect_eq(line_count(run), 1);
        cr_expect_eq(line_count(user), i == 0);
        unlink(user);
    }
    request.infer_rows = 16;
    request.train_rows = 0;
    request.user_file = user;
    const struct farm_arithmetic evaluation = choose(&request, text); // the run's, whatever the sizes
    cr_expect(same(&net, &evaluation, &first));
    cr_expect_eq(line_count(run), 1);
    request.run_file = NULL;
    choose(&request, text);
    cr_expect_not_null(strstr(text, "timed in"), "%s", text);
    cr_expect_eq(line_count(user), 1);
    cr_expect_eq(line_count(run), 1);
    unlink(run);
    unlink(user);
    free(run);
    free(user);
}

// A run that began with older kernels keeps its choice; the user's file is timed again.
Test(arithmetic, a_choice_of_older_kernels_is_kept_for_its_run_only) {
    const struct farm_net net = net_of("nature", grey);
    struct farm_arithmetic_request request = request_of(&net);
    char text[FARM_ARITHMETIC_TEXT], line[4096], *file = chosen_line(&request, line);
    char *known = strstr(line, ", kernels ");
    cr_assert_not_null(known);
    const int path = path_in(line);
    for (int i = 0; i < 3; i++) { // this version's line, the run's from before, the user's from before
        end_with_plan(line, i == 0 ? strchr(line, '\t') : known, path, i == 0 ? "w0" : "f0");
        unlink(file);
        free(file);
        file = file_new(line);
        request.run_file = i < 2 ? file : NULL;
        request.user_file = i < 2 ? NULL : file;
        const struct farm_arithmetic a = choose(&request, text);
        cr_expect_eq(strstr(text, "as timed earlier") != NULL, i < 2, "case %d: %s", i, text);
        if (i < 2) cr_expect_eq(a.forms[1].winograd, i == 0, "case %d: %s", i, text);
    }
    unlink(file);
    free(file);
}

Test(arithmetic, invalid_files_are_ignored) {
    const struct farm_net net = net_of("shallow", grey);
    struct farm_arithmetic_request request = request_of(&net);
    char text[FARM_ARITHMETIC_TEXT], line[4096], *file = chosen_line(&request, line);
    const size_t key = (size_t)(strchr(line, '\t') - line);
    request.train_rows = 0; // less to time
    choose(&request, text);
    cr_assert_not_null(strstr(text, "as timed earlier"), "the unchanged file: %s", text);
    // Of the wrong length, path, type, block; mixed wrongly.
    static const char *const plans[] = {"",
                                        "\n",
                                        "\t\n",
                                        "\t1\n",
                                        "\t1 9 f0 f0 f0 f0\n",
                                        "\t1 1 f0 x0 f0 f0\n",
                                        "\t1 1 f7 f7 f7 f7\n",
                                        "\t1 1 f0 f0\n",
                                        "\t1 1 w0 f0 f0 f0\n",
                                        "\t1 1 f0 f8 f0 f0\n"};
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        snprintf(line + key, sizeof line - key, "%s", plans[i]);
        unlink(file);
        free(file);
        file = file_new(line);
        request.run_file = i ? file : NULL;
        request.user_file = i ? NULL : file; // gets the new choice
        choose(&request, text);
        cr_expect_not_null(strstr(text, "timed in"), "plan %zu: %s", i, text);
        if (!i) choose(&request, text); // the new line does not continue a torn one
        if (!i) cr_expect_not_null(strstr(text, "as timed earlier"), "%s", text);
    }
    request.run_file = "/nowhere/arithmetic.txt";
    choose(&request, text);
    unlink(file);
    free(file);
}

// Nothing is timed, read from other runs or kept for them. A layer that AVX2 can compute by Winograd's filtering is.
Test(arithmetic, a_fixed_choice_depends_on_the_instructions_only) {
    const struct farm_net net = net_of("nature", grey);
    struct farm_arithmetic_request request = request_of(&net);
    struct farm_form forms[FARM_FORMS_MAX];
    char text[FARM_ARITHMETIC_TEXT], line[4096], *user = chosen_line(&request, line);
    const int count = farm_arithmetic_forms(&net, FARM_PRECISION_AUTO, forms);
    bool bf16 = false, avx2 = false;
    for (int i = 0; i < count; i++) {
        bf16 |= forms[i].bf16;
        avx2 |= forms[i].winograd && forms[i].block == 8;
    }
    cr_assert_eq(truncate(user, 0), 0);
    request.run_file = NULL;
    request.user_file = user;
    request.fixed = true;
    const struct farm_arithmetic a = choose(&request, text);
    cr_expect_not_null(strstr(text, "fixed, not timed"), "%s", text);
    cr_expect_eq(line_count(user), 0);
    cr_expect_eq(bf16_count(&net, &a), bf16 ? net.op_count : 0);
    cr_expect_eq(strstr(text, "winograd") != NULL, avx2 && !bf16, "%s", text);
    request.train_rows = 500;
    struct farm_arithmetic again = choose(&request, text);
    cr_expect(same(&net, &again, &a));
    // The user's file holds another form, which only a choice that is not fixed takes.
    int other = 0;
    while (other < count && (forms[other].bf16 || farm_form_equal(forms[other], a.forms[1]))) other++;
    cr_assert_lt(other, count);
    char op[8];
    snprintf(op, sizeof op, "%c%d", forms[other].winograd ? 'w' : 'f', forms[other].block);
    end_with_plan(line, strchr(line, '\t'), path_in(line), op);
    unlink(user);
    free(user);
    request.train_rows = 8;
    request.user_file = user = file_new(line);
    again = choose(&request, text);
    cr_expect(same(&net, &again, &a), "%s", text);
    request.fixed = false;
    again = choose(&request, text);
    cr_expect_not_null(strstr(text, "as timed earlier"), "%s", text);
    cr_expect(farm_form_equal(again.forms[1], forms[other]), "%s", text);
    cr_expect_eq(line_count(user), 1);
    unlink(user);
    free(user);
}

static struct farm_arithmetic mix(const struct farm_net *net, double seconds[2][FARM_NET_OPS_MAX]) {
    static const struct farm_form forms[] = {{.bf16 = false}, {.bf16 = true}};
    struct farm_arithmetic a = farm_arithmetic_uniform(net, FARM_PRECISION_AUTO, forms[0]);
    farm_arithmetic_mix(net, 2, forms, (const double(*)[FARM_NET_OPS_MAX])seconds, a.forms);
    return a;
}

// Of two forms, each op gets the cheaper one, except that residual blocks keep one form and conversions must pay off.
Test(arithmetic, mixed_forms_are_the_cheapest) {
    const struct farm_net net = net_of("deep", grey);
    double seconds[2][FARM_NET_OPS_MAX] = {{0}};
    const int dense = net.op_count - 2, heads = net.op_count - 1;
    for (int i = 0; i < net.op_count; i++) {
        seconds[0][i] = 1;
        seconds[1][i] = i >= dense ? 2 : 0.5;
    }
    struct farm_arithmetic a = mix(&net, seconds);
    for (int i = 0; i < net.op_count; i++) cr_expect_eq(a.forms[i].bf16, i < dense, "op %d", i);
    for (int i = 0; i < net.op_count; i++) // a dearer op in the last block: all that belongs to it changes, or none
        if (net.ops[i].skip >= 0) seconds[1][i] = 100;
    a = mix(&net, seconds);
    for (int i = 1; i < net.op_count; i++)
        if (!farm_arithmetic_may_change(&net, i)) cr_expect_eq(a.forms[i].bf16, a.forms[i - 1].bf16, "op %d", i);
    cr_expect(!a.forms[dense - 1].bf16);
    for (int i = 0; i < net.op_count; i++) seconds[1][i] = seconds[0][i] = 1;
    seconds[1][heads] = 1 - 1e-9; // less than a conversion costs
    a = mix(&net, seconds);
    cr_expect(bf16_count(&net, &a) % net.op_count == 0);
}

// Rows are the same with and without it, so a change costs nothing; other ops compute alike, so their times are.
Test(arithmetic, winograd_is_mixed_in_where_it_is_faster) {
    const struct farm_net net = net_of(
        "nature", (struct farm_net_io){.frame_channels = 1, .height = 84, .width = 84, .stack = 4, .actions = 6});
    static const struct farm_form forms[] = {{.block = 0}, {.winograd = true}};
    const double seconds[2][FARM_NET_OPS_MAX] = {{1, 2e-6, 1e-6, 1.1e-6, 1e-6}, {1, 1e-6, 2e-6, 1e-6, 1.1e-6}};
    struct farm_arithmetic a = farm_arithmetic_uniform(&net, FARM_PRECISION_F32, forms[0]);
    farm_arithmetic_mix(&net, 2, forms, seconds, a.forms);
    static const bool right[] = {true, true, false, false, false};
    for (int i = 0; i < net.op_count; i++) cr_expect_eq(a.forms[i].winograd, right[i], "op %d", i);
    cr_expect_eq(farm_arithmetic_check(&net, &a, NULL), FARM_OK);
}
