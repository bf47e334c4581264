// See segment.h. memfd_create(2), fcntl(2) "File Sealing", madvise(2), tmpfs(5) and Linux's mm/transhuge.rst.
#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/file.h"
#include "shm/limits.h"
#include "shm/place.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, HUGE_MIN_BYTES = 1 << 20, FD_MIN = 3, SMALL_BYTES = 4096 };

static const char *kind_name(uint32_t kind) {
    static const char *const names[] = {"segment", "up", "down", "stats", "board"};
    return names[kind < sizeof names / sizeof *names ? kind : 0];
}

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

// The status of a failed mmap or ftruncate, from errno.
static enum farm_status memory_status(void) {
    return errno == ENOMEM ? FARM_E_LIMIT : FARM_E_IO;
}

static void clear_segment(struct farm_segment *segment) {
    *segment = (struct farm_segment){.fd = -1, .fd_readonly = -1};
}

void farm_segment_close(struct farm_segment *segment) {
    if (segment->header) munmap(segment->header, segment->bytes);
    if (segment->fd > 0) close(segment->fd);
    if (segment->fd_readonly > 0) close(segment->fd_readonly);
    clear_segment(segment);
}

// ---- create ----

// Moves a descriptor above the standard three if those are closed: a child would use it as its output.
static int above_standard(int fd) {
    if (fd < 0 || fd >= FD_MIN) return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, FD_MIN), saved = errno;
    close(fd);
    errno = saved;
    return moved;
}

static enum farm_status check_request(const struct farm_segment_request *request, struct farm_error *err) {
    if (request->kind < FARM_SEGMENT_UP || request->kind > FARM_SEGMENT_BOARD)
        return farm_fail(err, FARM_E_INVALID, "invalid kind of segment: %d", (int)request->kind);
    if (request->user_bytes > FARM_SEGMENT_USER_BYTES)
        return farm_fail(err, FARM_E_INVALID, "%zu bytes of description do not fit the header page's %d",
                         request->user_bytes, FARM_SEGMENT_USER_BYTES);
    if (request->bytes < FARM_SEGMENT_HEADER_BYTES || request->bytes > SIZE_MAX / 2)
        return farm_fail(err, FARM_E_INVALID, "invalid segment size: %zu bytes", request->bytes);
    return FARM_OK;
}

// Makes the file and its mapping, without memory.
static enum farm_status map_new(const struct farm_segment_request *request, bool huge, struct farm_segment *out,
                                struct farm_error *err) {
    char name[64];
    size_t page = huge ? FARM_PLACE_HUGE_BYTES : (size_t)sysconf(_SC_PAGESIZE);
    size_t align = request->huge && request->bytes >= HUGE_MIN_BYTES ? FARM_PLACE_HUGE_BYTES : page;
    out->bytes = round_up(request->bytes, page);
    out->pages = huge ? FARM_PAGES_HUGE : FARM_PAGES_SMALL;
    out->writable = true;
    const enum farm_status status = farm_limits_check_file("/", out->bytes, err);
    if (status) return status;
    snprintf(name, sizeof name, "farm-%s-%u", kind_name(request->kind), request->owner);
    out->fd =
        above_standard(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0)));
    if (out->fd < 0 && (errno == EMFILE || errno == ENFILE))
        return farm_fail_errno(err, FARM_E_LIMIT,
                               "no descriptor left for %s: raise RLIMIT_NOFILE (`ulimit -n`) or, for the whole "
                               "machine, fs.file-max",
                               name);
    if (out->fd < 0)
        return farm_fail_errno(err,
                               errno == ENOSYS   ? FARM_E_UNSUPPORTED
                               : errno == ENOMEM ? FARM_E_LIMIT
                                                 : FARM_E_IO,
                               "memfd_create(%s)", name);
    if (ftruncate(out->fd, (off_t)out->bytes))
        return farm_fail_errno(err, memory_status(), "cannot make %s %zu bytes long", name, out->bytes);
    out->header = farm_place_map(out->fd, PROT_READ | PROT_WRITE, out->bytes, align);
    if (!out->header)
        return farm_fail_errno(err, memory_status(),
                               "cannot map %s, %zu bytes (limits: ulimit -v, vm.overcommit_memory, vm.nr_hugepages)",
                               name, out->bytes);
    return FARM_OK;
}

