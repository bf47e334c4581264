// The lane and its sleeping, as a Promela model for Spin: one actor process with one or two lanes, the learner's process
// (inference and training thread), the supervisor, and the stores that wait in each core's buffer. Everything that
// test_spin.py asserts about it is told there; this page says what the model is.
//
//   actor       src/actor/actor.c: take_over, play; src/actor/group.c: farm_group_step;
//               src/ring/lane.[hc]: farm_lane_actor_take_over, _can_write, _answered, _publish;
//               src/ring/wait.c: farm_actor_wait (actor_look, lane_can_go, futex_sleep), farm_actor_notify
//   inference   src/learner/inference.c: start, resume, look (is_ready), serve, hand_on;
//               src/ring/wait.c: farm_doorbells_make, _poll, _wait (any_rung, eventfd_sleep), farm_learner_notify
//   training    src/learner/trainer.c: training, release; src/ring/window.c (stride 1, `window` steps long, stack 1)
//   supervisor  src/supervisor/supervisor.c: reap, after_death, start; farm train's before_start (generation)
//   cores       the store buffers: no C code, the machine
//
// Memory. A store goes to the end of its thread's buffer and from there, at any later moment, to `mem`; a load reads
// `mem`. With PSO=0 a buffer is first in, first out (x86-TSO); with PSO=1 it gives its stores away in any order, but one
// place's in theirs, and a release store only once all before it are out. A full fence waits until the buffer is empty,
// and so does a system call. No thread loads a place that it may still hold in its own buffer (asserted where it could),
// so loads need not look there; the actor's own reading of `doorbell` is a_bell. Loads are never reordered with one another
// or behind later stores: x86 does not do that, this model neither (the C11 checker in this folder's parent does).
//
// Steps. One action (one arm of a `do`) is one load, or one system call, with what the thread works out from it and the
// stores that it makes before its next load, fence or system call. That is as fine as single stores: a store enters the
// thread's own buffer, which nobody sees, and leaves it at any later moment; so it may as well enter it at once. Loads
// that share an action are of words that nobody else writes at that time, and are said to be so.
//
// Kernel. FUTEX_WAIT compares and falls asleep in one step; FUTEX_WAKE wakes whoever sleeps; an eventfd is a bit (its
// count is never looked at); poll and read of it are two steps. Nothing ever times out and no sleep ends by itself, but for
// SPURIOUS interruptions: so a lost wake-up is a state in which nothing can go on.
//
// Death. kill -9 may strike after every store, system call and load, A_DEATHS times the actor and L_DEATHS times the
// learner, at most. What a dead thread had stored is out of its buffer before the supervisor knows: a core does not
// forget retired stores, and the kernel's way from exit to waitid takes locks. As death shows only through the
// supervisor, "it died, then its buffer drained" is the same run as "its buffer drained while it did not run, then it
// died", and of the learner's two threads the first may as well stop running and die with the second: so a process dies
// at once, with empty buffers (`struck` says that it will, in the middle of an action's stores). Mutant
// DEATH_BEFORE_DRAIN takes the supervisor's waiting away.
//
// Left out: the environment and the network (an answer is the observation's tag), the spinning before a sleep (a look
// more, which the first look covers), `stop`, heartbeat, several actors (an inference thread treats rings one by one),
// counters that wrap, what an actor does with a lane that has had all its steps (it looks at it no longer). The wait for
// company before a batch is there with PATIENCE=1.
//
// A tag is what a slot holds, in both halves: step + 8 x FIRST + 16 x generation.

#define ACTOR 0
#define INFER 1
#define TRAIN 2

// ---- places in memory ----
#define PRODUCED(l) (l)
#define ACTED(l) (2 + (l))
#define CONSUMED(l) (4 + (l))
#define DOORBELL 6
#define ACTOR_ASLEEP 7
#define WAKE 8
#define LEARNER_ASLEEP 9
#define OBS(l, n, half) (10 + ((l) * RING_MAX + (n) % ring) * 2 + (half))
#define ACT(l, n, half) (22 + ((l) * RING_MAX + (n) % ring) * 2 + (half))
#define PLACES 34
#define RELEASE 64 // added to a place: this store is a release
#define RING_MAX 3
#define DEPTH 6 // a thread has no more stores than this between two fences: asserted in `store`

#define STEP_OF(tag) ((tag) & 7)
#define FIRST_OF(tag) (((tag) >> 3) & 1)
#define GENERATION_OF(tag) ((tag) >> 4)

// ---- settings, from the environment; constant, so no part of a state ----
c_decl {
\#include <stdlib.h>
    static int setting(const char *name, int standard) {
        const char *text = getenv(name);
        return text ? atoi(text) : standard;
    }
}
hidden byte steps;   // to be published on each lane
hidden byte ring;    // C
hidden byte lanes;   // 1 or 2
hidden byte window;  // steps of a training window
hidden byte evaluate; // no training thread: inference releases
hidden byte pso;
hidden byte patience;
hidden byte mutant; // which rule is broken; from 101: which event must be shown to happen

#define M(number) (mutant == number)
#define PICK(condition, this, that) ((condition) * (this) + (1 - (condition)) * (that))
#define WITNESS(number) assert(mutant != number)

