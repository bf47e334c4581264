// Samples, metrics.jsonl, metrics.csv, the progress line and JSON. tests/tools/test_cli.py reads TensorBoard's files.
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "report/progress.h"
#include "report/sink.h"

static struct farm_sample sample_at(double wall_s, uint64_t frames) {
    struct farm_sample sample = {.total = {.wall_s = wall_s, .frames = frames, .agent_steps = frames / 4}};
    sample.return_mean = sample.return_std = sample.length_mean = sample.policy_lag_updates = NAN;
    sample.infer_batch_mean = NAN;
    sample.grad_norm = sample.learning_rate = NAN;
    sample.algo[0] = (struct farm_sample_statistic){"loss_policy", NULL, NAN};
    return sample;
}

static char folder[] = "/tmp/farm-metrics-XXXXXX", path[64], csv_path[64];

static void make_folder(void) {
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    snprintf(csv_path, sizeof csv_path, "%s/metrics.csv", folder);
}
static void remove_folder(void) {
    unlink(path);
    unlink(csv_path);
    rmdir(folder);
}
TestSuite(report, .init = make_folder, .fini = remove_folder);

// The file's text, until the next call.
static char *contents_of(const char *file) {
    static char *text;
    size_t bytes;
    struct farm_error err;
    free(text);
    cr_assert_eq(farm_file_read(file, 1 << 20, &text, &bytes, &err), FARM_OK, "%s", err.message);
    return text;
}
static char *contents(void) {
    return contents_of(path);
}

static enum farm_status write_to(const struct farm_sink_format *format, bool resume, const struct farm_sample *sample,
                                 struct farm_error *err) {
    struct farm_sink sink;
    enum farm_status status = farm_sink_open(format, folder, resume, sample, &sink, err);
    if (!status && farm_sink_write(&sink, sample, err)) status = FARM_E_IO;
    farm_sink_close(&sink);
    farm_sink_close(&sink);
    return status;
}

static void write_sample(bool resume, double wall_s, uint64_t frames) {
    struct farm_error err;
    struct farm_sample sample = sample_at(wall_s, frames);
    cr_assert_eq(write_to(&farm_sink_jsonl, resume, &sample, &err), FARM_OK, "%s", err.message);
}

Test(report, every_line_is_one_object) {
    write_sample(false, 1.5, 400);
    write_sample(true, 2.5, 800);
    size_t lines = 0;
    char *rest = contents();
    for (char *line; (line = strsep(&rest, "\n")) && line[0]; lines++) {
        struct farm_error err;
        json_t *object = farm_json_parse(line, strlen(line), "line", &err);
        cr_assert(object, "%s", err.message);
        cr_assert_eq(json_integer_value(json_object_get(object, "frames")), lines ? 800 : 400);
        cr_assert_float_eq(json_real_value(json_object_get(object, "wall_s")), lines ? 2.5 : 1.5, 1e-12);
        cr_assert(json_is_null(json_object_get(object, "return_mean")), "what is not a number is null");
        json_decref(object);
    }
    cr_assert_eq(lines, 2);
}

Test(report, a_new_run_starts_an_empty_file) {
    write_sample(false, 1, 100);
    write_sample(false, 2, 200);
    cr_assert(!strstr(contents(), "\"frames\":100,"));
    cr_assert(strstr(contents(), "\"frames\":200,"));
}

Test(report, resume_removes_a_torn_line) {
    write_sample(false, 1, 100);
    int fd = open(path, O_WRONLY | O_APPEND);
    char torn[9000];
    memset(torn, '#', sizeof torn);
    cr_assert_eq(write(fd, torn, sizeof torn), (ssize_t)sizeof torn);
    close(fd);
    write_sample(true, 2, 200);
    cr_assert(!strchr(contents(), '#'));
    cr_assert(strstr(contents(), "}\n{"));
}

