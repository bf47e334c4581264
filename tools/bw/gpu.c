// GPUs in `farm bw`: node by GPU, and GPU by GPU. See bw.h and bw/gpu.h. CUDA starts in this process here: no later
// part may fork children that go on without exec.
#include <math.h>
#include <numaif.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "base/format.h"
#include "base/json.h"
#include "base/paths.h"
#include "bw/clock.h"
#include "bw/gpu.h"
#include "bw/heatmap.h"
#include "shm/limits.h"
#include "shm/segment.h"
#include "tools/bw/bw.h"

enum { MASK_WORDS = FARM_NODES_MAX / 64, MAPS = 2, HOST_COPIES = 8 };
static const double PEER_SHARE = 0.1;
static const size_t BYTES[FARM_BW_DEPTHS] = {32 << 20, 128 << 20, 256 << 20}, BYTES_MOST = 1 << 30;

struct gpus {
    struct farm_bw_job *job;
    json_t *section;
    const struct farm_bw_gpu_ops *ops;
    int devices, nodes;
    struct farm_bw_gpu_device device[FARM_GPUS_MAX];
    int node[FARM_NODES_MAX];
    size_t bytes;
    double map[MAPS][FARM_NODES_MAX * FARM_GPUS_MAX]; // host to GPU and back, pinned
    double peers[FARM_GPUS_MAX * FARM_GPUS_MAX];
};

int farm_bw_gpus_expected(const struct farm_machine *machine) {
    return machine->gpu_count ? machine->gpu_count : farm_path_gpu();
}

// ---- a thread and its memory on a node ----

struct placement {
    struct farm_bitmap cpus;
    int mode;
    unsigned long mask[MASK_WORDS];
    bool had_policy;
};

// The conditions state what fails.
static void move_to_node(const struct farm_machine *machine, int node, struct placement *before,
                         struct farm_bw_conditions *conditions) {
    struct farm_bitmap cpus = {0};
    unsigned long mask[MASK_WORDS] = {0};
    for (int i = 0; i < machine->cpu_count; i++)
        if (machine->cpu[i].node == node && farm_bitmap_has(&machine->allowed, machine->cpu[i].cpu))
            farm_bitmap_set(&cpus, machine->cpu[i].cpu);
    if (node < FARM_NODES_MAX) mask[node / 64] = 1ul << node % 64;
    (void)farm_bitmap_pinned(&before->cpus, NULL);
    before->had_policy = get_mempolicy(&before->mode, before->mask, FARM_NODES_MAX + 1, NULL, 0) == 0;
    conditions->pinned = farm_bitmap_pin(&cpus, NULL) == FARM_OK;
    conditions->bound = set_mempolicy(MPOL_BIND, mask, FARM_NODES_MAX + 1) == 0;
    if (!conditions->bound)
        farm_bw_conditions_note(
            conditions, "No right to bind memory to node %d (set_mempolicy): the driver places pinned memory.", node);
}

static void move_back(const struct placement *before) {
    (void)farm_bitmap_pin(&before->cpus, NULL);
    if (before->had_policy && before->mode != MPOL_DEFAULT)
        (void)set_mempolicy(before->mode, before->mask, FARM_NODES_MAX + 1);
    else
        (void)set_mempolicy(MPOL_DEFAULT, NULL, 0);
}

// Segments like an actor's; up_read: mapped like its reader's.
struct segments {
    struct farm_segment up, up_read, down;
};

static void close_segments(struct segments *segments) {
    farm_segment_close(&segments->up_read);
    farm_segment_close(&segments->up);
    farm_segment_close(&segments->down);
}

static enum farm_status open_segments(const struct gpus *g, int node, struct segments *segments,
                                      struct farm_error *err) {
    struct farm_segment_request request = {
        .kind = FARM_SEGMENT_UP, .bytes = g->bytes + FARM_SEGMENT_HEADER_BYTES, .node = node, .huge = true};
    *segments = (struct segments){0};
    enum farm_status status = farm_segment_create(&request, &segments->up, err);
    request.kind = FARM_SEGMENT_DOWN;
    if (!status) status = farm_segment_create(&request, &segments->down, err);
    if (status) return status;
    farm_bw_gpu_fill((char *)segments->up.header + FARM_SEGMENT_HEADER_BYTES, g->bytes, 0);
    const int fd = dup(segments->up.fd_readonly);
    if (fd < 0) return farm_fail_errno(err, FARM_E_LIMIT, "dup");
    status = farm_segment_open(fd, false, FARM_SEGMENT_UP, 0, &segments->up_read, err);
    if (status) close(fd);
    if (!status) farm_segment_populate(&segments->up_read);
    return status;
}

