// See machine.h.
#include "topo/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/paths.h"

enum {
    DISTANCE_LOCAL = 10, // the firmware's convention (ACPI SLIT)
    DISTANCE_NEAR = 15,  // assumed between nodes beside the same CPUs if the machine has no table
    DISTANCE_FAR = 20,   // assumed otherwise
    DISTANCE_UNKNOWN = 255,
    PCI_VENDOR_NVIDIA = 0x10de,
    PCI_BASE_CLASS_DISPLAY = 0x03,
};

static int node_position(const struct farm_machine *machine, int node) {
    for (int i = 0; i < machine->node_count; i++)
        if (machine->node[i].node == node) return i;
    return -1;
}

const struct farm_node *farm_machine_node(const struct farm_machine *machine, int node) {
    int at = node_position(machine, node);
    return at < 0 ? NULL : &machine->node[at];
}

const struct farm_cpu *farm_machine_cpu(const struct farm_machine *machine, int cpu) {
    for (int i = 0; i < machine->cpu_count; i++)
        if (machine->cpu[i].cpu == cpu) return &machine->cpu[i];
    return NULL;
}

int farm_machine_distance(const struct farm_machine *machine, int from, int to) {
    int i = node_position(machine, from), j = node_position(machine, to);
    return i < 0 || j < 0 ? DISTANCE_UNKNOWN : machine->distance[i][j];
}

int farm_machine_memory_node(const struct farm_machine *machine, int node) {
    const struct farm_node *best = NULL;
    int best_cost = 0;
    for (int i = 0; i < machine->node_count; i++) {
        const struct farm_node *other = &machine->node[i];
        if (!other->usable || !other->total_bytes) continue;
        int cost = other->node == node ? -1 : 2 * farm_machine_distance(machine, node, other->node) + !other->has_cpus;
        if (!best || cost < best_cost) best = other, best_cost = cost;
    }
    return best ? best->node : -1;
}

bool farm_machine_cpu_name(const char *root, char *text, size_t size) {
    char path[4096], line[256];
    bool found = false;
    snprintf(text, size, "unknown");
    snprintf(path, sizeof path, "%s/proc/cpuinfo", farm_file_root(root));
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(text, size, "%s", colon + 1 + strspn(colon + 1, " "));
        found = true;
    }
    if (file) fclose(file);
    return found;
}

// Loads hwloc's topology without the plug-ins that open GPU libraries: no CUDA before fork.
static enum farm_status load_topology(const struct farm_machine_source *source, hwloc_topology_t *out,
                                      struct farm_error *err) {
    static const char *const excluded[] = {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"};
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology)) return farm_fail_errno(err, FARM_E_IO, "hwloc_topology_init");
    for (size_t i = 0; i < sizeof excluded / sizeof *excluded; i++) // fails harmlessly if the plug-in does not exist
        hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, excluded[i]);
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    hwloc_topology_set_flags(topology,
                             HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
    enum farm_status status = FARM_OK;
    if (source->xml && hwloc_topology_set_xml(topology, source->xml))
        status =
            farm_fail_errno(err, errno == ENOENT ? FARM_E_NOT_FOUND : FARM_E_FORMAT,
                            "cannot read the topology file '%s' (make one with: lstopo --of xml FILE)", source->xml);
    else if (source->synthetic && hwloc_topology_set_synthetic(topology, source->synthetic))
        status = farm_fail(err, FARM_E_FORMAT,
                           "'%s' is not a topology of hwloc (example: \"pack:2 [numa] l3:4 core:4 pu:2\")",
                           source->synthetic);
    else if (hwloc_topology_load(topology))
        status = source->xml ? farm_fail(err, FARM_E_FORMAT,
                                         "'%s' is not a topology file of hwloc 2 (make one with: lstopo --of xml FILE)",
                                         source->xml)
                             : farm_fail_errno(err, FARM_E_IO, "hwloc_topology_load");
    if (status)
        hwloc_topology_destroy(topology);
    else
        *out = topology;
    return status;
}

static enum farm_status read_nodes(hwloc_topology_t topology, struct farm_machine *m, struct farm_error *err) {
    hwloc_const_nodeset_t allowed = hwloc_topology_get_allowed_nodeset(topology);
    for (hwloc_obj_t obj = NULL; (obj = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, obj));) {
        if (m->node_count == FARM_NODES_MAX || obj->os_index >= FARM_BITMAP_BITS)
            return farm_fail(err, FARM_E_LIMIT, "this machine has more than %d NUMA nodes or one numbered above %d",
                             FARM_NODES_MAX, FARM_BITMAP_BITS);
        struct farm_node *node = &m->node[m->node_count++];
        bool on_gpu = obj->subtype && strcmp(obj->subtype, "GPUMemory") == 0;
        node->node = (int)obj->os_index;
        node->usable = hwloc_bitmap_isset(allowed, obj->os_index) && !on_gpu;
        node->total_bytes = node->free_bytes = obj->attr->numanode.local_memory;
    }
    return FARM_OK;
}

