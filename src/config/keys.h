// The keys of recipes, each declared once: KEY(kind, name, default, columns of struct farm_recipe_key). Its member,
// flag, help, line of a recipe file, metadata in checkpoints and warning follow; the code that uses the key reads
// recipe->name. An ALGO_KEY or LEARNER_KEY is also a member of struct farm_algo_config or farm_learner_training. This
// file is included once for each use, after the definition of one of the three macros; KEY alone expands all keys.
#ifndef KEY
#define KEY(...)
#endif
#ifndef ALGO_KEY
#define ALGO_KEY KEY
#endif
#ifndef LEARNER_KEY
#define LEARNER_KEY KEY
#endif

KEY(PATH, env, "native/breakout", .uses = EVAL | FPS | BRIDGE | POLICY | SERVE,
    .help = "environment: native/catch, ale/Pong, ... (farm envs lists them), or your own: plugin:path.so[:name]")
KEY(LIST, obs_keep, "none", .uses = ENVS | EVAL | FPS | BRIDGE | POLICY | SERVE,
    .help = "gym/*, pettingzoo/*, envpool/*: names of an observation's parts, or of what contains them (`arm` of "
            "arm.0), with * and ?: only these are used, and action_mask; repeatable; none: all")
KEY(LIST, obs_drop, "none", .uses = ENVS | EVAL | FPS | BRIDGE | POLICY | SERVE,
    .help = "gym/*, pettingzoo/*, envpool/*: names of parts that are not used, as obs_keep")
KEY(LIST, wrap, "none", .uses = ENVS | EVAL | FPS | BRIDGE | POLICY | SERVE,
    .help = "gym/*, pettingzoo/*: PACKAGE:WRAPPER around each environment, or PACKAGE:WRAPPER(ARGUMENT=VALUE, ...); "
            "repeatable, the first one innermost. Never taken from another machine: a node names its own")
KEY(PATH, opponent, "none", .uses = EVAL | FPS | BRIDGE | POLICY | SERVE,
    .help = "with several agents: a checkpoint, whose policy plays some of them unchanged; none: all learn")
KEY(INT, opponents, "0", .most = 63, .uses = EVAL | FPS | BRIDGE | POLICY | SERVE, .needs = "opponent",
    .help = "agents of an environment that it plays; 0: half, rounded down")
KEY(BOOL, confine, "false", .uses = EVAL | FPS | BRIDGE | POLICY | SERVE,
    .help = "environments, and what they start, read and execute files, but write none but /dev/null, and have no "
            "sockets, no signals to other processes and no access to their memory; they can still read this user's "
            "files, and use up CPUs and memory. A warning says what this kernel does not limit (docs/SECURITY.md)")
KEY(TEXT, base, "auto", .choices = "auto|none", .uses = FPS,
    .help = "what lies under --recipe FILE: the recipe shipped for the environment and the algorithm, or nothing; a "
            "shipped FILE stands alone")
KEY(INT, seed, "1", .most = 9e15, .uses = EVAL | FPS | SERVE, .help = "seed of all random numbers")
KEY(INT, frames, "0", .most = 9e15,
    .help = "ends at this number of frames, all sessions of the run together; a frame is one of the simulator: agent "
            "steps times the environment's frame skip; 0: no limit")
KEY(DOUBLE, seconds, "0", .most = 1e9,
    .help = "ends after this number of seconds, all sessions of the run together; 0: no limit. With frames and seconds "
            "the first to be reached ends it, but a flag of one removes the other that a recipe sets")
KEY(INT, actors, "0", .most = 16384, .uses = EVAL | FPS | BRIDGE | SERVE,
    .help = "actor processes; 0: chosen for the machine")
KEY(INT, envs_per_actor, "0", .most = 65536, .uses = EVAL | FPS | SERVE,
    .help = "environments of one actor, all its lanes together; 0: chosen")
KEY(INT, envs_total, "0", .most = 1e6,
    .help = "environments of all actors together, instead of envs_per_actor, in equal parts; 0: envs_per_actor")