// The file may have `room` more bytes; room 0: any number.
static void limit_file(const char *file, rlim_t room) {
    struct stat info;
    struct rlimit limit = {.rlim_max = RLIM_INFINITY};
    cr_assert_eq(stat(file, &info), 0);
    limit.rlim_cur = room ? (rlim_t)info.st_size + room : RLIM_INFINITY;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

Test(report, a_full_disk_loses_whole_records_only) {
    const struct farm_sink_format *formats[] = {&farm_sink_jsonl, &farm_sink_csv, &farm_sink_tensorboard};
    const struct farm_sample sample = sample_at(1, 100);
    signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        struct farm_sink sink;
        struct farm_error note;
        struct stat empty, one, three;
        cr_assert_eq(farm_sink_open(formats[i], folder, false, &sample, &sink, &note), FARM_OK, "%s", note.message);
        cr_assert_eq(fstat(sink.file.fd, &empty), 0);
        cr_assert(!farm_sink_write(&sink, &sample, &note));
        cr_assert_eq(fstat(sink.file.fd, &one), 0);
        limit_file(sink.file.path, 20); // a part of a record
        cr_assert(farm_sink_write(&sink, &sample, &note), "the beginning is said");
        cr_assert(strstr(note.message, "records are lost") && strstr(note.message, strerror(EFBIG)), "%s",
                  note.message);
        cr_assert(!farm_sink_write(&sink, &sample, &note), "once");
        cr_assert_eq(fstat(sink.file.fd, &three), 0);
        cr_assert_eq(three.st_size, one.st_size, "the part is cut off");
        limit_file(sink.file.path, 0);
        cr_assert(farm_sink_write(&sink, &sample, &note));
        cr_assert(strstr(note.message, "goes on; it lacks 2 records"), "%s", note.message);
        cr_assert(!farm_sink_write(&sink, &sample, &note));
        cr_assert_eq(fstat(sink.file.fd, &three), 0);
        cr_assert_eq(three.st_size - empty.st_size, 3 * (one.st_size - empty.st_size));
        cr_assert_eq(sink.file.missing, 2);
        cr_assert_eq(sink.file.written, 3);
        unlink(sink.file.path);
        farm_sink_close(&sink);
    }
}

// A file that refuses to be cut, as on a file system that has become read-only, and one that is emptied to make room.
Test(report, a_torn_record_is_cut_before_the_next_one) {
    struct farm_appended file = {.fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0666)};
    struct farm_error note;
    cr_assert(!farm_appended_write(&file, "first\n", 6, &note));
    file.losing = true;
    file.whole = 6;
    cr_assert_eq(write(file.fd, "to", 2), 2);
    cr_assert(farm_appended_write(&file, "second\n", 7, &note));
    cr_assert_str_eq(contents(), "first\nsecond\n");
    file.losing = true;
    cr_assert_eq(truncate(path, 0), 0);
    cr_assert(farm_appended_write(&file, "third\n", 6, &note));
    cr_assert_str_eq(contents(), "third\n");
    close(file.fd);
}

Test(report, names_the_file_that_cannot_be_written) {
    struct farm_sink sink;
    struct farm_error err;
    const struct farm_sample sample = sample_at(0, 0);
    cr_assert_eq(farm_sink_open(&farm_sink_jsonl, "/nowhere", false, &sample, &sink, &err), FARM_E_NOT_FOUND);
    cr_assert(strstr(err.message, "/nowhere/metrics.jsonl"));
    farm_sink_close(&sink);
    cr_assert_eq(farm_sink_open(&farm_sink_tensorboard, "/nowhere", false, &sample, &sink, &err), FARM_E_NOT_FOUND);
    cr_assert(strstr(err.message, "/nowhere/events.out.tfevents."));
}