static int by_node_number(const void *a, const void *b) {
    return ((const struct farm_node *)a)->node - ((const struct farm_node *)b)->node;
}

static hwloc_obj_t node_object(hwloc_topology_t topology, int node) {
    return hwloc_get_numanode_obj_by_os_index(topology, (unsigned)node);
}

// The CPU's node: of those beside it the one that fewest CPUs share (hwloc attaches far memory to all CPUs of a socket
// or machine), then the lowest number (DRAM is numbered before HBM and CXL).
static int nearest_node(hwloc_topology_t topology, const struct farm_machine *m, unsigned cpu) {
    int best = -1, best_weight = 0;
    for (int i = 0; i < m->node_count; i++) {
        hwloc_obj_t obj = node_object(topology, m->node[i].node);
        if (!hwloc_bitmap_isset(obj->cpuset, cpu)) continue;
        int weight = hwloc_bitmap_weight(obj->cpuset);
        if (best < 0 || weight < best_weight) best = m->node[i].node, best_weight = weight;
    }
    return best;
}

static int ancestor_index(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_obj_t obj, int fallback) {
    hwloc_obj_t found = hwloc_get_ancestor_obj_by_type(topology, type, obj);
    return found ? (int)found->logical_index : fallback;
}

// hwloc orders kinds of cores by speed if it can, and then numbers them from 0: the slowest.
static int kind_of_core(hwloc_topology_t topology, hwloc_obj_t pu) {
    int efficiency = -1;
    const int kind = hwloc_cpukinds_get_by_cpuset(topology, pu->cpuset, 0);
    if (kind >= 0) hwloc_cpukinds_get_info(topology, (unsigned)kind, NULL, &efficiency, NULL, NULL, 0);
    return efficiency < 0 ? 0 : hwloc_cpukinds_get_nr(topology, 0) - 1 - efficiency;
}

static enum farm_status read_cpus(hwloc_topology_t topology, struct farm_machine *m, struct farm_error *err) {
    hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(topology);
    for (hwloc_obj_t pu = NULL; (pu = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, pu));) {
        if (m->cpu_count == FARM_CPUS_MAX || pu->os_index >= FARM_CPUS_MAX)
            return farm_fail(err, FARM_E_LIMIT, "this machine has more than %d CPUs", FARM_CPUS_MAX);
        int at = m->cpu_count++;
        struct farm_cpu *cpu = &m->cpu[at];
        cpu->cpu = (int)pu->os_index;
        cpu->core = ancestor_index(topology, HWLOC_OBJ_CORE, pu, (int)pu->logical_index);
        cpu->l3 = ancestor_index(topology, HWLOC_OBJ_L3CACHE, pu, -1);
        cpu->socket = ancestor_index(topology, HWLOC_OBJ_PACKAGE, pu, 0);
        cpu->node = nearest_node(topology, m, pu->os_index);
        cpu->kind = kind_of_core(topology, pu);
        cpu->smt = at > 0 && m->cpu[at - 1].core == cpu->core ? m->cpu[at - 1].smt + 1 : 0;
        if (cpu->core >= m->core_count) m->core_count = cpu->core + 1;
        if (cpu->l3 >= m->l3_count) m->l3_count = cpu->l3 + 1;
        const hwloc_obj_t cache = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_L3CACHE, pu);
        if (cache) m->l3_bytes = cache->attr->cache.size;
        if (cpu->socket >= m->socket_count) m->socket_count = cpu->socket + 1;
        if (hwloc_bitmap_isset(allowed, pu->os_index)) farm_bitmap_set(&m->allowed, cpu->cpu);
        int node = node_position(m, cpu->node);
        if (node >= 0) m->node[node].has_cpus = true;
    }
    return m->cpu_count ? FARM_OK : farm_fail(err, FARM_E_FORMAT, "a topology without CPUs: %s", m->source);
}

static void assume_distances(hwloc_topology_t topology, struct farm_machine *m) {
    for (int i = 0; i < m->node_count; i++)
        for (int j = 0; j < m->node_count; j++) {
            hwloc_obj_t a = node_object(topology, m->node[i].node), b = node_object(topology, m->node[j].node);
            bool near = hwloc_bitmap_intersects(a->cpuset, b->cpuset);
            m->distance[i][j] = i == j ? DISTANCE_LOCAL : near ? DISTANCE_NEAR : DISTANCE_FAR;
        }
}

