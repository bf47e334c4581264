// GPUs in `farm bw`: node by GPU, and GPU by GPU. See farm_bw.h. CUDA comes into the process here and not before: this
// part stands behind all that fork (ring), because a child that is forked after CUDA has started cannot use what it
// inherits; what later parts start (farm fps) is a program of its own.
#include <math.h>
#include <numaif.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/format.h"
#include "base/json.h"
#include "base/paths.h"
#include "bw/gpu.h"
#include "bw/memory.h"
#include "shm/limits.h"
#include "shm/segment.h"
#include "tools/bw/bw.h"

enum { MASK_WORDS = FARM_NODES_MAX / 64, MAPS = 2, HOST_COPIES = 8 };
static const double GB = 1e-9, PEER_SHARE = 0.1;
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

struct at_node {
    struct farm_bitmap cpus;
    int mode;
    unsigned long mask[MASK_WORDS];
    bool had_policy;
};

// What does not come out as asked is in the conditions.
static void go_to_node(const struct farm_machine *machine, int node, struct at_node *before,
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
            conditions,
            "No right to bind memory to node %d (set_mempolicy): pinned memory lies where the driver puts it.", node);
}

static void come_back(const struct at_node *before) {
    (void)farm_bitmap_pin(&before->cpus, NULL);
    if (before->had_policy && before->mode != MPOL_DEFAULT)
        (void)set_mempolicy(before->mode, before->mask, FARM_NODES_MAX + 1);
    else
        (void)set_mempolicy(MPOL_DEFAULT, NULL, 0);
}

// Segments as an actor's are: `up` as its reader has it.
struct lent {
    struct farm_segment up, up_read, down;
};

static void lent_close(struct lent *lent) {
    farm_segment_close(&lent->up_read);
    farm_segment_close(&lent->up);
    farm_segment_close(&lent->down);
}

static enum farm_status lent_open(const struct gpus *g, int node, struct lent *lent, struct farm_error *err) {
    struct farm_segment_request request = {
        .kind = FARM_SEGMENT_UP, .bytes = g->bytes + FARM_SEGMENT_HEADER_BYTES, .node = node, .huge = true};
    *lent = (struct lent){0};
    enum farm_status status = farm_segment_create(&request, &lent->up, err);
    request.kind = FARM_SEGMENT_DOWN;
    if (!status) status = farm_segment_create(&request, &lent->down, err);
    if (status) return status;
    farm_bw_gpu_fill((char *)lent->up.header + FARM_SEGMENT_HEADER_BYTES, g->bytes, 0);
    const int fd = dup(lent->up.fd_readonly);
    if (fd < 0) return farm_fail_errno(err, FARM_E_LIMIT, "dup");
    status = farm_segment_open(fd, false, FARM_SEGMENT_UP, 0, &lent->up_read, err);
    if (status) close(fd);
    if (!status) farm_segment_populate(&lent->up_read);
    return status;
}

static void note_placement(const struct lent *lent, struct farm_bw_conditions *conditions) {
    static const enum farm_bw_pages kinds[] = {FARM_BW_PAGES_SMALL, FARM_BW_PAGES_TRANSPARENT, FARM_BW_PAGES_2M};
    const enum farm_placement of[] = {lent->up.placement, lent->down.placement};
    conditions->placed = true;
    for (int i = 0; i < 2; i++) {
        conditions->placed &= of[i] == FARM_PLACEMENT_BOUND || of[i] == FARM_PLACEMENT_FIRST_TOUCH;
        conditions->bound &= of[i] == FARM_PLACEMENT_BOUND;
    }
    conditions->pages = kinds[lent->up.pages < lent->down.pages ? lent->up.pages : lent->down.pages];
}

// ---- what was measured ----

static void tell_copies(struct farm_bw_job *job, json_t *object, const struct farm_bw_gpu_node *cell,
                        const char *where) {
    json_t *rows = json_array();
    fprintf(job->out, "  %-26s %12s %12s %12s\n", "copy engine, GB/s", "host to GPU", "GPU to host", "both at once");
    for (int m = 0; m < FARM_BW_GPU_MEMORIES; m++) {
        const char *memory = farm_bw_gpu_memory_name((enum farm_bw_gpu_memory)m);
        json_t *row = farm_json_object(false);
        farm_json_set_text(row, "memory", memory);
        fprintf(job->out, "    %-24s", memory);
        for (int d = 0; d < FARM_BW_GPU_DIRECTIONS; d++) {
            const char *direction = farm_bw_gpu_direction_name((enum farm_bw_gpu_direction)d);
            farm_bw_tell(job, 12, row, direction, &cell->copy[m][d], &farm_bw_gb_per_s, "gpu.%s.%s.%s", direction,
                         memory, where);
        }
        fprintf(job->out, "\n");
        json_array_append_new(rows, row);
    }
    farm_json_set(object, "copies_bytes_per_s", rows);
}