// ---- the mutants: each names the rule that it breaks ----
#define NO_FENCE_ACTOR_WAIT 1
#define NO_FENCE_LEARNER_NOTIFY_INFER 2
#define NO_FENCE_LEARNER_NOTIFY_TRAIN 3
#define NO_FENCE_DOORBELLS_WAIT 4
#define NO_FENCE_ACTOR_NOTIFY 5
#define ACTOR_ASLEEP_AFTER_LOOK 6
#define LEARNER_ASLEEP_AFTER_LOOK 7
#define WAKE_AFTER_FUTEX 8
#define NO_WAKE_INCREMENT 9
#define SEEN_AFTER_LOOK 10
#define PRODUCED_BEFORE_PAYLOAD 11
#define DOORBELL_BEFORE_PRODUCED 12
#define ACTED_BEFORE_ANSWER 13
#define CONSUMED_BEFORE_READS 14
#define WAIT_CONSUMES_BELL 15
#define POLL_SEES_BELL_LAST 16
#define TAKE_OVER_NO_BELL 17
#define TAKE_OVER_NO_NOTIFY 18
#define TAKE_OVER_NO_WAIT 19
#define TAKE_OVER_FROM_ACTED 20
#define TAKE_OVER_CONSUMED_AS_PRODUCED 21
#define TAKE_OVER_NOT_FIRST 22
#define MAKE_SEEN_IS_DOORBELL 23
#define RESUME_NO_NOTIFY 24
#define RESUME_NO_HAND_ON 25
#define ATTACH_ANSWERED_ZERO 26
#define CAN_WRITE_OFF_BY_ONE 27
#define ANSWERED_NOT_CHECKED 28
#define BELL_BELIEVED 29
#define TRAIN_NO_NOTIFY 30
#define INFER_NO_NOTIFY 31
#define ACTOR_NO_NOTIFY 32
#define EVENTFD_CLEARED_BEFORE_SLEEP 33
#define DEATH_BEFORE_DRAIN 34
#define PRODUCED_RELAXED 35
#define DOORBELL_RELAXED 36
#define ACTED_RELAXED 37
#define WAKE_NOT_ATOMIC 38
// believed harmless: searched whole, without an error
#define TAKE_OVER_KEEPS_ASLEEP 51
#define MAKE_KEEPS_ASLEEP 52
#define ACTOR_STAYS_ASLEEP 53
#define LEARNER_STAYS_ASLEEP 54
#define SEEN_BETWEEN_ASLEEP_AND_LOOK 55
#define READY_IGNORES_CONSUMED 56
// events that a right model must be able to show
#define ACTOR_WOKEN 102
#define FUTEX_WORD_DIFFERED 103
#define LEARNER_WOKEN 104
#define WOKEN_WITHOUT_BELL 105
#define TOOK_OVER_UNANSWERED 106
#define TOOK_OVER_UNRUNG 107
#define TOOK_OVER_TORN_SLOT 108
#define ATTACHED_UNANSWERED 109
#define ANSWERED_AGAIN_UNPUBLISHED 110
#define BOTH_DIED 111
#define ALL_DONE 112
#define BACKPRESSURE 113

// ---- the machine ----
typedef Buffer {
    byte count;
    byte place[DEPTH];
    byte value[DEPTH]
};
Buffer buffer[3];
byte mem[PLACES];
bool eventfd;

// ---- the supervisor ----
byte generation;
byte actor_deaths, learner_deaths; // that may still come
byte interruptions;                // that may still come

// ---- the actor: where it is, and its locals ----
mtype = { DEAD, DYING, OVER,
          A_PRODUCED, A_CONSUMED, A_NOTIFY, A_WRITE, A_LOOK, A_LOOK_CONSUMED, A_SEEN, A_SEEN_AGAIN, A_SEEN_LATE,
          A_FUTEX, A_ASLEEP, A_WOKEN, A_ANSWER, A_STEP,
          I_ATTACH, I_NOTIFY, I_WAKE, I_FUTEX, I_LOOK, I_READY, I_BELL_LATE, I_ANY_RUNG, I_ASLEEP_SAID,
          I_CLEAR, I_POLL, I_READ, I_OBS, I_OBS_REST, I_ANSWER, I_ACCOUNT,
          T_WAIT, T_OBS, T_NOTIFY, T_WAKE, T_FUTEX };
mtype a_at = A_PRODUCED;
byte a_lane, a_count, a_bell, a_wake_seen, a_answer;
byte a_next[2], a_consumed_seen[2];
bool a_said_asleep, a_fresh[2], a_done[2];

// ---- the inference thread ----
mtype i_at = I_ATTACH, i_return;
byte i_lane, i_bell_seen, i_value;
byte i_answered[2];
bool i_queued[2], i_in_company;

// ---- the training thread; `handed` is the queue between the two, behind a mutex: windows of a lane so far ----
mtype t_at = DEAD;
byte t_lane, t_step, t_value;
byte handed[2], t_held[2];

// ---- within an action only ----
bool struck; // kill -9 comes in the middle of this action's stores
byte left;   // stores that still come before it does

// ---- what only the assertions know ----
byte last_generation[2]; // of the newest answered step, plus 1