static void note_placement(const struct segments *segments, struct farm_bw_conditions *conditions) {
    static const enum farm_bw_pages kinds[] = {FARM_BW_PAGES_SMALL, FARM_BW_PAGES_TRANSPARENT, FARM_BW_PAGES_2M};
    const enum farm_placement of[] = {segments->up.placement, segments->down.placement};
    conditions->placed = true;
    for (int i = 0; i < 2; i++) {
        conditions->placed &= of[i] == FARM_PLACEMENT_BOUND || of[i] == FARM_PLACEMENT_FIRST_TOUCH;
        conditions->bound &= of[i] == FARM_PLACEMENT_BOUND;
    }
    conditions->pages = kinds[segments->up.pages < segments->down.pages ? segments->up.pages : segments->down.pages];
}

// ---- what was measured ----

static void report_copies(struct farm_bw_job *job, json_t *object, const struct farm_bw_gpu_node *figures,
                          const char *where) {
    json_t *rows = json_array();
    fprintf(job->out, "  %-26s %12s %12s %12s\n", "copy engine, GB/s", "host to GPU", "GPU to host", "both at once");
    for (int m = 0; m < FARM_BW_GPU_MEMORIES; m++) {
        const char *memory = farm_bw_gpu_memory_names[m];
        json_t *row = farm_json_object(false);
        farm_json_set_text(row, "memory", memory);
        fprintf(job->out, "    %-24s", memory);
        for (int d = 0; d < FARM_BW_GPU_DIRECTIONS; d++) {
            const char *direction = farm_bw_gpu_direction_names[d];
            farm_bw_report(job, 12, row, direction, &figures->copy[m][d], &farm_bw_gb_per_s, "gpu.%s.%s.%s", direction,
                           memory, where);
        }
        fprintf(job->out, "\n");
        farm_json_append(rows, row);
    }
    farm_json_set(object, "copies_bytes_per_s", rows);
}

static void report_pulls(struct farm_bw_job *job, json_t *object, const struct farm_bw_gpu_node *figures,
                         const char *where) {
    json_t *rows = json_array();
    fprintf(job->out, "  %-26s", "our kernel reads, GB/s");
    for (int b = 0; b < FARM_BW_GPU_BLOCKS; b++) fprintf(job->out, " %5u blocks", farm_bw_gpu_blocks[b]);
    fprintf(job->out, "\n");
    for (int w = 0; w < FARM_BW_GPU_WAYS; w++) {
        const char *way = farm_bw_gpu_way_names[w];
        fprintf(job->out, "    %-24s", way);
        for (int b = 0; b < FARM_BW_GPU_BLOCKS; b++) {
            json_t *row = farm_json_object(false);
            farm_json_set_text(row, "way", way);
            farm_json_set_int(row, "blocks", farm_bw_gpu_blocks[b]);
            farm_bw_report(job, 12, row, "bytes_per_s", &figures->pull[w][b], &farm_bw_gb_per_s, "gpu.pull.%s_%u.%s",
                           way, farm_bw_gpu_blocks[b], where);
            farm_json_append(rows, row);
        }
        fprintf(job->out, "\n");
    }
    farm_json_set(object, "pulls", rows);
}