static void tell_pulls(struct farm_bw_job *job, json_t *object, const struct farm_bw_gpu_node *cell,
                       const char *where) {
    json_t *rows = json_array();
    fprintf(job->out, "  %-26s", "our kernel reads, GB/s");
    for (int b = 0; b < FARM_BW_GPU_BLOCKS; b++) fprintf(job->out, " %5u blocks", farm_bw_gpu_blocks[b]);
    fprintf(job->out, "\n");
    for (int w = 0; w < FARM_BW_GPU_WAYS; w++) {
        const char *way = farm_bw_gpu_way_name((enum farm_bw_gpu_way)w);
        fprintf(job->out, "    %-24s", way);
        for (int b = 0; b < FARM_BW_GPU_BLOCKS; b++) {
            json_t *row = farm_json_object(false);
            farm_json_set_text(row, "way", way);
            farm_json_set_int(row, "blocks", farm_bw_gpu_blocks[b]);
            farm_bw_tell(job, 12, row, "bytes_per_s", &cell->pull[w][b], &farm_bw_gb_per_s, "gpu.pull.%s_%u.%s", way,
                         farm_bw_gpu_blocks[b], where);
            json_array_append_new(rows, row);
        }
        fprintf(job->out, "\n");
    }
    farm_json_set(object, "pulls", rows);
}

static void tell_gather(struct farm_bw_job *job, json_t *object, const struct farm_bw_gpu_node *cell,
                        const char *where) {
    json_t *rows = json_array();
    fprintf(job->out, "  %-26s %10s", "pieces, GB/s and ratio", "one copy");
    for (int by = 1; by < FARM_BW_GPU_GATHERERS; by++)
        fprintf(job->out, " %16s", farm_bw_gpu_gatherer_name((enum farm_bw_gpu_gatherer)by));
    fprintf(job->out, "\n");
    for (int i = 0; i < FARM_BW_GPU_PIECES; i++) {
        const struct farm_bw_gpu_gather *gather = &cell->gather[i];
        const struct farm_bw_figure *reference = &gather->by[FARM_BW_GPU_ONE_COPY];
        fprintf(job->out, "    %7zu B x %-12u", gather->piece_bytes, gather->pieces);
        for (int by = 0; by < FARM_BW_GPU_GATHERERS; by++) {
            const char *name = farm_bw_gpu_gatherer_name((enum farm_bw_gpu_gatherer)by);
            const struct farm_bw_figure *figure = &gather->by[by];
            const double ratio = figure->median / reference->median; // NAN where one is missing
            json_t *row = farm_json_object(false);
            farm_json_set_int(row, "piece_bytes", gather->piece_bytes);
            farm_json_set_int(row, "pieces", gather->pieces);
            farm_json_set_text(row, "by", name);
            farm_bw_tell(job, 10, row, "bytes_per_s", figure, &farm_bw_gb_per_s, "gpu.gather.%zuB.%s.%s",
                         gather->piece_bytes, name, where);
            if (by) fprintf(job->out, " %5s", farm_format_digits(ratio).text);
            farm_json_set_real(row, "ratio_to_one_copy", ratio);
            json_array_append_new(rows, row);
        }
        fprintf(job->out, "\n");
    }
    farm_json_set(object, "gather", rows);
}

static void tell_cell(struct gpus *g, int n, int d, json_t *object, const struct farm_bw_gpu_node *cell) {
    struct farm_bw_job *job = g->job;
    char where[48];
    snprintf(where, sizeof where, "node%d.gpu%d", g->node[n], d);
    tell_copies(job, object, cell, where);
    tell_pulls(job, object, cell, where);
    tell_gather(job, object, cell, where);
    farm_json_set_bool(object, "registered", cell->registered);
    fprintf(job->out, "  registration");
    farm_bw_tell(job, 0, object, "registration_bytes_per_s", &cell->registration, &farm_bw_gb_per_s,
                 "gpu.registration.%s", where);
    fprintf(job->out, " GB/s; a word to the GPU and one back, a launch included:");
    farm_bw_tell(job, 0, object, "flag_by_launch_ns", &cell->flag_ns, &farm_bw_ns, "gpu.flag_by_launch.%s", where);
    fprintf(job->out, " ns\n");
    farm_bw_tell_conditions(job, object, &cell->conditions);
    for (int m = 0; m < MAPS; m++) {
        const struct farm_bw_figure *figure = &cell->copy[FARM_BW_GPU_PINNED][m];
        g->map[m][n * g->devices + d] = farm_bw_figure_is(figure) ? figure->median * GB : (double)NAN;
    }
}

// ---- measuring ----