static void read_distances(hwloc_topology_t topology, struct farm_machine *m) {
    unsigned count = 1;
    struct hwloc_distances_s *table = NULL;
    assume_distances(topology, m);
    if (hwloc_distances_get_by_type(topology, HWLOC_OBJ_NUMANODE, &count, &table, HWLOC_DISTANCES_KIND_MEANS_LATENCY,
                                    0) ||
        !count)
        return;
    for (unsigned i = 0; i < table->nbobjs; i++)
        for (unsigned j = 0; j < table->nbobjs; j++) {
            int a = table->objs[i] ? node_position(m, (int)table->objs[i]->os_index) : -1;
            int b = table->objs[j] ? node_position(m, (int)table->objs[j]->os_index) : -1;
            hwloc_uint64_t value = table->values[i * table->nbobjs + j];
            if (a >= 0 && b >= 0) m->distance[a][b] = value < DISTANCE_UNKNOWN ? (uint16_t)value : DISTANCE_UNKNOWN;
        }
    hwloc_distances_release(topology, table);
}

// The first node with CPUs beside a device; -1: unknown (the device is attached to the whole machine).
static int device_node(hwloc_topology_t topology, const struct farm_machine *m, hwloc_obj_t device) {
    hwloc_obj_t beside = hwloc_get_non_io_ancestor_obj(topology, device);
    int found = -1, nodes = 0;
    for (int i = 0; i < m->node_count; i++) {
        if (!m->node[i].has_cpus || !hwloc_bitmap_isset(beside->nodeset, (unsigned)m->node[i].node)) continue;
        if (!nodes++) found = m->node[i].node;
    }
    return nodes > 1 && beside == hwloc_get_root_obj(topology) ? -1 : found;
}

static int by_bus_id(const void *a, const void *b) {
    return strcmp(((const struct farm_gpu *)a)->pci_bus_id, ((const struct farm_gpu *)b)->pci_bus_id);
}

static void read_gpus(hwloc_topology_t topology, struct farm_machine *m) {
    for (hwloc_obj_t obj = NULL; (obj = hwloc_get_next_pcidev(topology, obj));) {
        const struct hwloc_pcidev_attr_s *pci = &obj->attr->pcidev;
        if (pci->vendor_id != PCI_VENDOR_NVIDIA || pci->class_id >> 8 != PCI_BASE_CLASS_DISPLAY) continue;
        if (m->gpu_count == FARM_GPUS_MAX) break;
        struct farm_gpu *gpu = &m->gpu[m->gpu_count++];
        if (obj->name)
            snprintf(gpu->name, sizeof gpu->name, "%s", obj->name);
        else
            snprintf(gpu->name, sizeof gpu->name, "NVIDIA %04x:%04x", pci->vendor_id, pci->device_id);
        snprintf(gpu->pci_bus_id, sizeof gpu->pci_bus_id, "%04x:%02x:%02x.%01x", pci->domain & 0xffff, pci->bus,
                 pci->dev, pci->func);
        gpu->node = device_node(topology, m, obj);
    }
    qsort(m->gpu, (size_t)m->gpu_count, sizeof m->gpu[0], by_bus_id);
}

// Page cache counts as free: the kernel drops it for rings without swapping.
static void read_memory(struct farm_machine *m, const char *root) {
    char text[8192];
    for (int i = 0; i < m->node_count; i++) {
        struct farm_node *node = &m->node[i];
        if (!farm_file_text(text, sizeof text, "%s/sys/devices/system/node/node%d/meminfo", root, node->node)) continue;
        node->total_bytes = 1024 * farm_file_number(text, "MemTotal:");
        node->free_bytes = 1024 * (farm_file_number(text, "MemFree:") + farm_file_number(text, "Active(file):") +
                                   farm_file_number(text, "Inactive(file):") + farm_file_number(text, "SReclaimable:"));
        if (node->free_bytes > node->total_bytes) node->free_bytes = node->total_bytes;
    }
    // With one node take the machine's sums: the node's lack memory that a virtual machine has not been given yet.
    if (m->node_count != 1 || !farm_file_text(text, sizeof text, "%s/proc/meminfo", root)) return;
    uint64_t total = 1024 * farm_file_number(text, "MemTotal:"),
             available = 1024 * farm_file_number(text, "MemAvailable:");
    if (total > m->node[0].total_bytes) m->node[0].total_bytes = total;
    if (available > m->node[0].free_bytes) m->node[0].free_bytes = available;
}

static void read_limits(struct farm_machine *m, const char *root) {
    struct farm_cgroup_limits limits;
    farm_cgroup_read(root, &limits);
    m->cpu_quota = limits.cpu_quota;
    m->memory_limit_bytes = limits.memory.limit_bytes;
    m->memory_free_bytes = limits.memory.left_bytes;
    if (limits.has_cpus) farm_bitmap_keep(&m->allowed, &limits.cpus);
}