// Populates and verifies pages. Collapses 2 MiB blocks first, unless the first touch decides on their node; reserved
// pages have theirs.
static enum farm_status place_range(struct farm_segment *out, size_t at, size_t bytes, struct farm_error *err) {
    uint8_t *start = (uint8_t *)out->header + at;
    const bool touch = out->placement == FARM_PLACEMENT_FIRST_TOUCH && !out->later;
    size_t ask_bytes = out->pages == FARM_PAGES_HUGE ? FARM_PLACE_HUGE_BYTES : SMALL_BYTES, elsewhere = 0;
    bool collapsed = out->collapses && !touch && farm_place_collapse(start, bytes);
    enum farm_status status = farm_place_populate(start, bytes, out->later ? -1 : out->fd, touch ? out->node : -1, err);
    if (status) return status;
    if (out->collapses && touch) collapsed = farm_place_collapse(start, bytes);
    if (collapsed) out->pages = FARM_PAGES_TRANSPARENT; // more than half of it
    const bool asked = farm_place_verify(start, bytes, ask_bytes, out->node, &elsewhere);
    out->pages_elsewhere += elsewhere;
    if (out->node < 0) return FARM_OK;
    if (elsewhere) out->placement = FARM_PLACEMENT_MISPLACED;
    if (!asked && !at) out->placement = FARM_PLACEMENT_UNVERIFIED;
    return FARM_OK;
}

// Binds all pages, and places them or, `later`, reserves them and places the first block.
static enum farm_status place_pages(const struct farm_segment_request *request, bool transparent,
                                    struct farm_segment *out, struct farm_error *err) {
    bool refused = false;
    enum farm_status status = FARM_OK;
    out->node = request->node;
    out->collapses = transparent;
    out->later = request->later && out->pages != FARM_PAGES_HUGE && out->bytes >= FARM_SEGMENT_LATER_BYTES;
    if (out->node >= 0) status = farm_place_bind(out->header, out->bytes, out->node, true, &refused, err);
    if (out->node >= 0) out->placement = refused ? FARM_PLACEMENT_FIRST_TOUCH : FARM_PLACEMENT_BOUND;
    if (!status && out->later) status = farm_place_reserve(out->bytes, out->fd, refused ? out->node : -1, err);
    if (status == FARM_E_UNSUPPORTED && out->later) out->later = false, status = FARM_OK;
    return status ? status : place_range(out, 0, out->later ? FARM_PLACE_HUGE_BYTES : out->bytes, err);
}

enum farm_status farm_segment_place(struct farm_segment *segment, size_t at, size_t bytes, struct farm_error *err) {
    const size_t from = at / FARM_PLACE_HUGE_BYTES * FARM_PLACE_HUGE_BYTES,
                 to = round_up(at + bytes, FARM_PLACE_HUGE_BYTES);
    return place_range(segment, from, (to < segment->bytes ? to : segment->bytes) - from, err);
}

// Tries 2 MiB pages of the reserved pool. Not enough for all: closes *out, sets out->note and returns false.
static bool create_huge(const struct farm_segment_request *request, struct farm_segment *out) {
    size_t wanted = round_up(request->bytes, FARM_PLACE_HUGE_BYTES) / FARM_PLACE_HUGE_BYTES;
    uint64_t there = farm_limits_huge_available_bytes("/", request->node) / FARM_PLACE_HUGE_BYTES;
    struct farm_error why = {0};
    if (there >= wanted && map_new(request, true, out, &why) == FARM_OK &&
        place_pages(request, false, out, &why) == FARM_OK)
        return true;
    farm_segment_close(out);
    if (why.status)
        snprintf(out->note, sizeof out->note, "2 MiB pages wanted: %.160s", why.message);
    else
        snprintf(out->note, sizeof out->note, "2 MiB pages wanted: %zu, free in the pool: %llu; raise vm.nr_hugepages",
                 wanted, (unsigned long long)there);
    return false;
}

