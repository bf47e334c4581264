// What is found out about a worker that has died: how, whether the out-of-memory killer did it, where its core file is,
// and which lines of source its crash report names (actor/crash.c prints addresses). Runs in the supervisor.
#ifndef FARM_SUPERVISOR_DEATH_H
#define FARM_SUPERVISOR_DEATH_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

enum { FARM_DEATH_CAUSE_BYTES = 112 };

struct farm_death {
    pid_t pid;
    bool crashed;                       // by a signal that dumps a core if the limits allow it
    char core[192];                     // "core file: PATH"; "": none
    char cause[FARM_DEATH_CAUSE_BYTES]; // "was killed by signal 9 (Killed), probably by the out-of-memory killer"
    char how[320];                      // the cause, and the figures of this death
};

// Kills by the out-of-memory killer, counted since farm_death_watch. root: as in farm_cgroup_read.
struct farm_death_watch {
    const char *root;
    uint64_t group_before, machine_before;
    uint64_t explained; // deaths that farm_death_describe ascribed to it
};
void farm_death_watch(struct farm_death_watch *watch, const char *root);

// info: waitid(2)'s. name: the worker's, as ps shows it (a program's own: "*"). why the farm killed it; "": it did not.
void farm_death_describe(struct farm_death_watch *watch, const siginfo_t *info, const char *name, const char *why,
                         struct farm_death *out);

// The frames of one crash report: a line "farm: frame 0xOFFSET PATH" each, collected from what the worker writes, which
// may be anything.
struct farm_death_frames {
    char lines[2048];
    uint32_t count;
};
// False: another line, a path that is not absolute, or one frame too many.
bool farm_death_take_frame(struct farm_death_frames *frames, const char *line);

// The body of a worker that looks them up by addr2line(1), 20 ms a frame, and prints a line each for up to four places:
// "crashed in FUNCTION at FILE:LINE (OBJECT+0xOFFSET)", then "inlined in ..." and "called by ..."; in place of the
// function the command that would name it. context: the frames. Files that are no ELF objects are not read.
int farm_death_print_places(void *context, struct farm_error *err);
// The first of these lines, with the command.
void farm_death_first_place(const struct farm_death_frames *frames, char *line, size_t bytes);

#endif