KEY(TEXT, scale, "1",
    .help = "multiplies environments and minibatch (V-trace: and batch) by this number, learning rate and frames by "
            "its root (docs/TRAINING.md), except what flags set. auto: equal parts for all CPUs; deterministic: 1")
KEY(DOUBLE, scaled, "0", .most = 1e9, .before = "1",
    .help = "scale that the values of this recipe already have: farm writes it; 0: `scale` is still to be applied")
KEY(INT, lanes, "2", .least = 1, .most = 64, .uses = EVAL | FPS | SERVE,
    .help = "lanes of one actor: one group steps while the others wait for actions")
KEY(INT, ring_steps, "0", .most = 16777216, .uses = EVAL | FPS, .help = "steps that a lane's ring holds; 0: chosen")
KEY(TEXT, device, "auto", .choices = "auto|cpu|cuda", .uses = EVAL | FPS,
    .help = "where the network runs; auto: cuda if there is a GPU with its driver")
KEY(INT, gpus, "1", .most = 32, .uses = FPS,
    .help = "GPUs of the learner: each answers its share of the actors and trains its share of every update; 0: all")
KEY(TEXT, mirror, "full", .choices = "full|window|off", .uses = EVAL | FPS, .needs = "device=cuda",
    .help = "what a GPU keeps of the rings: every step (an observation crosses the bus once), the windows in training, "
            "nothing; reduced automatically if memory is short")
KEY(PATH, net, "auto", .uses = FPS | NET,
    .help = "network: shallow, nature, lite, deep (frames), mlp, separate (flat observations); auto: shallow or mlp; "
            "deep for frames too small for shallow; or your own, e.g. \"conv 32@8x8/4, 64@4x4/2, dense 512 norm\" "
            "(docs/TRAINING.md)")
KEY(TEXT, init, "orthogonal", .choices = "orthogonal|uniform",
    .help = "initial weights; uniform: PyTorch's default, whose signals shrink")
KEY(TEXT, sigma, "free", .choices = "free|state", .uses = NET, .needs = "actions=continuous",
    .help = "standard deviations are parameters by themselves, or outputs of the network (state)")
KEY(BOOL, squash, "false", .uses = NET, .needs = "actions=continuous",
    .help = "draws go through tanh to the actions' bounds; false: the actor clips them")
KEY(BOOL, scale_actions, "true", .uses = NET, .needs = "actions=continuous", .before = "false",
    .help = "the policy's [-1, 1] are the action's bounds in each dimension whose bounds are finite (within +-1e30); "
            "false: the policy has the environment's units")
KEY(TEXT, algo, "auto", .uses = FPS | POLICY, .help = "algorithm; its keys are listed below")
KEY(TEXT, regime, "auto", .choices = "auto|sync|async", .uses = FPS,
    .help = "sync: an iteration is one window of every lane, and the next waits for its update; async: windows are "
            "trained as they arrive; auto: the algorithm's default")
ALGO_KEY(INT, max_lag, "0", .most = 1e6, .uses = FPS, .needs = "regime=async",
         .help = "at most the windows of this number of updates wait, and windows that began more updates ago are "
                 "dropped; 0: only the rings bound the lag")
KEY(TEXT, precision, "auto", .choices = "auto|f32|bf16", .uses = EVAL | FPS,
    .help = "number format of arithmetic; auto: bf16 on GPUs (f32 without images), on CPUs the fastest of each layer")
KEY(INT, unroll, "20", .least = 1, .most = 4096, .uses = FPS, .needs = "windows=sequences",
    .help = "agent steps (transitions) of a window; dqn's have one")
KEY(INT, batch, "0", .most = 65536, .uses = FPS, .needs = "regime=async|regime=replay",
    .help = "windows of an update; 0: half as many as environments, at least 8; of a replay: 64, or 32 sequences")
KEY(INT, stack, "1", .least = 1, .most = 32, .uses = FPS | NET,
    .help = "newest observations that the network sees together (images only)")
KEY(INT, lstm, "0", .most = 4096, .uses = NET,
    .help = "units of an LSTM between the network's features and outputs, a memory; 0: none. last_inputs becomes true")