Test(report, a_csv_file_goes_on_with_the_same_columns_only) {
    struct farm_error err;
    struct farm_sample sample = sample_at(1.5, 400);
    cr_assert_eq(write_to(&farm_sink_csv, false, &sample, &err), FARM_OK, "%s", err.message);
    sample = sample_at(2, 800);
    sample.before.frames = 400;
    cr_assert_eq(write_to(&farm_sink_csv, true, &sample, &err), FARM_OK, "%s", err.message);
    char *rest = contents_of(csv_path);
    cr_assert_eq(strncmp(strsep(&rest, "\n"), "wall_s,frames,agent_steps,", 26), 0);
    const char *first = strsep(&rest, "\n"), *second = strsep(&rest, "\n");
    cr_assert(strncmp(first, "1.5,400,100,0,0,0,,,,0,,", 24) == 0 && strstr(first, ",,,,,\r"), "%s", first);
    cr_assert(strncmp(second, "2,800,200,", 10) == 0 && strstr(second, ",2,400,200,0,0\r"), "%s", second);
    cr_assert_str_empty(rest);
    sample.algo[0].key = "loss_q";
    cr_assert_eq(write_to(&farm_sink_csv, true, &sample, &err), FARM_E_USAGE);
    cr_assert(strstr(err.message, "metrics.csv has other columns"), "%s", err.message);
    cr_assert(strstr(contents_of(csv_path), "\n2,800,200,"), "the file is left as it was");
    cr_assert_eq(write_to(&farm_sink_csv, false, &sample, &err), FARM_OK, "%s", err.message);
}

Test(report, keeps_order_and_turns_infinity_into_null) {
    json_t *object = farm_json_object(true);
    farm_json_set_real(object, "z", 0.1);
    farm_json_set_real(object, "a", INFINITY);
    farm_json_set_text(object, "bad", "\xff");
    farm_json_set_bool(object, "yes", true);
    size_t bytes;
    char *line = farm_json_line(object, &bytes);
    cr_assert_str_eq(line, "{\"schema_version\":1,\"z\":0.1,\"a\":null,\"bad\":null,\"yes\":true}\n");
    cr_assert_eq(bytes, strlen(line));
    free(line);
    json_decref(object);
}

Test(report, names_the_place_of_invalid_json) {
    struct farm_error err;
    cr_assert_null(farm_json_parse("{\"a\": 1,\n \"a\": 2}", 18, "answer", &err));
    cr_assert_eq(err.status, FARM_E_FORMAT);
    cr_assert(strstr(err.message, "answer:2"), "%s", err.message);
}

Test(report, time_left_is_the_nearer_of_both_targets) {
    struct farm_sample sample = sample_at(10, 1000);
    cr_assert(isnan(farm_progress_eta_s(&sample)));
    sample.frames_target = 4000;
    cr_assert_float_eq(farm_progress_eta_s(&sample), 30, 1e-9);
    sample.seconds_target = 15;
    cr_assert_float_eq(farm_progress_eta_s(&sample), 5, 1e-9);
    sample.before = (struct farm_totals){.wall_s = 90, .frames = 900}; // 100 frames in the 10 s since --resume
    sample.total.wall_s = 100;
    cr_assert_float_eq(farm_progress_eta_s(&sample), 0, 1e-9); // seconds count all sessions
    sample.seconds_target = 105;
    cr_assert_float_eq(farm_progress_eta_s(&sample), 5, 1e-9);
    sample.seconds_target = 0;
    cr_assert_float_eq(farm_progress_eta_s(&sample), 300, 1e-9);
    sample.total.frames = 5000;
    cr_assert_float_eq(farm_progress_eta_s(&sample), 0, 1e-9);
}

Test(report, eighty_columns_hold_every_figure) {
    struct farm_sample sample = sample_at(3725, 123456789);
    sample.return_mean = -20.87;
    sample.total.updates = 123456;
    sample.frames_per_s = 99949;
    sample.policy_lag_updates = 12.3;
    sample.infer_batch_mean = 256;
    sample.actor_wait_share = 0.07;
    sample.learner_wait_share = 0.15;
    char text[256];
    farm_progress_format(&sample, 79, text, sizeof text);
    cr_assert_str_eq(text, "1:02:05 123M fr 99.9k/s ret -20.9 upd 123k lag 12.3 infer 256 wait a7% l15%");
    farm_progress_format(&sample, 20, text, sizeof text);
    cr_assert_eq(strlen(text), 20);
    farm_progress_format(&sample, 0, text, sizeof text);
    cr_assert(strstr(text, "waiting: actors 7% learner 15%"), "%s", text);
    cr_assert(!strstr(text, "stuck"));
    sample.eval_frames = 1000000;
    sample.eval_return_mean = 17.2;
    farm_progress_format(&sample, 0, text, sizeof text);
    cr_assert(strstr(text, "return -20.9  eval 17.2  games"), "%s", text);
    farm_progress_format(&sample, 90, text, sizeof text);
    cr_assert(strstr(text, "l15%  eval 17.2"), "%s", text);
    sample.length_mean = 213.4;
    sample.algo[0].value = 1;
    sample.algo[1] = (struct farm_sample_statistic){"kl_nats", "kl", 0.0123};
    farm_progress_format(&sample, 0, text, sizeof text);
    cr_assert(strstr(text, "learner 15%  length 213  kl 0.0123") && !strstr(text, "loss"), "%s", text);
    farm_progress_format(&sample, strlen(text) - 1, text, sizeof text);
    cr_assert(strstr(text, "  length 213") && !strstr(text, "kl"), "a figure is shown whole or not at all: %s", text);
    sample.actors_stuck = 2;
    sample.learner_stopped = true;
    sample.rejected_steps = 12345;
    farm_progress_format(&sample, 79, text, sizeof text);
    cr_assert(strstr(text, "1:02:05 stuck 2 learner stopped rejected 12.3k 123M fr"), "where it is not cut off: %s",
              text);
}