static struct farm_bw_gpu_config config_of(const struct gpus *g, int device, double share) {
    const struct farm_bw_setup setup = farm_bw_setup_for(g->job, share);
    return (struct farm_bw_gpu_config){.device = device,
                                       .bytes = g->bytes,
                                       .seconds = setup.seconds,
                                       .samples = setup.samples,
                                       .control = setup.control};
}

// What this machine cannot give is said; what is wrong ends the run.
static enum farm_status unless_serious(struct gpus *g, json_t *object, enum farm_status status,
                                       const struct farm_error *err) {
    if (status != FARM_E_LIMIT && status != FARM_E_UNSUPPORTED && status != FARM_E_PERMISSION) return status;
    fprintf(g->job->out, "  not measured: %s\n", err->message);
    farm_json_set_text(object, "not_measured", err->message);
    return FARM_OK;
}

// What the caller knows of thread and memory, beside what the library says of the rest.
static void add_conditions(const struct farm_bw_conditions *ours, struct farm_bw_conditions *out) {
    farm_bw_conditions_note(out, "%s", ours->note);
    out->pinned = ours->pinned;
    out->bound = ours->bound;
    out->placed = ours->placed;
    out->pages = ours->pages;
}

static enum farm_status measure_cell(struct gpus *g, int n, int d, double share, json_t *object,
                                     struct farm_error *err) {
    struct farm_bw_gpu_config config = config_of(g, d, share);
    struct farm_bw_conditions conditions = {0};
    struct farm_bw_gpu_node cell;
    struct at_node before;
    struct lent lent;
    go_to_node(g->job->machine, g->node[n], &before, &conditions);
    enum farm_status status = lent_open(g, g->node[n], &lent, err);
    if (!status) {
        note_placement(&lent, &conditions);
        config.up = (const char *)lent.up_read.header + FARM_SEGMENT_HEADER_BYTES;
        config.up_writable = (char *)lent.up.header + FARM_SEGMENT_HEADER_BYTES;
        config.down = (char *)lent.down.header + FARM_SEGMENT_HEADER_BYTES;
        status = g->ops->cell(&config, &cell, err);
    }
    lent_close(&lent);
    come_back(&before);
    if (status) return unless_serious(g, object, status, err);
    add_conditions(&conditions, &cell.conditions);
    tell_cell(g, n, d, object, &cell);
    return FARM_OK;
}

static enum farm_status cells(struct gpus *g, double share, struct farm_error *err) {
    json_t *rows = json_array();
    enum farm_status status = FARM_OK;
    farm_json_set(g->section, "cells", rows);
    for (int i = 0; i < g->nodes * g->devices; i++)
        for (int m = 0; m < MAPS; m++) g->map[m][i] = (double)NAN;
    for (int d = 0; d < g->devices && !status; d++)
        for (int n = 0; n < g->nodes && !status && !farm_bw_stop(g->job); n++) {
            json_t *object = farm_json_object(false);
            farm_json_set_int(object, "node", (uint64_t)g->node[n]);
            farm_json_set_int(object, "gpu", (uint64_t)d);
            json_array_append_new(rows, object);
            fprintf(g->job->out, "Memory of node %d and GPU %d, %.4g MiB\n", g->node[n], d,
                    (double)g->bytes / (1 << 20));
            status = measure_cell(g, n, d, share / (g->nodes * g->devices), object, err);
        }
    return status;
}

static enum farm_status peers(struct gpus *g, double share, struct farm_error *err) {
    json_t *rows = json_array();
    enum farm_status status = FARM_OK;
    farm_json_set(g->section, "peers", rows);
    for (int i = 0; i < g->devices * g->devices; i++) g->peers[i] = (double)NAN;
    for (int i = 0; i < g->devices * g->devices && !status && !farm_bw_stop(g->job); i++) {
        const int from = i / g->devices, to = i % g->devices;
        const struct farm_bw_gpu_config config = config_of(g, from, share / (g->devices * g->devices));
        struct farm_bw_gpu_peer peer;
        if (from == to) continue;
        json_t *object = farm_json_object(false);
        farm_json_set_int(object, "from", (uint64_t)from);
        farm_json_set_int(object, "to", (uint64_t)to);
        json_array_append_new(rows, object);
        status = g->ops->peer(&config, to, &peer, err);
        if (status) {
            status = unless_serious(g, object, status, err);
            continue;
        }
        fprintf(g->job->out, "GPU %d to GPU %d:", from, to);
        farm_bw_tell(g->job, 0, object, "bytes_per_s", &peer.bytes_per_s, &farm_bw_gb_per_s, "gpu.peer.gpu%d.gpu%d",
                     from, to);
        fprintf(g->job->out, " GB/s, %s\n",
                peer.access ? "with peer access" : "no peer access: through the host's memory");
        farm_json_set_bool(object, "peer_access", peer.access);
        farm_json_set_bool(object, "verified", peer.conditions.verified);
        if (farm_bw_figure_is(&peer.bytes_per_s)) g->peers[i] = peer.bytes_per_s.median * GB;
    }
    return status;
}

