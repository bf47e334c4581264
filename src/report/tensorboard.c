// TensorBoard's event file: an event a sample, with a scalar GROUP/KEY for each known number, over agent steps. Events
// are protocol buffers (tensorboard.proto) in TFRecord's framing: length, masked CRC32C of the length, data, masked
// CRC32C of the data, all little-endian (tensorflow/core/lib/io/record_writer.h). Scalars are f32.
#include <assert.h>
#include <endian.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "base/crc32c.h"
#include "report/sink.h"
#include "report/tensorboard.pb-c.h"

static uint32_t masked_crc32c(const void *data, size_t bytes) {
    const uint32_t crc = farm_crc32c(0, data, bytes);
    return htole32(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

static void print_event(FILE *out, Farm__Event *event) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    event->wall_time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    const size_t bytes = farm__event__get_packed_size(event);
    uint8_t *data = malloc(bytes);
    assert(data);
    farm__event__pack(event, data);
    const uint64_t length = htole64(bytes);
    const uint32_t of_length = masked_crc32c(&length, sizeof length), of_data = masked_crc32c(data, bytes);
    fwrite(&length, sizeof length, 1, out);
    fwrite(&of_length, sizeof of_length, 1, out);
    fwrite(data, bytes, 1, out);
    fwrite(&of_data, sizeof of_data, 1, out);
    free(data);
}

// TensorBoard drops earlier files' events from a START's step on: those behind the checkpoint, or of a replaced run.
static void print_head(FILE *out, const struct farm_sample *first) {
    Farm__Event version = FARM__EVENT__INIT, start = FARM__EVENT__INIT;
    Farm__SessionLog session = FARM__SESSION_LOG__INIT;
    version.file_version = "brain.Event:2";
    session.status = FARM__SESSION_LOG__STATUS__START;
    start.session_log = &session;
    start.step = first->before.agent_steps ? (int64_t)first->before.agent_steps + 1 : 0;
    print_event(out, &version);
    print_event(out, &start);
}

static void print_record(FILE *out, const struct farm_sample *sample) {
    struct farm_figure figures[FARM_FIGURES_MAX];
    char tags[FARM_FIGURES_MAX][64];
    Farm__Summary__Value values[FARM_FIGURES_MAX], *list[FARM_FIGURES_MAX];
    Farm__Summary summary = FARM__SUMMARY__INIT;
    Farm__Event event = FARM__EVENT__INIT;
    const size_t count = farm_sample_figures(sample, figures);
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(figures[i].value)) continue;
        const size_t n = summary.n_value++;
        snprintf(tags[n], sizeof tags[n], "%s/%s", figures[i].group, figures[i].key);
        farm__summary__value__init(list[n] = &values[n]);
        values[n].tag = tags[n];
        values[n].simple_value = (float)figures[i].value;
    }
    summary.value = list;
    event.step = (int64_t)sample->total.agent_steps;
    event.summary = &summary;
    print_event(out, &event);
}

const struct farm_sink_format farm_sink_tensorboard = {
    .name = "events.out.tfevents", .each_session = true, .head = print_head, .record = print_record};