// The bracketed word of "always within_size advise [never] deny force", for the note.
static const char *shmem_setting(char *text, size_t bytes) {
    const bool any = farm_file_line(text, bytes, "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    const char *choice = any ? farm_file_choice(text) : NULL;
    return choice ? choice : "unsupported by this kernel";
}

// Base pages; with `transparent`, requests transparent pages from the kernel and counts them.
static enum farm_status create_small(const struct farm_segment_request *request, bool transparent,
                                     struct farm_segment *out, struct farm_error *err) {
    // Dozens of files of /proc and /sys: too many for each of thousands of small segments, whose sum the plan checks.
    enum farm_status status =
        request->bytes < HUGE_MIN_BYTES ? FARM_OK : farm_limits_check_memory("/", request->bytes, request->node, err);
    if (!status) status = map_new(request, false, out, err);
    // Fails on kernels without transparent pages: the count below is then 0.
    if (!status && transparent) madvise(out->header, out->bytes, MADV_HUGEPAGE);
    if (!status) status = place_pages(request, transparent, out, err);
    if (status || !transparent) return status;
    if (out->pages == FARM_PAGES_TRANSPARENT || farm_place_transparent_bytes(out->header) >= out->bytes / 2) {
        out->pages = FARM_PAGES_TRANSPARENT;
        out->note[0] = 0;
        return FARM_OK;
    }
    if (out->bytes < FARM_PLACE_HUGE_BYTES) {
        out->note[0] = 0; // it would not fill one
        return FARM_OK;
    }
    char setting[64];
    size_t used = strlen(out->note);
    snprintf(out->note + used, sizeof out->note - used,
             "; transparent ones not given: shmem_enabled is %s, and none could be put together (Linux 6.1; memory in "
             "free pieces of 2 MiB)",
             shmem_setting(setting, sizeof setting));
    return FARM_OK;
}

static void write_header(const struct farm_segment_request *request, struct farm_segment *out) {
    struct farm_segment_header *header = out->header;
    header->magic = FARM_SEGMENT_MAGIC;
    header->version = FARM_SEGMENT_VERSION;
    header->kind = request->kind;
    header->bytes = out->bytes;
    header->layout_hash = request->layout_hash;
    header->owner = request->owner;
    header->node = request->node;
    header->pages = out->pages;
    header->placement = out->placement;
    if (request->user_bytes) memcpy(header->user, request->user, request->user_bytes);
}

// Seals the size, keeps the mapping out of children, opens the read-only descriptor. fchmod changes no open descriptor.
static enum farm_status seal_segment(struct farm_segment *out, struct farm_error *err) {
    char path[64];
    if (fcntl(out->fd, F_ADD_SEALS, SEALS)) return farm_fail_errno(err, FARM_E_IO, "cannot seal a segment");
    if (madvise(out->header, out->bytes, MADV_DONTFORK))
        return farm_fail_errno(err, FARM_E_IO, "cannot keep a segment out of forked children");
    snprintf(path, sizeof path, "/proc/self/fd/%d", out->fd);
    out->fd_readonly = above_standard(open(path, O_RDONLY | O_CLOEXEC));
    if (out->fd_readonly < 0)
        return farm_fail_errno(err, errno == EMFILE || errno == ENFILE ? FARM_E_LIMIT : FARM_E_IO,
                               "cannot reopen a segment read-only (is /proc mounted? `ulimit -n` too low?)");
    if (fchmod(out->fd, S_IRUSR)) return farm_fail_errno(err, FARM_E_IO, "cannot remove a segment's write permission");
    return FARM_OK;
}

enum farm_status farm_segment_create(const struct farm_segment_request *request, struct farm_segment *out,
                                     struct farm_error *err) {
    clear_segment(out);
    enum farm_status status = check_request(request, err);
    if (status) return status;
    bool wants_huge = request->huge && request->bytes >= HUGE_MIN_BYTES;
    if (!wants_huge || !create_huge(request, out)) status = create_small(request, wants_huge, out, err);
    if (status) goto failed;
    write_header(request, out);
    status = seal_segment(out, err);
    if (status) goto failed;
    return FARM_OK;
failed:
    farm_segment_close(out);
    return farm_fail_in(err, status, "shared memory '%s' of actor %u", kind_name(request->kind), request->owner);
}

// ---- open ----

static enum farm_status check_file(int fd, bool writable, struct stat *file, struct farm_error *err) {
    int seals = fcntl(fd, F_GET_SEALS), mode = fcntl(fd, F_GETFL);
    if (mode < 0) return farm_fail_errno(err, FARM_E_IO, "descriptor %d", fd);
    if (seals < 0) return farm_fail(err, FARM_E_FORMAT, "descriptor %d is not sealed memory (memfd)", fd);
    if ((seals & SEALS) != SEALS)
        return farm_fail(err, FARM_E_FORMAT, "not sealed against %s%s%s: its size could change under the reader",
                         seals & F_SEAL_SHRINK ? "" : "shrinking ", seals & F_SEAL_GROW ? "" : "growing ",
                         seals & F_SEAL_SEAL ? "" : "further seals");
    if (writable && (mode & O_ACCMODE) != O_RDWR)
        return farm_fail(err, FARM_E_PERMISSION, "the descriptor is read-only, and this side must write");
    if (fstat(fd, file)) return farm_fail_errno(err, FARM_E_IO, "descriptor %d", fd);
    if (file->st_size < FARM_SEGMENT_HEADER_BYTES)
        return farm_fail(err, FARM_E_FORMAT, "%lld bytes are fewer than a header page", (long long)file->st_size);
    return FARM_OK;
}

// Copies the header through a mapping of the first page: its writer may change it at any time.
static enum farm_status read_header(int fd, const struct stat *file, struct farm_segment_header *header,
                                    struct farm_error *err) {
    // st_blksize is the page size (2 MiB on hugetlbfs, the smallest mapping there).
    size_t page = file->st_blksize > FARM_SEGMENT_HEADER_BYTES ? (size_t)file->st_blksize : FARM_SEGMENT_HEADER_BYTES;
    void *first = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0);
    if (first == MAP_FAILED) return farm_fail_errno(err, memory_status(), "cannot map the header page");
    memcpy(header, first, sizeof *header);
    munmap(first, page);
    return FARM_OK;
}