static void report_gather(struct farm_bw_job *job, json_t *object, const struct farm_bw_gpu_node *figures,
                          const char *where) {
    json_t *rows = json_array();
    fprintf(job->out, "  %-26s %10s", "pieces, GB/s and ratio", "one copy");
    for (int by = 1; by < FARM_BW_GPU_GATHERERS; by++) fprintf(job->out, " %16s", farm_bw_gpu_gatherer_names[by]);
    fprintf(job->out, "\n");
    for (int i = 0; i < FARM_BW_GPU_PIECES; i++) {
        const struct farm_bw_gpu_gather *gather = &figures->gather[i];
        const struct farm_bw_figure *reference = &gather->by[FARM_BW_GPU_ONE_COPY];
        fprintf(job->out, "    %7zu B x %-12u", gather->piece_bytes, gather->pieces);
        for (int by = 0; by < FARM_BW_GPU_GATHERERS; by++) {
            const char *name = farm_bw_gpu_gatherer_names[by];
            const struct farm_bw_figure *figure = &gather->by[by];
            const double ratio = figure->median / reference->median; // NAN if one is missing
            json_t *row = farm_json_object(false);
            farm_json_set_int(row, "piece_bytes", gather->piece_bytes);
            farm_json_set_int(row, "pieces", gather->pieces);
            farm_json_set_text(row, "by", name);
            farm_bw_report(job, 10, row, "bytes_per_s", figure, &farm_bw_gb_per_s, "gpu.gather.%zuB.%s.%s",
                           gather->piece_bytes, name, where);
            if (by) fprintf(job->out, " %5s", farm_format_digits(ratio).text);
            farm_json_set_real(row, "ratio_to_one_copy", ratio);
            farm_json_append(rows, row);
        }
        fprintf(job->out, "\n");
    }
    farm_json_set(object, "gather", rows);
}

static void report_node(struct gpus *g, int n, int d, json_t *object, const struct farm_bw_gpu_node *figures) {
    struct farm_bw_job *job = g->job;
    char where[48];
    snprintf(where, sizeof where, "node%d.gpu%d", g->node[n], d);
    report_copies(job, object, figures, where);
    report_pulls(job, object, figures, where);
    report_gather(job, object, figures, where);
    farm_json_set_bool(object, "registered", figures->registered);
    fprintf(job->out, "  registration");
    farm_bw_report(job, 0, object, "registration_bytes_per_s", &figures->registration, &farm_bw_gb_per_s,
                   "gpu.registration.%s", where);
    fprintf(job->out, " GB/s; a word to the GPU and one back, a launch included:");
    farm_bw_report(job, 0, object, "flag_by_launch_ns", &figures->flag_ns, &farm_bw_ns, "gpu.flag_by_launch.%s", where);
    fprintf(job->out, " ns\n");
    farm_bw_report_conditions(job, object, &figures->conditions);
    for (int m = 0; m < MAPS; m++) {
        const struct farm_bw_figure *figure = &figures->copy[FARM_BW_GPU_PINNED][m];
        g->map[m][n * g->devices + d] = farm_bw_median(figure, &farm_bw_gb_per_s);
    }
}

// ---- measuring ----

static struct farm_bw_gpu_config config_of(const struct gpus *g, int device, double share) {
    return (struct farm_bw_gpu_config){.device = device, .bytes = g->bytes, .setup = farm_bw_setup_for(g->job, share)};
}

static void report_missing(struct farm_bw_job *job, json_t *object, const char *why) {
    fprintf(job->out, "%s\n", why);
    farm_json_set_text(object, "not_measured", why);
}

// What this machine cannot give is reported; anything else ends the run.
static enum farm_status report_unless_serious(struct gpus *g, json_t *object, enum farm_status status,
                                              const struct farm_error *err) {
    if (status != FARM_E_LIMIT && status != FARM_E_UNSUPPORTED && status != FARM_E_PERMISSION) return status;
    fprintf(g->job->out, "  not measured: ");
    report_missing(g->job, object, err->message);
    return FARM_OK;
}

// The thread's and the memory's conditions; the library set the others.
static void add_conditions(const struct farm_bw_conditions *ours, struct farm_bw_conditions *out) {
    farm_bw_conditions_note(out, "%s", ours->note);
    out->pinned = ours->pinned;
    out->bound = ours->bound;
    out->placed = ours->placed;
    out->pages = ours->pages;
}