KEY(INT, lstm_layers, "1", .least = 1, .most = 2, .uses = NET, .needs = "lstm",
    .help = "LSTM layers, one above the other")
KEY(INT, burn_in, "0", .most = 4096, .needs = "lstm",
    .help = "steps before each window that renew its state with the present parameters, without gradients")
KEY(BOOL, normalise_observations, "false", .uses = NET, .needs = "observations=numeric",
    .help = "numbers and pixels of observations get mean 0 and deviation 1, each by its statistics over all steps in "
            "training, and are clipped to +-10 (pixels: +-5)")
KEY(BOOL, last_inputs, "false", .uses = NET,
    .help = "the network also sees the last action (as scale_actions scales it) and the last reward, clipped to +-1 "
            "(IMPALA)")
KEY(BOOL, normalise_rewards, "false", .uses = NET,
    .help = "rewards in training are divided by the deviation of the discounted return so far, then clipped to +-10")
KEY(DOUBLE, log_sigma, "0", .least = -10, .most = 2, .needs = "actions=continuous",
    .help = "logarithm of the policy's deviation at the start")
ALGO_KEY(DOUBLE, reward_clip, "0", .most = 1e9, .help = "rewards in training are clipped to +- this; 0: off")
ALGO_KEY(DOUBLE, reward_scale, "1", .least = 1e-9, .most = 1e9,
         .help = "rewards in training are multiplied by this, after clipping")
KEY(TEXT, optimiser, "adam", .choices = "rmsprop|adam", .uses = FPS, .help = "optimiser")
ALGO_KEY(DOUBLE, lr, "0.0003", .least = 1e-9, .most = 1, .help = "learning rate at the start")
ALGO_KEY(DOUBLE, lr_end, "0", .most = 1, .needs = "frames|seconds",
         .help = "learning rate at the end of the run, `frames` or `seconds`, whichever is nearer: it falls linearly")
ALGO_KEY(DOUBLE, lr_hold, "0", .most = 0.999, .needs = "frames|seconds",
         .help = "share of the run before the learning rate begins to fall")
ALGO_KEY(DOUBLE, grad_norm_clip, "0.5", .most = 1e9,
         .help = "gradients with a larger norm are scaled down to it; 0: off")
ALGO_KEY(DOUBLE, rmsprop_decay, "0.99", .most = 0.999999, .needs = "optimiser=rmsprop",
         .help = "decay of the mean of squared gradients")
ALGO_KEY(DOUBLE, rmsprop_epsilon, "0.01", .least = 1e-12, .most = 1, .needs = "optimiser=rmsprop",
         .help = "added to that mean, inside the square root")
ALGO_KEY(DOUBLE, adam_beta1, "0.9", .most = 0.999999, .needs = "optimiser=adam",
         .help = "decay of the mean of gradients")
ALGO_KEY(DOUBLE, adam_beta2, "0.999", .most = 0.999999, .needs = "optimiser=adam",
         .help = "decay of the mean of squared gradients")
ALGO_KEY(DOUBLE, adam_epsilon, "1e-05", .least = 1e-12, .most = 1, .needs = "optimiser=adam",
         .help = "added to the square root of that mean")
ALGO_KEY(BOOL, loss_sum, "false",
         .help = "losses are summed over an update's steps, as in IMPALA's code; false: averaged")
KEY(INT, replay, "0", .most = 1e9, .uses = FPS, .needs = "regime=replay",
    .help = "newest steps of all environments, which stay in the rings and are trained on again and again; 0: 100,000, "
            "or what fits the memory (docs/REPLAY.md)")
KEY(INT, replay_start, "0", .most = 1e9, .uses = FPS, .needs = "regime=replay",
    .help = "steps of all environments before training begins; 0: a twentieth of replay")
KEY(DOUBLE, replay_ratio, "8", .least = 0.001, .most = 1e6, .uses = FPS, .needs = "regime=replay",
    .help = "how often a step is trained on, on average: actors wait for training, or training for actors")