static enum farm_status check_header(const struct farm_segment_header *header, uint64_t file_bytes,
                                     enum farm_segment_kind kind, uint64_t layout_hash, struct farm_error *err) {
    if (header->magic != FARM_SEGMENT_MAGIC)
        return farm_fail(err, FARM_E_FORMAT, "magic %016llx: not a segment of actorfarm",
                         (unsigned long long)header->magic);
    if (header->version != FARM_SEGMENT_VERSION)
        return farm_fail(err, FARM_E_FORMAT, "layout version %u, this build knows %u: use the same build on both sides",
                         header->version, FARM_SEGMENT_VERSION);
    if (header->kind != (uint32_t)kind)
        return farm_fail(err, FARM_E_FORMAT, "kind %u ('%s') where '%s' is expected", header->kind,
                         kind_name(header->kind), kind_name(kind));
    if (header->bytes != file_bytes)
        return farm_fail(err, FARM_E_FORMAT, "its header says %llu bytes, the file has %llu",
                         (unsigned long long)header->bytes, (unsigned long long)file_bytes);
    if (layout_hash && header->layout_hash != layout_hash)
        return farm_fail(err, FARM_E_FORMAT,
                         "layout hash %016llx, %016llx is expected: the two sides differ in the layout",
                         (unsigned long long)header->layout_hash, (unsigned long long)layout_hash);
    return FARM_OK;
}

static enum farm_status map_whole(int fd, const struct stat *file, bool writable, struct farm_segment *out,
                                  struct farm_error *err) {
    struct statfs filesystem;
    bool huge = fstatfs(fd, &filesystem) == 0 && filesystem.f_type == HUGETLBFS_MAGIC;
    size_t align = huge || out->pages == FARM_PAGES_TRANSPARENT ? FARM_PLACE_HUGE_BYTES : (size_t)sysconf(_SC_PAGESIZE);
    out->bytes = (size_t)file->st_size;
    out->writable = writable;
    out->header = farm_place_map(fd, PROT_READ | (writable ? PROT_WRITE : 0), out->bytes, align);
    if (!out->header)
        return farm_fail_errno(err, memory_status(), "cannot map %zu bytes (limits: ulimit -v, vm.max_map_count)",
                               out->bytes);
    if (madvise(out->header, out->bytes, MADV_DONTFORK))
        return farm_fail_errno(err, FARM_E_IO, "cannot keep a segment out of forked children");
    return FARM_OK;
}

void farm_segment_populate(const struct farm_segment *segment) {
    // For reading, even if we write later: the kernel maps 16 pages a fault instead of one (three times as fast),
    // writable if the mapping is. With a software dirty bit (Armv8.0) a first write still faults; before Linux 5.14,
    // any.
    madvise(segment->header, segment->bytes, MADV_POPULATE_READ);
}