#define EMPTY(t) (buffer[t].count == 0)
#define ROOM(t, stores) (mutant == 0 || buffer[t].count + stores <= DEPTH) // without a fence it may be full
#define DONE(l) (l >= lanes || (mem[ACTED(l)] == steps && mem[CONSUMED(l)] == steps + 1 - window))
#define FINISHED (a_at == OVER && DONE(0) && DONE(1))

inline store(t, left_out, where, what) {
    if
    :: !(left_out) && !(struck && left == 0) ->
        assert(mutant || buffer[t].count < DEPTH);
        buffer[t].place[buffer[t].count] = where;
        buffer[t].value[buffer[t].count] = what;
        buffer[t].count++;
        left = left - struck
    :: else -> skip
    fi
}

// The first statement of an action with several stores: kill -9 may come after the first, second or third of them.
inline may_strike(deaths) {
    if
    :: true
    :: deaths > 0 ->
        deaths--;
        struck = true;
        if
        :: left = 1
        :: left = 2
        :: left = 3
        fi
    fi
}
// Its last one.
inline if_struck(at) {
    if
    :: struck -> at = DYING; struck = false; left = 0
    :: else -> skip
    fi
}

// ---- the store buffers, and what must hold of every store that comes out ----

#define INSIDE(p, base) ((p) >= base && (p) < base + 4 * RING_MAX)
#define LANE_OF(p, base) (((p) - base) / (2 * RING_MAX))
#define SLOT_OF(p, base) (((p) - base) / 2 % RING_MAX)

inline check_answered(l, n) { // step n of lane l is what has just been answered
    assert(mem[OBS(l, n, 0)] == mem[OBS(l, n, 1)] && STEP_OF(mem[OBS(l, n, 0)]) == n);
    assert(mem[ACT(l, n, 0)] == mem[OBS(l, n, 0)] && mem[ACT(l, n, 1)] == mem[OBS(l, n, 0)]);
    assert(FIRST_OF(mem[OBS(l, n, 0)]) == (last_generation[l] != GENERATION_OF(mem[OBS(l, n, 0)]) + 1));
    last_generation[l] = GENERATION_OF(mem[OBS(l, n, 0)]) + 1
}

inline check(p, v) {
    if
    :: p < ACTED(0) -> // no step published twice or skipped, none unanswered behind it, none over a held one
        assert(v == mem[p] + 1 && v <= mem[p + 2] + 1 && v <= mem[p + 4] + ring)
    :: p >= ACTED(0) && p < CONSUMED(0) -> // no step answered twice or skipped, none before it is there
        assert(v == mem[p] + 1 && v <= mem[p - 2]);
        check_answered(p - 2, v - 1)
    :: p >= CONSUMED(0) && p < DOORBELL ->
        assert(v >= mem[p] && v <= mem[p - 2])
    :: p == DOORBELL ->
        assert(v == mem[p] + 1)
    :: INSIDE(p, 10) -> // into a slot that is not published and that nobody holds
        l = LANE_OF(p, 10);
        assert(STEP_OF(v) % ring == SLOT_OF(p, 10));
        assert(STEP_OF(v) == mem[PRODUCED(l)] && STEP_OF(v) < mem[CONSUMED(l)] + ring);
        if
        :: p % 2 == 0 && STEP_OF(mem[p]) == STEP_OF(v) && mem[p + 1] != mem[p] && GENERATION_OF(v) > GENERATION_OF(mem[p]) ->
            WITNESS(TOOK_OVER_TORN_SLOT)
        :: else -> skip
        fi
    :: INSIDE(p, 22) ->
        l = LANE_OF(p, 22);
        assert(STEP_OF(v) % ring == SLOT_OF(p, 22));
        assert(STEP_OF(v) == mem[ACTED(l)] && STEP_OF(v) < mem[PRODUCED(l)] && STEP_OF(v) < mem[CONSUMED(l)] + ring);
        if
        :: v == mem[p] && v > 8 -> WITNESS(ANSWERED_AGAIN_UNPUBLISHED)
        :: else -> skip
        fi
    :: else -> skip
    fi
}

// The k-th store of thread t's buffer reaches memory.
inline flush(t, k) {
    p = buffer[t].place[k] % RELEASE;
    v = buffer[t].value[k];
    check(p, v);
    mem[p] = v;
    i = k;
    do
    :: i + 1 < buffer[t].count ->
        buffer[t].place[i] = buffer[t].place[i + 1];
        buffer[t].value[i] = buffer[t].value[i + 1];
        i++
    :: else -> break
    od;
    buffer[t].count--;
    buffer[t].place[buffer[t].count] = 0;
    buffer[t].value[buffer[t].count] = 0;
    p = 0;
    v = 0;
    i = 0;
    l = 0
}

#define DIFFER(t, k, j) (buffer[t].place[k] != buffer[t].place[j] % RELEASE)
// Store k of a buffer may pass those before it: it is no release, and none of them goes to its place.
#define PASSES_1(t, k) (pso && buffer[t].count > k && buffer[t].place[k] < RELEASE && DIFFER(t, k, 0))
#define PASSES_2(t, k) (PASSES_1(t, k) && DIFFER(t, k, 1))
#define PASSES_3(t, k) (PASSES_2(t, k) && DIFFER(t, k, 2))
#define PASSES_4(t, k) (PASSES_3(t, k) && DIFFER(t, k, 3))
#define PASSES_5(t, k) (PASSES_4(t, k) && DIFFER(t, k, 4))

