// See dial.h.
#include "bridge/dial.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/program.h"

// The next attempt finds a path that is back, so intervals and limits are short after a cut and grow later.
static const uint64_t LIMIT_NS = 40000000, LIMIT_LATE_NS = 3000000000u;
static const uint64_t INTERVAL_NS = 50000000, INTERVAL_MAX_NS = 1000000000, SOON_NS = 10000000000u;

// SplitMix64: for jitter only.
static uint64_t next_random(struct farm_dial *dial) {
    uint64_t z = dial->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

struct answer {
    enum farm_status status;
    uint32_t count;
    struct farm_address found[FARM_ADDRESSES_MAX];
    struct farm_error err;
};

int farm_dial_start_resolver(const char *name) {
    struct answer answer;
    int ends[2];
    char question;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return -1;
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDIN_FILENO);
        farm_program_close(STDERR_FILENO + 1, ~0u);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, "resolver");
        while (read(STDIN_FILENO, &question, 1) == 1) {
            answer = (struct answer){0};
            answer.status = farm_address_find(name, answer.found, &answer.count, &answer.err);
            if (send(STDIN_FILENO, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) break;
        }
        _exit(0);
    }
    close(ends[1]);
    if (pid > 0) return ends[0];
    close(ends[0]);
    return -1;
}

static enum farm_status resolve(struct farm_dial *dial, struct farm_error *err) {
    struct answer answer = {0};
    if (dial->resolver < 0) return farm_address_find(dial->name, dial->found, &dial->found_count, err);
    if (send(dial->resolver, "?", 1, MSG_NOSIGNAL) != 1 ||
        recv(dial->resolver, &answer, sizeof answer, 0) != sizeof answer)
        return farm_fail(err, FARM_E_DEAD, "%s: the process that resolves names has ended", dial->name);
    dial->found_count = answer.count;
    memcpy(dial->found, answer.found, sizeof dial->found);
    *err = answer.err;
    return answer.status;
}

// Resolves the name again after INTERVAL_MAX_NS, because the learner may have moved.
static enum farm_status next_address(struct farm_dial *dial, uint64_t now_ns, struct farm_error *err) {
    if (!dial->found_count || now_ns - dial->found_ns >= INTERVAL_MAX_NS) {
        dial->found_ns = now_ns;
        dial->found_count = 0;
        const enum farm_status status = resolve(dial, err);
        if (status) return status;
    }
    dial->address = dial->found[dial->tries++ % dial->found_count];
    if (dial->encrypted || farm_address_private(&dial->address)) return FARM_OK;
    return farm_fail(err, FARM_E_PERMISSION, "%s is no longer a private address: nothing is sent unencrypted",
                     dial->name);
}

enum farm_status farm_dial_open(struct farm_dial *dial, uint64_t now_ns, int *fd, struct farm_error *err) {
    const enum farm_status status = next_address(dial, now_ns, err);
    if (status) return status;
    *fd = socket(dial->address.socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return farm_fail_errno(err, FARM_E_LIMIT, "no socket");
    return FARM_OK;
}

void farm_dial_plan_retry(struct farm_dial *dial, uint64_t now_ns) {
    if (!dial->cut_ns) dial->cut_ns = now_ns;
    const bool soon = now_ns - dial->cut_ns < SOON_NS;
    const uint64_t twice_ns = 2 * dial->interval_ns < INTERVAL_MAX_NS ? 2 * dial->interval_ns : INTERVAL_MAX_NS;
    dial->interval_ns = dial->at_once ? 0 : soon || twice_ns < INTERVAL_NS ? INTERVAL_NS : twice_ns;
    dial->retry_ns = now_ns;
    if (dial->interval_ns) dial->retry_ns += dial->interval_ns * 3 / 4 + next_random(dial) % (dial->interval_ns / 2);
    dial->at_once = false;
}

void farm_dial_reset(struct farm_dial *dial) {
    dial->cut_ns = dial->interval_ns = 0;
    dial->at_once = false;
}

uint64_t farm_dial_limit_ns(const struct farm_dial *dial, uint64_t now_ns) {
    const bool soon = dial->rtt_ns && now_ns - dial->cut_ns < SOON_NS;
    return soon ? LIMIT_NS + 3 * dial->rtt_ns : LIMIT_LATE_NS;
}