// ---- pictures ----

static enum farm_status draw(struct gpus *g, struct farm_error *err) {
    static const char *const names[MAPS] = {"gpu_h2d", "gpu_d2h"};
    static const char *const titles[MAPS] = {"Host to GPU, pinned memory", "GPU to host, pinned memory"};
    struct farm_bw_labels nodes, gpus;
    enum farm_status status = FARM_OK;
    farm_bw_label(&nodes, g->node, g->nodes);
    farm_bw_label(&gpus, NULL, g->devices);
    struct farm_heatmap map = {.unit = "GB/s",
                               .row_axis = "memory of node",
                               .column_axis = "GPU",
                               .rows = (size_t)g->nodes,
                               .columns = (size_t)g->devices,
                               .row_names = nodes.names,
                               .column_names = gpus.names,
                               .higher_is_better = true};
    for (int m = 0; m < MAPS && g->nodes * g->devices > 1 && !status; m++) {
        map.title = titles[m];
        map.values = g->map[m];
        status = farm_bw_give_map(g->job, names[m], &map, err);
    }
    if (status || g->devices < 2) return status;
    map.title = "GPU to GPU", map.row_axis = "from GPU", map.column_axis = "to GPU";
    map.rows = map.columns, map.row_names = gpus.names;
    map.values = g->peers;
    return farm_bw_give_map(g->job, "gpu_peers", &map, err);
}

// ---- the part ----

static enum farm_status not_measured(struct farm_bw_job *job, json_t *section, const char *lead, const char *why) {
    fprintf(job->out, "GPU: %s%s\n", lead, why);
    farm_json_set_text(section, "not_measured", why);
    return FARM_OK;
}

// The library, its GPUs. Not to be had: why, for the section.
static enum farm_status find_gpus(struct gpus *g, struct farm_error *err) {
    char path[4096];
    const char *chosen = getenv("FARM_CUDA_BACKEND");
    const bool found = farm_path_cuda(path, sizeof path);
    enum farm_status status = farm_bw_gpu_open(found ? path : chosen && chosen[0] ? chosen : NULL, &g->ops, err);
    if (!status) status = g->ops->count(&g->devices, err);
    if (g->devices > FARM_GPUS_MAX) g->devices = FARM_GPUS_MAX;
    for (int d = 0; d < g->devices && !status; d++) status = g->ops->describe(d, &g->device[d], err);
    return status;
}

static void tell_devices(struct gpus *g) {
    json_t *devices = json_array();
    for (int d = 0; d < g->devices; d++) {
        const struct farm_bw_gpu_device *device = &g->device[d];
        int near = -1;
        for (int i = 0; i < g->job->machine->gpu_count; i++)
            if (strcasecmp(g->job->machine->gpu[i].pci_bus_id, device->pci_bus_id) == 0)
                near = g->job->machine->gpu[i].node;
        fprintf(g->job->out, "GPU %d: %s, %s, compute capability %d.%d, driver for CUDA %d.%d", d, device->name,
                device->pci_bus_id, device->major, device->minor, device->driver / 1000, device->driver % 1000 / 10);
        if (near >= 0) fprintf(g->job->out, ", at node %d", near);
        fprintf(g->job->out, "\n");
        json_t *object = farm_json_object(false);
        farm_json_set_text(object, "name", device->name);
        farm_json_set_text(object, "pci_bus_id", device->pci_bus_id);
        farm_json_set(object, "nearest_node", near >= 0 ? json_integer(near) : json_null());
        farm_json_set_int(object, "memory_bytes", device->memory_bytes);
        json_array_append_new(devices, object);
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
    for (int i = 0; i < job->machine->node_count; i++)
        if (job->machine->node[i].usable && job->machine->node[i].total_bytes)
            g->node[g->nodes++] = job->machine->node[i].node;
}

enum farm_status farm_bw_part_gpu(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    if (!farm_bw_gpus_expected(job->machine))
        return not_measured(job, section, "", "none here: no NVIDIA GPU among this machine's PCI devices, no driver");
    struct gpus *g = calloc(1, sizeof *g);
    if (!g) return farm_fail_errno(err, FARM_E_LIMIT, "farm bw");
    struct farm_error why;
    enum farm_status status = FARM_OK;
    *g = (struct gpus){.job = job, .section = section};
    if (find_gpus(g, &why)) {
        status = not_measured(job, section, "not measured: ", why.message);
    } else {
        const double share = g->devices > 1 ? 1 - PEER_SHARE : 1;
        tell_devices(g);
        choose_memory(g);
        status = cells(g, share, err);
        if (!status && g->devices > 1) status = peers(g, PEER_SHARE, err);
        if (!status) status = draw(g, err);
    }
    free(g);
    return status;
}