proctype core(byte t) {
    byte i, k, p, v, l;
end:
    do
    :: atomic {
        !EMPTY(t) ->
        if
        :: true
        :: PASSES_1(t, 1) -> k = 1
        :: PASSES_2(t, 2) -> k = 2
        :: PASSES_3(t, 3) -> k = 3
        :: PASSES_4(t, 4) -> k = 4
        :: PASSES_5(t, 5) -> k = 5
        fi;
        d_step { flush(t, k); k = 0 }
       }
    od
}

// Wake numbers are only ever compared for being equal: where the actor holds none they start from 0 again, so that states do
// not differ by how many wake-ups there have been.
inline forget_wakes() {
    if
    :: (mutant == 0 || mutant > 50) && (!a_said_asleep || a_at == A_ASLEEP || a_at == A_WOKEN) -> mem[WAKE] = 0
    :: else -> skip
    fi
}

// ---- the actor ----

// A look has ended at lane l: it can go on, or not.
inline actor_looked(l, go) {
    if
    :: go ->
        a_lane = l;
        a_count = 0;
        store(ACTOR, !a_said_asleep || M(ACTOR_STAYS_ASLEEP), ACTOR_ASLEEP, 0);
        a_said_asleep = false;
        a_wake_seen = 0;
        forget_wakes();
        if
        :: a_next[l] < steps && a_fresh[l] -> a_at = A_STEP
        :: a_next[l] < steps && !a_fresh[l] -> a_at = A_ANSWER
        :: else ->
            a_done[l] = true;
            a_at = A_LOOK;
            if
            :: a_done[0] && (lanes == 1 || a_done[1]) -> a_at = OVER; WITNESS(ALL_DONE)
            :: else -> skip
            fi
        fi
    :: !(go) && a_count < lanes -> a_at = A_LOOK
    :: else ->
        a_count = 0;
        if
        :: !a_said_asleep -> a_at = A_SEEN
        :: else ->
            store(ACTOR, mutant != ACTOR_ASLEEP_AFTER_LOOK, ACTOR_ASLEEP, 1);
            if
            :: M(SEEN_AFTER_LOOK) -> a_at = A_SEEN_LATE
            :: else -> a_at = A_FUTEX
            fi
        fi
    fi
}

#define TAG(n, l) ((n) + 8 * (a_fresh[l] && !(generation > 0 && M(TAKE_OVER_NOT_FIRST))) + 16 * generation)
#define NEXT a_next[a_lane]
#define CAN_WRITE(l) (a_next[l] - a_consumed_seen[l] < ring + M(CAN_WRITE_OFF_BY_ONE))
#define ANSWERED(l) (mem[ACTED(l)] >= a_next[l] || M(ANSWERED_NOT_CHECKED) || (a_fresh[l] && M(TAKE_OVER_NO_WAIT)))