// Another machine's document is refused. Date: the file's.
static enum farm_status read_measured(struct farm_machine *m, const char *path, bool live, struct farm_error *err) {
    char *text, cpu[256];
    const char *name;
    int nodes, from, to, frames = 1;
    double value;
    size_t i;
    json_t *row;
    struct stat info = {0};
    if (farm_file_read(path, 16 << 20, &text, &i, err)) return err->status;
    json_t *document = farm_json_parse(text, i, path, err);
    free(text);
    if (!document) return err->status;
    farm_machine_cpu_name(NULL, cpu, sizeof cpu);
    const bool fits =
        !json_unpack(document, "{s:{s:s, s:i}}", "machine", "cpu", &name, "nodes", &nodes) && nodes == m->node_count;
    if (!fits || (live && strcmp(name, cpu) != 0)) {
        json_decref(document);
        return farm_fail(err, FARM_E_FORMAT, "%s: not a document of farm bw --json about this machine", path);
    }
    json_array_foreach(json_object_get(document, "results"), i, row) {
        if (json_unpack(row, "{s:s, s:F}", "name", &name, "value", &value)) continue;
        if (strcmp(name, "memory.write.all_cores") == 0) m->measured.write = value;
        if (strcmp(name, "memory.write_nt.all_cores") == 0) m->measured.write_nt = value;
        if (sscanf(name, "matrix.bandwidth.%d.%d", &from, &to) == 2 && from == to && node_position(m, from) >= 0)
            m->node[node_position(m, from)].bytes_per_s = value * 1e9;
    }
    if (!json_unpack(document, "{s:{s:{s:s, s:i, s:F, s:[{}, {}, {s:F}]}}}", "sections", "env", "env", &name,
                     "frames_per_step", &frames, "farm_fps_frames_per_s", &m->measured.cores_hz, "ceilings",
                     "agent_steps_per_s", &m->measured.memory_hz))
        snprintf(m->measured.env, sizeof m->measured.env, "%s", name);
    m->measured.cores_hz /= frames > 0 ? frames : 1;
    stat(path, &info);
    strftime(m->measured.date, sizeof m->measured.date, "%Y-%m-%d", gmtime(&info.st_mtime));
    json_decref(document);
    return FARM_OK;
}

static enum farm_status find_measured(struct farm_machine *m, const struct farm_machine_source *source, bool live,
                                      struct farm_error *err) {
    char path[PATH_MAX];
    struct farm_error why;
    int fd;
    if (source->bw && strcmp(source->bw, "auto") != 0)
        return read_measured(m, source->bw, live, err) ? farm_fail_in(err, FARM_E_USAGE, "--bw") : FARM_OK;
    if (!source->bw || !live || !farm_path_cache("bw.json", path, sizeof path)) return FARM_OK;
    enum farm_status status = farm_file_open_own(path, O_RDONLY, &fd, &why);
    if (!status) close(fd), status = read_measured(m, path, live, &why);
    if (status && status != FARM_E_NOT_FOUND) farm_log_warn("%s: bandwidth counts as not measured", why.message);
    return FARM_OK;
}

static void name_source(struct farm_machine *m, const struct farm_machine_source *source) {
    if (source->xml)
        snprintf(m->source, sizeof m->source, "xml %s", source->xml);
    else if (source->synthetic)
        snprintf(m->source, sizeof m->source, "synthetic %s", source->synthetic);
    else
        snprintf(m->source, sizeof m->source, "this machine");
}

enum farm_status farm_machine_read(struct farm_machine *out, const struct farm_machine_source *source,
                                   struct farm_error *err) {
    bool live = !source->xml && !source->synthetic;
    memset(out, 0, sizeof *out);
    out->memory_limit_bytes = out->memory_free_bytes = UINT64_MAX;
    name_source(out, source);
    if (source->xml && source->synthetic)
        return farm_fail(err, FARM_E_INVALID, "a topology comes from an XML file or from a synthetic string, not both");

    hwloc_topology_t topology = NULL;
    enum farm_status status = load_topology(source, &topology, err);
    if (status) return status;
    status = read_nodes(topology, out, err);
    qsort(out->node, (size_t)out->node_count, sizeof out->node[0], by_node_number);
    if (!status) status = read_cpus(topology, out, err);
    if (!status) {
        read_distances(topology, out);
        read_gpus(topology, out);
    }
    hwloc_topology_destroy(topology);
    if (status) return status;

    struct farm_bitmap pinned; // the affinity mask that this process was started with (taskset, Slurm, numactl)
    if (live && !farm_bitmap_pinned(&pinned, NULL)) farm_bitmap_keep(&out->allowed, &pinned);
    const char *root = source->root ? source->root : live ? "" : NULL;
    if (root) {
        read_memory(out, root);
        read_limits(out, root);
    }
    if (!farm_bitmap_count(&out->allowed))
        return farm_fail(err, FARM_E_LIMIT, "the cpuset of this control group and the affinity mask allow no CPU");
    return find_measured(out, source, live, err);
}