static enum farm_status measure_node(struct gpus *g, int n, int d, double share, json_t *object,
                                     struct farm_error *err) {
    struct farm_bw_gpu_config config = config_of(g, d, share);
    struct farm_bw_conditions conditions = {0};
    struct farm_bw_gpu_node figures;
    struct placement before;
    struct segments segments;
    move_to_node(g->job->setup.machine, g->node[n], &before, &conditions);
    enum farm_status status = open_segments(g, g->node[n], &segments, err);
    if (!status) {
        note_placement(&segments, &conditions);
        config.up = (const char *)segments.up_read.header + FARM_SEGMENT_HEADER_BYTES;
        config.up_writable = (char *)segments.up.header + FARM_SEGMENT_HEADER_BYTES;
        config.down = (char *)segments.down.header + FARM_SEGMENT_HEADER_BYTES;
        status = g->ops->node(&config, &figures, err);
    }
    close_segments(&segments);
    move_back(&before);
    if (status) return report_unless_serious(g, object, status, err);
    add_conditions(&conditions, &figures.conditions);
    report_node(g, n, d, object, &figures);
    return FARM_OK;
}

static enum farm_status measure_nodes(struct gpus *g, double share, struct farm_error *err) {
    json_t *rows = json_array();
    enum farm_status status = FARM_OK;
    farm_json_set(g->section, "cells", rows);
    for (int i = 0; i < g->nodes * g->devices; i++)
        for (int m = 0; m < MAPS; m++) g->map[m][i] = (double)NAN;
    for (int d = 0; d < g->devices && !status; d++)
        for (int n = 0; n < g->nodes && !status && !farm_bw_is_stopped(&g->job->setup); n++) {
            json_t *object = farm_json_object(false);
            farm_json_set_int(object, "node", (uint64_t)g->node[n]);
            farm_json_set_int(object, "gpu", (uint64_t)d);
            farm_json_append(rows, object);
            fprintf(g->job->out, "Memory of node %d and GPU %d, %.4g MiB\n", g->node[n], d,
                    (double)g->bytes / (1 << 20));
            status = measure_node(g, n, d, share / (g->nodes * g->devices), object, err);
        }
    return status;
}

static enum farm_status measure_peers(struct gpus *g, double share, struct farm_error *err) {
    json_t *rows = json_array();
    enum farm_status status = FARM_OK;
    farm_json_set(g->section, "peers", rows);
    for (int i = 0; i < g->devices * g->devices; i++) g->peers[i] = (double)NAN;
    for (int i = 0; i < g->devices * g->devices && !status && !farm_bw_is_stopped(&g->job->setup); i++) {
        const int from = i / g->devices, to = i % g->devices;
        const struct farm_bw_gpu_config config = config_of(g, from, share / (g->devices * g->devices));
        struct farm_bw_gpu_peer peer;
        if (from == to) continue;
        json_t *object = farm_json_object(false);
        farm_json_set_int(object, "from", (uint64_t)from);
        farm_json_set_int(object, "to", (uint64_t)to);
        farm_json_append(rows, object);
        status = g->ops->peer(&config, to, &peer, err);
        if (status) {
            status = report_unless_serious(g, object, status, err);
            continue;
        }
        fprintf(g->job->out, "GPU %d to GPU %d:", from, to);
        farm_bw_report(g->job, 0, object, "bytes_per_s", &peer.bytes_per_s, &farm_bw_gb_per_s, "gpu.peer.gpu%d.gpu%d",
                       from, to);
        fprintf(g->job->out, " GB/s, %s\n",
                peer.access ? "with peer access" : "no peer access: through the host's memory");
        farm_json_set_bool(object, "peer_access", peer.access);
        farm_json_set_bool(object, "verified", peer.conditions.verified);
        g->peers[i] = farm_bw_median(&peer.bytes_per_s, &farm_bw_gb_per_s);
    }
    return status;
}

static void draw_maps(const struct gpus *g) {
    static const char *const titles[MAPS] = {"Host to GPU, pinned memory", "GPU to host, pinned memory"};
    const struct farm_bw_job *job = g->job;
    for (int m = 0; m < MAPS && g->nodes * g->devices > 1; m++) {
        const struct farm_heatmap map = {titles[m], "GB/s", "memory of node", "GPU", g->nodes, g->devices,
                                         g->node,   NULL,   g->map[m],        true};
        farm_heatmap_draw(job->out, &map, job->colour, job->columns);
    }
    const struct farm_heatmap map = {"GPU to GPU", "GB/s", "from GPU", "to GPU", g->devices,
                                     g->devices,   NULL,   NULL,       g->peers, true};
    if (g->devices > 1) farm_heatmap_draw(job->out, &map, job->colour, job->columns);
}