proctype actor() {
    byte l;
    do
    // take_over of actor.c: farm_lane_actor_take_over of each lane (a_lane counts them), then farm_actor_notify
    :: d_step {
        a_at == A_PRODUCED ->
        a_next[a_lane] = PICK(M(TAKE_OVER_FROM_ACTED), mem[ACTED(a_lane)], mem[PRODUCED(a_lane)]);
        a_fresh[a_lane] = true;
        a_at = A_CONSUMED
       }
    :: atomic {
        a_at == A_CONSUMED && ROOM(ACTOR, 2) ->
        may_strike(actor_deaths);
        d_step {
            a_consumed_seen[a_lane] = PICK(M(TAKE_OVER_CONSUMED_AS_PRODUCED), NEXT, mem[CONSUMED(a_lane)]);
            if
            :: mem[ACTED(a_lane)] < NEXT -> WITNESS(TOOK_OVER_UNANSWERED)
            :: else -> skip
            fi;
            if
            :: a_lane == 0 -> // the only writer of doorbell has not stored to it yet
                a_bell = mem[DOORBELL];
                if
                :: mem[PRODUCED(0)] > 0 && a_bell < mem[PRODUCED(0)] + mem[PRODUCED(1)] + lanes * generation -> // one more a lane and life
                    WITNESS(TOOK_OVER_UNRUNG)
                :: else -> skip
                fi
            :: else -> skip
            fi;
            store(ACTOR, M(TAKE_OVER_KEEPS_ASLEEP), ACTOR_ASLEEP, 0);
            store(ACTOR, M(TAKE_OVER_NO_BELL), DOORBELL + RELEASE, a_bell + 1);
            a_bell = a_bell + (mutant != TAKE_OVER_NO_BELL);
            a_lane++;
            a_at = A_PRODUCED;
            if
            :: a_lane == lanes ->
                a_lane--;
                a_at = A_NOTIFY;
                if
                :: M(TAKE_OVER_NO_NOTIFY) -> a_at = A_LOOK
                :: else -> skip
                fi
            :: else -> skip
            fi;
            if_struck(a_at)
        }
       }

    // farm_actor_notify
    :: d_step {
        a_at == A_NOTIFY && (EMPTY(ACTOR) || M(NO_FENCE_ACTOR_NOTIFY)) -> // farm_fence_full
        a_at = A_LOOK;
        if
        :: mem[LEARNER_ASLEEP] -> a_at = A_WRITE
        :: else -> skip
        fi
       }
    :: d_step { a_at == A_WRITE && EMPTY(ACTOR) -> eventfd = true; a_at = A_LOOK }

    // actor_look with lane NULL, one lane after the other from a_lane + 1
    :: d_step {
        a_at == A_LOOK && ROOM(ACTOR, 1) && (!a_said_asleep || EMPTY(ACTOR) || M(NO_FENCE_ACTOR_WAIT) || M(ACTOR_ASLEEP_AFTER_LOOK)) ->
        a_count++;
        l = (a_lane + a_count) % lanes;
        if
        :: a_done[l] || !ANSWERED(l) -> actor_looked(l, false)
        :: !a_done[l] && ANSWERED(l) && CAN_WRITE(l) -> actor_looked(l, true)
        :: else -> a_at = A_LOOK_CONSUMED
        fi;
        l = 0
       }
    :: d_step {
        a_at == A_LOOK_CONSUMED && ROOM(ACTOR, 1) -> // farm_lane_actor_can_write, where the copy says full
        WITNESS(BACKPRESSURE);
        l = (a_lane + a_count) % lanes;
        a_consumed_seen[l] = mem[CONSUMED(l)];
        actor_looked(l, CAN_WRITE(l));
        l = 0
       }

    // farm_actor_wait, behind its first look
    :: d_step {
        a_at == A_SEEN && ROOM(ACTOR, 1) ->
        a_wake_seen = mem[WAKE];
        store(ACTOR, M(ACTOR_ASLEEP_AFTER_LOOK), ACTOR_ASLEEP, 1);
        a_said_asleep = true;
        a_at = A_LOOK;
        if
        :: M(SEEN_BETWEEN_ASLEEP_AND_LOOK) -> a_at = A_SEEN_AGAIN
        :: else -> skip
        fi
       }
    :: d_step { a_at == A_SEEN_AGAIN && EMPTY(ACTOR) -> a_wake_seen = mem[WAKE]; a_at = A_LOOK }
    :: d_step { a_at == A_SEEN_LATE -> a_wake_seen = mem[WAKE]; a_at = A_FUTEX }
    :: d_step {
        a_at == A_FUTEX && EMPTY(ACTOR) -> // FUTEX_WAIT
        if
        :: mem[WAKE] == a_wake_seen -> a_at = A_ASLEEP
        :: else -> a_at = A_WOKEN; WITNESS(FUTEX_WORD_DIFFERED)
        fi;
        a_wake_seen = 0;
        forget_wakes()
       }
    :: d_step { a_at == A_ASLEEP && interruptions > 0 -> interruptions--; a_at = A_WOKEN }
    :: d_step {
        a_at == A_WOKEN && ROOM(ACTOR, 1) ->
        store(ACTOR, M(ACTOR_STAYS_ASLEEP), ACTOR_ASLEEP, 0);
        a_said_asleep = false;
        a_at = A_SEEN
       }

    // farm_group_step: the answer to the step before; the next one. farm_lane_actor_publish
    :: d_step { a_at == A_ANSWER -> a_answer = mem[ACT(a_lane, NEXT - 1, 0)]; a_at = A_STEP }
    :: atomic {
        a_at == A_STEP && ROOM(ACTOR, 4) ->
        may_strike(actor_deaths);
        d_step {
            if
            :: !a_fresh[a_lane] ->
                assert(a_answer == mem[ACT(a_lane, NEXT - 1, 1)]);
                assert(STEP_OF(a_answer) == NEXT - 1 && GENERATION_OF(a_answer) == generation);
                a_answer = 0
            :: else -> skip
            fi;
            store(ACTOR, mutant != PRODUCED_BEFORE_PAYLOAD, PRODUCED(a_lane) + RELEASE, NEXT + 1);
            store(ACTOR, false, OBS(a_lane, NEXT, 0), TAG(NEXT, a_lane));
            store(ACTOR, false, OBS(a_lane, NEXT, 1), TAG(NEXT, a_lane));
            store(ACTOR, mutant != DOORBELL_BEFORE_PRODUCED, DOORBELL + RELEASE, a_bell + 1);
            store(ACTOR, M(PRODUCED_BEFORE_PAYLOAD), PRODUCED(a_lane) + RELEASE * (mutant != PRODUCED_RELAXED), NEXT + 1);
            store(ACTOR, M(DOORBELL_BEFORE_PRODUCED), DOORBELL + RELEASE * (mutant != DOORBELL_RELAXED), a_bell + 1);
            a_bell++;
            NEXT++;
            a_fresh[a_lane] = false;
            a_at = A_NOTIFY;
            if
            :: M(ACTOR_NO_NOTIFY) -> a_at = A_LOOK
            :: else -> skip
            fi;
            if_struck(a_at)
        }
       }
    :: a_at == OVER -> break
    od
}

// ---- both threads of the learner: farm_learner_notify, by thread t ----