KEY(TEXT, replay_order, "prioritised", .choices = "prioritised|uniform|oldest|newest|highest", .needs = "regime=replay",
    .help = "which windows are trained on; they leave by age only")
KEY(BOOL, replay_repeats, "true", .needs = "regime=replay",
    .help = "an update may hold a window more than once; false: it draws again")
KEY(BOOL, replay_save, "true", .needs = "regime=replay",
    .help = "checkpoints hold the replay too: each step is written once, and --resume refills the rings")
KEY(DOUBLE, priority_exponent, "0.5", .most = 10, .needs = "regime=replay",
    .help = "alpha: a window's probability is in proportion to its priority (its error) to this power; 0: uniform")
KEY(DOUBLE, importance_exponent, "0.4", .most = 10, .needs = "regime=replay",
    .help = "beta at the start of the run: losses are divided by a window's probability to this power")
KEY(DOUBLE, importance_end, "1", .most = 10, .needs = "frames|seconds",
    .help = "beta at the end of the run, `frames` or `seconds`")
KEY(TEXT, first_priority, "highest", .choices = "highest|stored", .needs = "regime=replay",
    .help = "of a new window: the highest so far, or by the action-values that its actions were chosen with")
KEY(DOUBLE, epsilon, "1", .most = 1, .needs = "head=greedy_q",
    .help = "probability of a random action at the start of training")
KEY(DOUBLE, epsilon_end, "0.02", .most = 1, .needs = "head=greedy_q",
    .help = "the same after epsilon_steps, linearly; in updates, so it is the same after a restart")
KEY(INT, epsilon_steps, "0", .most = 9e15, .needs = "head=greedy_q",
    .help = "steps of all environments from epsilon to epsilon_end, after replay_start; 0: 50,000")
KEY(DOUBLE, epsilon_ladder, "0", .most = 100, .needs = "head=greedy_q",
    .help = "environment i of N explores with epsilon^(1 + this * i / (N - 1)); Ape-X and R2D2: 7, with epsilon 0.4")
KEY(DOUBLE, eval_epsilon, "0.001", .most = 1, .uses = EVAL | POLICY, .needs = "head=greedy_q",
    .help = "probability of a random action in farm eval")
LEARNER_KEY(INT, micro_batch, "0", .most = 65536, .uses = FPS,
            .help = "windows of one forward and backward pass; 0: chosen")
KEY(INT, train_threads, "0", .most = 1024, .uses = FPS, .help = "threads that train; 0: chosen for the machine")
KEY(TEXT, inference, "central", .choices = "central|local|auto",
    .help =
        "who chooses the actions: central: the learner, in batches of all actors; local: each actor, with parameters "
        "that it reads in place, so that no step waits for the learner; auto: which samples faster here, measured at "
        "the start (docs/INFERENCE.md). On the CPU; farm eval is central")
KEY(TEXT, refresh, "step", .choices = "step|window", .needs = "inference=local",
    .help = "when an actor takes up newer parameters: before any step, or at a window's first step")
KEY(INT, infer_threads, "0", .most = 32, .uses = EVAL | FPS, .needs = "device=cpu",
    .help = "inference threads on CPUs, each with its part of the actors; 0: chosen for the machine")
KEY(INT, infer_batch_max, "0", .most = 65536, .uses = EVAL | FPS,
    .help = "most observations of one inference pass; 0: chosen")
KEY(DOUBLE, infer_wait_ms, "0", .most = 1000, .uses = EVAL | FPS,
    .help = "longest wait of a ready lane for others to share its inference pass, milliseconds")
KEY(TEXT, wait, "adaptive", .choices = "adaptive|spin|sleep", .uses = EVAL | FPS | BRIDGE | SERVE,
    .help = "how processes wait: short spin then sleep, always spin, always sleep")
KEY(BOOL, pin, "true", .uses = EVAL | FPS | BRIDGE | SERVE, .help = "actors and learner are pinned to separate CPUs")
KEY(BOOL, numa, "true", .uses = EVAL | BRIDGE | SERVE, .help = "each actor's memory lies on its CPUs' NUMA node")
KEY(PATH, bw, "auto", .uses = FPS,
    .help = "document of `farm bw --json` about this machine, for the plan; auto: ~/.cache/actorfarm/bw.json")