// ---- the part ----

// The library, its GPUs. Not to be had: why, for the section.
static enum farm_status find_gpus(struct gpus *g, struct farm_error *err) {
    char path[4096];
    enum farm_status status = farm_path_cuda(path, sizeof path, err);
    if (!status) status = farm_bw_gpu_open(path, &g->ops, err);
    if (!status) status = g->ops->count(&g->devices, err);
    if (g->devices > FARM_GPUS_MAX) g->devices = FARM_GPUS_MAX;
    for (int d = 0; d < g->devices && !status; d++) status = g->ops->describe(d, &g->device[d], err);
    return status;
}

static void report_devices(struct gpus *g) {
    json_t *devices = json_array();
    for (int d = 0; d < g->devices; d++) {
        const struct farm_bw_gpu_device *device = &g->device[d];
        int near = -1;
        for (int i = 0; i < g->job->setup.machine->gpu_count; i++)
            if (strcasecmp(g->job->setup.machine->gpu[i].pci_bus_id, device->pci_bus_id) == 0)
                near = g->job->setup.machine->gpu[i].node;
        fprintf(g->job->out, "GPU %d: %s, %s, compute capability %d.%d, driver for CUDA %d.%d", d, device->name,
                device->pci_bus_id, device->major, device->minor, device->driver / 1000, device->driver % 1000 / 10);
        if (near >= 0) fprintf(g->job->out, ", at node %d", near);
        fprintf(g->job->out, "\n");
        json_t *object = farm_json_object(false);
        farm_json_set_text(object, "name", device->name);
        farm_json_set_text(object, "pci_bus_id", device->pci_bus_id);
        farm_json_set(object, "nearest_node", near >= 0 ? json_integer(near) : json_null());
        farm_json_set_int(object, "memory_bytes", device->memory_bytes);
        farm_json_append(devices, object);
    }
    farm_json_set(g->section, "devices", devices);
}

static void choose_memory(struct gpus *g) {
    const struct farm_bw_job *job = g->job;
    const uint64_t left = farm_limits_memory_available_bytes(NULL) / HOST_COPIES;
    size_t bytes = job->size_bytes ? job->size_bytes : BYTES[job->depth];
    if (bytes > left) bytes = left;
    if (bytes > BYTES_MOST) bytes = BYTES_MOST;
    if (bytes < FARM_BW_GPU_BYTES_LEAST) bytes = FARM_BW_GPU_BYTES_LEAST;
    g->bytes = bytes / 4096 * 4096;
    farm_json_set_int(g->section, "bytes", g->bytes);
    for (int i = 0; i < job->setup.machine->node_count; i++)
        if (job->setup.machine->node[i].usable && job->setup.machine->node[i].total_bytes)
            g->node[g->nodes++] = job->setup.machine->node[i].node;
}

enum farm_status farm_bw_part_gpu(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    if (!farm_bw_gpus_expected(job->setup.machine)) {
        fprintf(job->out, "GPU: ");
        report_missing(job, section, "none here: no NVIDIA GPU among this machine's PCI devices, no driver");
        return FARM_OK;
    }
    struct gpus *g = calloc(1, sizeof *g);
    if (!g) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    struct farm_error why;
    enum farm_status status = FARM_OK;
    *g = (struct gpus){.job = job, .section = section};
    if (find_gpus(g, &why)) {
        fprintf(job->out, "GPU: not measured: ");
        report_missing(job, section, why.message);
    } else {
        report_devices(g);
        choose_memory(g);
        status = measure_nodes(g, g->devices > 1 ? 1 - PEER_SHARE : 1, err);
        if (!status && g->devices > 1) status = measure_peers(g, PEER_SHARE, err);
        if (!status) draw_maps(g);
    }
    free(g);
    return status;
}
