// `farm serve`: a consumer, one process at a time of the same user, answers the lanes in the learner's place
// (farm/consumer.h). Its socket is inherited from the process that started the farm, which ends with it; or consumers
// connect to a path, one after another, and continue at the lanes' counters.
//
// Runs in the supervisor process, at its ticks. It is the consumer's counterpart for the messages of
// intake/admission.h: sends it all rings, then (change.h) those that join and leave; without a consumer they do so
// unasked. No process stands in the learner's place.
#ifndef FARM_RUN_CONSUMER_H
#define FARM_RUN_CONSUMER_H

#include "run/run.h"

struct farm_run_consumer {
    struct farm_run *run; // the command's
    const char *path;     // that consumers connect to; NULL: the socket is inherited
    char *folder_name;    // of `path`; NULL: none
    int folder, listener;
    int socket;         // to the consumer; -1: none is connected
    int pidfd;          // consumer process, because its children may hold the socket as well; -1: unknown
    int pid;            // 0: unknown
    uint64_t consumers; // so far
    uint64_t steps;     // answered by consumers, of single environments
};

// Takes the inherited socket (fd; -1: none), or makes the folder of `path`, 0700, and the socket. *consumer is
// overwritten, and must be freed in any case. FARM_E_USAGE: no socket, or path; FARM_E_PERMISSION: others can enter the
// folder; FARM_E_BUSY: another farm serves there.
enum farm_status farm_run_consumer_open(struct farm_run_consumer *consumer, struct farm_run *run, int fd,
                                        const char *path, struct farm_error *err);
// The run's on_tick: accepts and refuses. FARM_TURN_STOP: the consumer whose socket is inherited has ended.
enum farm_supervisor_turn farm_run_consumer_tick(void *consumer, uint64_t now_ns);
// After the run, before farm_run_free: sends the last words to a connected consumer.
void farm_run_consumer_end(struct farm_run_consumer *consumer, const char *words);
// To a consumer at this socket, instead of all else: why no farm starts.
void farm_run_consumer_refuse(int socket, const char *why);
void farm_run_consumer_free(struct farm_run_consumer *consumer);

#endif