inline notify(t, at, from, wake, to, no_fence, left_out) {
    at == from && (EMPTY(t) || no_fence || left_out) -> // farm_fence_full
    at = to;
    if
    :: mem[ACTOR_ASLEEP] && !(left_out) -> at = wake
    :: else -> skip
    fi
}
// The two of them may do this at once: one increment is one step (mutant WAKE_NOT_ATOMIC: a load, and later a store).
inline count_wake(t, at, from, to, value) {
    at == from && EMPTY(t) ->
    if
    :: M(WAKE_NOT_ATOMIC) -> store(t, false, WAKE + RELEASE, mem[WAKE] + 1)
    :: M(WAKE_AFTER_FUTEX) -> value = mem[WAKE] + 1
    :: M(NO_WAKE_INCREMENT) -> skip
    :: else -> mem[WAKE]++; forget_wakes()
    fi;
    at = to
}
inline futex_wake(t, at, from, to, value) {
    at == from && EMPTY(t) -> // FUTEX_WAKE
    if
    :: a_at == A_ASLEEP -> a_at = A_WOKEN; WITNESS(ACTOR_WOKEN)
    :: else -> skip
    fi;
    store(t, mutant != WAKE_AFTER_FUTEX, WAKE + RELEASE, value);
    value = 0;
    at = to
}

// ---- the inference thread ----

// hand_on: windows of lane l that its newest answer has completed, to training; in evaluation straight to the actor.
inline hand_on(l) {
    if
    :: evaluate -> store(INFER, i_answered[l] == 0, CONSUMED(l) + RELEASE, i_answered[l])
    :: else ->
        do
        :: i_answered[l] >= handed[l] + window -> handed[l]++
        :: else -> break
        od
    fi
}

inline first_queued(to) {
    i_lane = !i_queued[0];
    i_at = to
}

// Behind the look at lane l: the next lane, or what follows on looking.
inline looked_at(l) {
    i_lane = l + 1;
    i_at = I_READY;
    if
    :: i_lane < lanes -> skip
    :: else ->
        i_lane = 0;
        i_at = I_LOOK; // nothing there
        if
        :: i_queued[0] || i_queued[1] ->
            i_in_company = patience && i_queued[0] + i_queued[1] < lanes;
            if
            :: i_in_company -> i_at = I_ANY_RUNG
            :: else -> first_queued(I_OBS)
            fi
        :: else -> skip
        fi;
        if
        :: M(POLL_SEES_BELL_LAST) -> i_return = i_at; i_at = I_BELL_LATE
        :: else -> skip
        fi
    fi
}
inline say_asleep() {
    store(INFER, M(LEARNER_ASLEEP_AFTER_LOOK), LEARNER_ASLEEP, 1);
    i_at = I_ASLEEP_SAID
}

// farm_doorbells_wait ends.
inline waited() {
    store(INFER, M(LEARNER_STAYS_ASLEEP), LEARNER_ASLEEP, 0);
    i_in_company = false
}

// farm_lane_answer of lane i_lane; what follows on its notification.
inline answer() {
    store(INFER, M(ACTED_BEFORE_ANSWER), ACTED(i_lane) + RELEASE * (mutant != ACTED_RELAXED), i_answered[i_lane] + 1);
    i_at = I_NOTIFY;
    i_return = I_ACCOUNT;
    if
    :: i_lane == 0 && i_queued[1] -> i_lane = 1; i_return = I_ANSWER
    :: else -> i_lane = !i_queued[0]
    fi
}