Test(report, shows_remote_nodes_if_the_run_listens) {
    struct farm_sample_node nodes[4] = {
        {.name = "near", .actors = 3, .lanes = 6, .env_steps_per_s = 12345, .copied_bytes = 77, .round_trip_ms = NAN},
        {.name = "far", .away = true, .away_s = 2, .reconnects = 2}};
    struct farm_sample sample = sample_at(1, 4);
    char text[256];
    json_t *line = farm_sample_json(&sample);
    cr_assert_null(json_object_get(line, "nodes"));
    json_decref(line);
    sample.listens = true;
    sample.nodes = nodes;
    sample.node_count = 2;
    sample.nodes_away = 1;
    line = farm_sample_json(&sample);
    const json_t *list = json_object_get(line, "nodes"), *far = json_array_get(list, 1);
    cr_assert_eq(json_array_size(list), 2);
    cr_expect_str_eq(json_string_value(json_object_get(json_array_get(list, 0), "state")), "connected");
    cr_expect(json_is_null(json_object_get(json_array_get(list, 0), "round_trip_ms")));
    cr_expect_eq(json_integer_value(json_object_get(json_array_get(list, 0), "copied_bytes")), 77);
    cr_expect_str_eq(json_string_value(json_object_get(far, "name")), "far");
    cr_expect_str_eq(json_string_value(json_object_get(far, "state")), "away");
    cr_expect_eq(json_integer_value(json_object_get(far, "reconnects")), 2);
    json_decref(line);
    farm_progress_format(&sample, 0, text, sizeof text);
    cr_expect(strstr(text, "  nodes 2 (1 away)  4 frames"), "%s", text);
    cr_expect(strstr(text, "  near 12.3k/s  far away 2 s"), "%s", text);
    farm_progress_format(&sample, 79, text, sizeof text);
    cr_expect(strstr(text, " near 12.3k/s") && !strstr(text, "far"), "a node is shown whole or not at all: %s", text);
    nodes[0].round_trip_ms = 0.314;
    farm_progress_format(&sample, 0, text, sizeof text);
    cr_expect(strstr(text, "  near 12.3k/s 0.31ms"), "%s", text);
    sample.node_count = 4;
    farm_progress_format(&sample, 0, text, sizeof text);
    cr_expect(!strstr(text, "near"), "%s", text);
}

Test(report, without_a_terminal_draws_plain_lines) {
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    struct farm_progress progress;
    farm_progress_start(&progress, ends[1], 1000000000u);
    cr_assert(!farm_progress_due(&progress, 5900000000u));
    cr_assert(farm_progress_due(&progress, 6000000000u));
    struct farm_sample sample = sample_at(5, 100);
    farm_progress_draw(&progress, &sample, 6000000000u);
    farm_progress_clear(&progress);
    farm_progress_end(&progress);
    char text[512] = "";
    ssize_t n = read(ends[0], text, sizeof text - 1);
    cr_assert_gt(n, 1);
    cr_assert(!strchr(text, '\r') && !strchr(text, '\033'));
    cr_assert_eq(text[n - 1], '\n');
    cr_assert_eq(strchr(text, '\n'), text + n - 1, "one line");
}