// Takes the segment's description from its header, or (`unread`) only the size that the kernel guarantees.
static enum farm_status open_segment(int fd, bool writable, enum farm_segment_kind kind, uint64_t layout_hash,
                                     bool unread, size_t bytes_min, struct farm_segment *out, struct farm_error *err) {
    struct stat file;
    // Without a header the kind of page is unknown: align for the largest.
    struct farm_segment_header header = {.pages = FARM_PAGES_TRANSPARENT, .placement = FARM_PLACEMENT_UNVERIFIED};
    clear_segment(out);
    enum farm_status status = check_file(fd, writable, &file, err);
    if (!status && !unread) status = read_header(fd, &file, &header, err);
    if (!status && !unread) status = check_header(&header, (uint64_t)file.st_size, kind, layout_hash, err);
    if (!status && (size_t)file.st_size < bytes_min)
        status = farm_fail(err, FARM_E_FORMAT, "segment of %lld bytes is smaller than its layout, %zu bytes",
                           (long long)file.st_size, bytes_min);
    if (!status) {
        const bool small = header.pages > FARM_PAGES_HUGE || (unread && file.st_size < HUGE_MIN_BYTES);
        out->pages = small ? FARM_PAGES_SMALL : (enum farm_pages)header.pages;
        out->placement = header.placement <= FARM_PLACEMENT_UNVERIFIED ? (enum farm_placement)header.placement
                                                                       : FARM_PLACEMENT_UNVERIFIED;
        status = map_whole(fd, &file, writable, out, err);
    }
    if (status) {
        farm_segment_close(out); // out->fd is not set yet: the descriptor belongs to the caller
        return farm_fail_in(err, status, "shared memory handed over as '%s'", kind_name(kind));
    }
    out->fd = fd;
    return FARM_OK;
}

enum farm_status farm_segment_open(int fd, bool writable, enum farm_segment_kind kind, uint64_t layout_hash,
                                   struct farm_segment *out, struct farm_error *err) {
    return open_segment(fd, writable, kind, layout_hash, false, 0, out, err);
}

enum farm_status farm_segment_open_unread(int fd, bool writable, enum farm_segment_kind kind, size_t bytes_min,
                                          struct farm_segment *out, struct farm_error *err) {
    return open_segment(fd, writable, kind, 0, true, bytes_min, out, err);
}

void farm_segment_describe(const struct farm_segment *segment, char *text, size_t text_bytes) {
    static const char *const pages[] = {"base pages", "transparent 2 MiB pages", "2 MiB pages"};
    static const char *const placed[] = {"on no node in particular", "bound to node", "first touched on node",
                                         "NOT all on node", "first touched on node"};
    char node[16] = "", detail[64] = "";
    if (!segment->header) {
        snprintf(text, text_bytes, "closed");
        return;
    }
    if (segment->placement != FARM_PLACEMENT_NONE) snprintf(node, sizeof node, " %d", (int)segment->header->node);
    if (segment->placement == FARM_PLACEMENT_UNVERIFIED) snprintf(detail, sizeof detail, " (cannot be verified here)");
    if (segment->placement == FARM_PLACEMENT_MISPLACED && segment->pages_elsewhere)
        snprintf(detail, sizeof detail, " (%zu pages elsewhere)", segment->pages_elsewhere);
    snprintf(text, text_bytes, "'%s' of actor %u: %.2f MiB in %s, %s%s%s", kind_name(segment->header->kind),
             segment->header->owner, (double)segment->bytes / (1 << 20), pages[segment->pages],
             placed[segment->placement], node, detail);
}

bool farm_segment_pages_cost(const struct farm_segment *const *segments, size_t count, char *text, size_t text_bytes) {
    const char *why = NULL;
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (segments[i]->pages != FARM_PAGES_SMALL || !segments[i]->note[0]) continue;
        bytes += segments[i]->bytes;
        why = segments[i]->note;
    }
    if (bytes < FARM_SEGMENT_PAGES_COST_BYTES) return false;
    // bench/results/bw.jsonl, "pages": 207 ns on base pages, 161 ns on transparent ones; reads and copies equal.
    snprintf(text, text_bytes,
             "%.0f MiB of shared memory are in base pages: in 2 MiB pages a load that misses the caches takes about a "
             "fifth less time (docs/BANDWIDTH.md; `farm bw --only pages` measures this machine). %s",
             (double)bytes / (1 << 20), why);
    return true;
}