proctype inference() {
    do
    // farm_lanes_open, farm_doorbells_make, farm_trainer_start, resume. Nobody writes acted or consumed meanwhile.
    :: atomic {
        i_at == I_ATTACH ->
        may_strike(learner_deaths);
        d_step {
            i_answered[0] = mem[ACTED(0)] * (mutant != ATTACH_ANSWERED_ZERO);
            i_answered[1] = mem[ACTED(1)] * (mutant != ATTACH_ANSWERED_ZERO);
            if
            :: i_answered[0] < mem[PRODUCED(0)] -> WITNESS(ATTACHED_UNANSWERED)
            :: else -> skip
            fi;
            handed[0] = mem[CONSUMED(0)];
            handed[1] = mem[CONSUMED(1)];
            t_held[0] = handed[0];
            t_held[1] = handed[1];
            i_bell_seen = mem[DOORBELL] - 1 + M(MAKE_SEEN_IS_DOORBELL);
            store(INFER, M(MAKE_KEEPS_ASLEEP), LEARNER_ASLEEP, 0);
            if
            :: evaluate -> skip
            :: else -> t_at = T_WAIT
            fi;
            if
            :: M(RESUME_NO_HAND_ON) -> skip
            :: else -> hand_on(0); hand_on(1)
            fi;
            i_return = I_LOOK;
            i_at = I_NOTIFY;
            if
            :: M(RESUME_NO_NOTIFY) -> i_at = i_return
            :: else -> skip
            fi;
            if_struck(i_at)
        }
       }

    :: d_step { notify(INFER, i_at, I_NOTIFY, I_WAKE, i_return, M(NO_FENCE_LEARNER_NOTIFY_INFER), M(INFER_NO_NOTIFY)) }
    :: d_step { count_wake(INFER, i_at, I_WAKE, I_FUTEX, i_value) }
    :: d_step { futex_wake(INFER, i_at, I_FUTEX, i_return, i_value) }

    // look: farm_doorbells_poll; is_ready of every lane. farm_doorbells_wait's own first look at the bell is this one
    // once more.
    :: d_step {
        i_at == I_LOOK && ROOM(INFER, 1) ->
        if
        :: mem[DOORBELL] != i_bell_seen -> i_bell_seen = mem[DOORBELL]; i_lane = 0; i_at = I_READY
        :: else ->
            if
            :: i_queued[0] || i_queued[1] -> first_queued(I_OBS)
            :: else -> say_asleep()
            fi
        fi
       }
    :: d_step {
        i_at == I_READY ->
        if
        :: !i_queued[i_lane] && (mem[PRODUCED(i_lane)] > i_answered[i_lane] || M(BELL_BELIEVED)) ->
            // true of an honest actor, and `consumed` only grows: so it may as well be looked at now
            i_queued[i_lane] = i_answered[i_lane] - mem[CONSUMED(i_lane)] < ring || M(READY_IGNORES_CONSUMED);
            assert(mutant || i_queued[i_lane])
        :: else -> skip
        fi;
        looked_at(i_lane)
       }
    :: d_step { i_at == I_BELL_LATE -> i_bell_seen = mem[DOORBELL]; i_at = i_return }

    // farm_doorbells_wait
    :: d_step {
        i_at == I_ANY_RUNG && ROOM(INFER, 1) ->
        if
        :: mem[DOORBELL] != i_bell_seen -> i_in_company = false; i_at = I_LOOK
        :: else -> say_asleep()
        fi
       }
    :: d_step {
        i_at == I_ASLEEP_SAID && ROOM(INFER, 1) &&
        (EMPTY(INFER) || M(NO_FENCE_DOORBELLS_WAIT) || M(LEARNER_ASLEEP_AFTER_LOOK)) -> // farm_fence_full
        if
        :: mem[DOORBELL] != i_bell_seen ->
            if
            :: M(WAIT_CONSUMES_BELL) -> i_bell_seen = mem[DOORBELL]
            :: else -> skip
            fi;
            waited();
            i_at = I_LOOK
        :: else ->
            store(INFER, mutant != LEARNER_ASLEEP_AFTER_LOOK, LEARNER_ASLEEP, 1);
            i_at = I_POLL;
            if
            :: M(EVENTFD_CLEARED_BEFORE_SLEEP) -> i_at = I_CLEAR
            :: else -> skip
            fi
        fi
       }
    :: d_step { i_at == I_CLEAR -> eventfd = false; i_at = I_POLL }
    :: d_step { i_at == I_POLL && EMPTY(INFER) && eventfd -> i_at = I_READ; WITNESS(LEARNER_WOKEN) } // ppoll
    :: d_step { i_at == I_POLL && EMPTY(INFER) && interruptions > 0 -> interruptions--; i_at = I_READ }
    :: d_step { i_at == I_POLL && EMPTY(INFER) && i_in_company -> waited(); first_queued(I_OBS) } // its time is over
    :: atomic {
        i_at == I_READ && ROOM(INFER, 2) ->
        may_strike(learner_deaths);
        d_step { // read; and round again
            if
            :: mem[DOORBELL] == i_bell_seen -> WITNESS(WOKEN_WITHOUT_BELL)
            :: else -> skip
            fi;
            eventfd = false;
            store(INFER, M(LEARNER_STAYS_ASLEEP), LEARNER_ASLEEP, 0);
            store(INFER, M(LEARNER_ASLEEP_AFTER_LOOK), LEARNER_ASLEEP, 1);
            i_at = I_ASLEEP_SAID;
            if_struck(i_at)
        }
       }

    // serve: what is in the queue. infer of each lane, then farm_lane_answer and farm_learner_notify, then the rest
    :: d_step { i_at == I_OBS -> i_value = mem[OBS(i_lane, i_answered[i_lane], 0)]; i_at = I_OBS_REST }
    :: atomic {
        i_at == I_OBS_REST && ROOM(INFER, 4) ->
        may_strike(learner_deaths);
        d_step {
            assert(i_value == mem[OBS(i_lane, i_answered[i_lane], 1)] && STEP_OF(i_value) == i_answered[i_lane]);
            store(INFER, mutant != ACTED_BEFORE_ANSWER, ACTED(i_lane) + RELEASE, i_answered[i_lane] + 1);
            store(INFER, false, ACT(i_lane, i_answered[i_lane], 0), i_value);
            store(INFER, false, ACT(i_lane, i_answered[i_lane], 1), i_value);
            i_value = 0;
            if
            :: i_lane == 0 && i_queued[1] -> i_lane = 1; i_at = I_OBS
            :: else -> first_queued(I_ANSWER); answer()
            fi;
            if_struck(i_at)
        }
       }
    :: d_step { i_at == I_ANSWER && ROOM(INFER, 1) -> answer() }
    :: d_step {
        i_at == I_ACCOUNT && (EMPTY(INFER) || evaluate) -> // farm_lanes_account, hand_on (whose mutex empties the buffer)
        assert(STEP_OF(mem[OBS(i_lane, i_answered[i_lane], 0)]) == i_answered[i_lane]);
        i_answered[i_lane]++;
        hand_on(i_lane);
        i_queued[i_lane] = false;
        i_return = I_LOOK;
        if
        :: i_lane == 0 && i_queued[1] -> i_lane = 1; i_return = I_ACCOUNT
        :: else -> i_lane = 0
        fi;
        if
        :: evaluate -> i_at = I_NOTIFY
        :: else -> i_at = i_return
        fi
       }
    :: i_at == I_POLL && FINISHED -> break
    od
}