KEY(BOOL, huge_pages, "true", .uses = EVAL | FPS | BRIDGE | SERVE, .help = "shared memory in 2 MiB pages if available")
KEY(BOOL, deterministic, "false",
    .help = "the run repeats bit for bit on machines of one kind: synchronous, on the CPU, to be ended by `frames`; "
            "checkpoints and metrics come after numbers of updates, and a dead process ends it")
KEY(INT, checkpoint_updates, "0", .most = 1e12, .needs = "deterministic",
    .help = "updates between checkpoints, at which all environments start again, as after --resume; 0: as many as take "
            "20,000 steps of an environment")
KEY(INT, metrics_updates, "0", .most = 1e12, .needs = "deterministic",
    .help = "updates between lines of metrics.jsonl; 0: a hundredth of checkpoint_updates")
KEY(DOUBLE, checkpoint_every, "300", .least = 1, .most = 1e9, .needs = "deterministic=false",
    .help = "seconds between checkpoints")
KEY(INT, checkpoints_keep, "3", .most = 1e6,
    .help = "newest checkpoints that stay, beside the best one by mean return; 0: all")
KEY(INT, eval_every, "0", .most = 9e15,
    .help = "frames between evaluations: a checkpoint is written, and `farm eval` plays it meanwhile; 0: never")
KEY(INT, eval_episodes, "10", .least = 1, .most = 1e6, .needs = "eval_every", .help = "games of such an evaluation")
KEY(DOUBLE, metrics_every, "5", .least = 0.1, .most = 1e6, .needs = "deterministic=false",
    .help = "seconds between lines of metrics.jsonl")
KEY(BOOL, csv, "false", .help = "metrics.csv beside metrics.jsonl, with the same figures")
KEY(BOOL, tensorboard, "true", .help = "a TensorBoard event file in the run's folder, with the same figures")
KEY(DOUBLE, start_seconds, "60", .least = 0.1, .most = 1e6, .uses = EVAL | FPS | BRIDGE | ENVS | SERVE,
    .help = "limit of what comes before an environment's first step: the program that reads its spaces, each "
            "environment that is made, each first reset; a longer one is refused, or reported as hanging")
KEY(DOUBLE, hang_seconds, "30", .most = 1e6, .uses = EVAL | FPS | BRIDGE | SERVE,
    .help = "an environment that does not return for this time is reported on stderr; 0: never")
KEY(DOUBLE, hang_kill, "0", .most = 1e6, .uses = EVAL | FPS | BRIDGE | SERVE,
    .help = "an environment that does not return for this time is killed, and a new actor takes its lanes; longer than "
            "the start of one and its slowest step; 0: never")
LEARNER_KEY(DOUBLE, sync_grace_s, "5", .least = 0.25, .most = 1e6, .needs = "regime=sync",
            .help = "if an actor does nothing for this time, as in a slow reset, the iteration trains without its "
                    "lane, and the lane's next window is dropped, seconds")
KEY(INT, restarts_max, "1000", .most = 1e9, .uses = EVAL | FPS | BRIDGE | SERVE,
    .help = "restarts of one actor, after which the run ends with an error; 0: no limit")
KEY(DOUBLE, node_grace_s, "600", .most = 1e9, .uses = SERVE, .needs = "listen",
    .help = "a remote node that is away for this time loses its actors' places, seconds")
KEY(INT, fan_out, "2", .least = 1, .most = 64, .needs = "listen",
    .help = "nodes to which the learner, and each node with --cache, sends the parameters, if the actors infer")
KEY(TEXT, bad_values, "count", .choices = "count|fail|reset", .uses = EVAL | FPS | SERVE,
    .help = "rewards and observations that are NaN, infinite or beyond 1e9: count: such steps are rejected, i.e. "
            "counted and not trained on; fail: the run ends and names the environment; reset: the episode ends without "
            "a return and another begins")

#undef KEY
#undef ALGO_KEY
#undef LEARNER_KEY