// ---- the training thread ----

inline training_begins() {
    store(TRAIN, mutant != CONSUMED_BEFORE_READS, CONSUMED(t_lane) + RELEASE, t_step + 1);
    t_at = T_OBS
}

proctype training() {
    do
    :: d_step { t_at == T_WAIT && handed[0] > t_held[0] -> t_lane = 0; t_step = t_held[0]; training_begins() }
    :: d_step { t_at == T_WAIT && handed[1] > t_held[1] -> t_lane = 1; t_step = t_held[1]; training_begins() }
    // update: train reads every step of the window, and its answer
    // (in one action: `check` forbids every store into a slot that is not released)
    :: d_step {
        t_at == T_OBS ->
        assert(STEP_OF(mem[OBS(t_lane, t_step, 0)]) == t_step);
        assert(mem[OBS(t_lane, t_step, 1)] == mem[OBS(t_lane, t_step, 0)]);
        assert(mem[ACT(t_lane, t_step, 0)] == mem[OBS(t_lane, t_step, 0)]);
        assert(mem[ACT(t_lane, t_step, 1)] == mem[OBS(t_lane, t_step, 0)]);
        t_step++;
        if
        :: t_step == t_held[t_lane] + window -> // farm_window_done, farm_window_needs, farm_lane_release
            t_held[t_lane]++;
            store(TRAIN, M(CONSUMED_BEFORE_READS), CONSUMED(t_lane) + RELEASE, t_held[t_lane]);
            t_step = 0;
            t_lane = 0;
            t_at = T_NOTIFY
        :: else -> skip
        fi
       }
    :: d_step { notify(TRAIN, t_at, T_NOTIFY, T_WAKE, T_WAIT, M(NO_FENCE_LEARNER_NOTIFY_TRAIN), M(TRAIN_NO_NOTIFY)) }
    :: d_step { count_wake(TRAIN, t_at, T_WAKE, T_FUTEX, t_value) }
    :: d_step { futex_wake(TRAIN, t_at, T_FUTEX, T_WAIT, t_value) }
    :: (t_at == T_WAIT || t_at == DEAD) && FINISHED && handed[0] == t_held[0] && handed[1] == t_held[1] -> break
    od
}
// ---- kill -9, and the supervisor: it has seen the death (the pidfd says so), counts the generation, forks anew ----

inline actor_dies() {
    a_at = DEAD;
    a_lane = 0;
    a_count = 0;
    a_bell = 0;
    a_wake_seen = 0;
    a_answer = 0;
    a_said_asleep = false;
    forget_wakes();
    l = 0;
    do
    :: l < 2 -> a_next[l] = 0; a_consumed_seen[l] = 0; a_fresh[l] = false; a_done[l] = false; l++
    :: else -> break
    od;
    l = 0
}
inline learner_dies() {
    i_at = DEAD;
    t_at = DEAD;
    i_return = 0;
    i_lane = 0;
    i_bell_seen = 0;
    i_value = 0;
    i_in_company = false;
    t_lane = 0;
    t_step = 0;
    t_value = 0;
    l = 0;
    do
    :: l < 2 -> i_answered[l] = 0; i_queued[l] = false; handed[l] = 0; t_held[l] = 0; l++
    :: else -> break
    od;
    l = 0;
    if
    :: a_at == DEAD -> WITNESS(BOTH_DIED)
    :: else -> skip
    fi
}

#define DRAINED_ACTOR (EMPTY(ACTOR) || M(DEATH_BEFORE_DRAIN))
#define DRAINED_LEARNER (EMPTY(INFER) && EMPTY(TRAIN))

proctype supervisor() {
    byte l;
end:
    do
    :: d_step {
        actor_deaths > 0 && a_at != DEAD && a_at != DYING && a_at != OVER && DRAINED_ACTOR ->
        actor_deaths--;
        actor_dies()
       }
    :: d_step { a_at == DYING && DRAINED_ACTOR -> actor_dies() }
    :: d_step { a_at == DEAD -> generation++; a_at = A_PRODUCED }
    :: d_step {
        learner_deaths > 0 && i_at != DEAD && i_at != DYING && !FINISHED && DRAINED_LEARNER ->
        learner_deaths--;
        learner_dies()
       }
    :: d_step { i_at == DYING && DRAINED_LEARNER -> learner_dies() }
    :: d_step { i_at == DEAD -> i_at = I_ATTACH }
    od
}

init {
    atomic {
        c_code { steps = setting("STEPS", 3); };
        c_code { ring = setting("RING", 2); };
        c_code { lanes = setting("LANES", 1); };
        c_code { window = setting("WINDOW", 1); };
        c_code { evaluate = setting("EVALUATE", 0); };
        c_code { pso = setting("PSO", 0); };
        c_code { patience = setting("PATIENCE", 0); };
        c_code { mutant = setting("MUTANT", 0); };
        c_code { now.actor_deaths = setting("A_DEATHS", 0); };
        c_code { now.learner_deaths = setting("L_DEATHS", 0); };
        c_code { now.interruptions = setting("SPURIOUS", 0); };
        run core(ACTOR);
        run core(INFER);
        run core(TRAIN);
        run actor();
        run inference();
        run training();
        run supervisor()
    }
}
