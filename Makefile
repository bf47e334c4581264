# actorfarm. `make help` lists the targets. Everything is built in build/; nothing outside it is touched, except by
# `make deps` (Debian packages) and `make install`.
#
# Sources are found by folder: a new file in src/ring is built because it is there. `*_avx2.c` and `*_avx512.c` are
# compiled with those instructions, on x86-64 only; who calls them asks the CPU first. Needs GNU make 4.

MAKEFLAGS += --no-builtin-rules --no-builtin-variables --no-print-directory
SHELL := /bin/bash
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

CC       := $(if $(filter default undefined,$(origin CC)),gcc,$(CC))
AR       := $(if $(filter default undefined,$(origin AR)),ar,$(AR))
PYTHON   ?= python3
BUILD    ?= build
PREFIX   ?= /usr/local
DESTDIR  ?=
SANITIZE ?=
# What follows narrows or widens a target: `make test T=ring`, `make run ARGS="--seconds 30"`, `make bench B=ring`.
T        ?=
B        ?=
ARGS     ?=
RESULTS  ?=
TEST_JOBS ?= 3
export PYTHON BUILD CC

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter
CPPFLAGS += -D_GNU_SOURCE -Iinclude -Isrc -I. -I$(BUILD)/gen
CFLAGS   += -std=c17 -O2 -g $(WARNINGS) -fno-math-errno -ffp-contract=off -fPIC
LDFLAGS  += -Wl,--as-needed
ifneq ($(SANITIZE),)
# gcc's flow warnings are wrong about instrumented code; TSan does not see fences (which order only who sleeps).
CFLAGS   += -Wno-unknown-warning-option -Wno-tsan -Wno-format-truncation -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds
CFLAGS   += -O1 -fno-omit-frame-pointer -fsanitize=$(SANITIZE) -fno-sanitize-recover=all
LDFLAGS  += -fsanitize=$(SANITIZE)
endif
# Arithmetic stays fast: what `make coverage` counts is not there.
COVERAGE ?=
coverage_flags = $(if $(COVERAGE),$(if $(filter src/kernels/% src/nn/%,$1),,--coverage -fprofile-update=atomic -O0 -Wno-format-truncation))
ifneq ($(COVERAGE),)
LDFLAGS  += --coverage -Wl,--undefined=__wrap_abort $(addprefix -Wl$(comma)--wrap=,_exit abort execv execve)
endif
# TSan cannot live with Criterion's fixed mapping: its tests are compiled against a small emulator (AArch64's too).
TSAN     := $(filter thread,$(SANITIZE))
TEST_CPPFLAGS := $(if $(TSAN),-Itests/support/criterion_minimal)

SIMD_avx2   := -mavx2 -mfma
SIMD_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512vnni -mavx512dq -mavx2 -mfma
simd_flags   = $(if $(filter %_avx2.c,$1),$(SIMD_avx2))$(if $(filter %_avx512.c,$1),$(SIMD_avx512))

Q    := $(if $(V),,@)
say   = @printf '  %-5s %s\n' $1 $2
# A recipe that starts make again uses all cores, unless the caller chose a number.
parallel = $(if $(findstring -j,$(MAKEFLAGS))$(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

##@ Targets
.PHONY: all help deps run test bench machine bench-peers numa-guest model lint format asan tsan coverage fuzz fuzz-keep fuzz-seeds aarch64-test install uninstall clean chaos chaos-mutants kernel-mutants

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  V=1 prints commands, T=ring or T=ring/test_lane picks tests, B=ring picks benchmarks,'
	@echo '  ARGS="--seconds 30" goes to farm train, PYTHON=... and CC=... choose the tools, FARM_NVCC=pypi the CUDA compiler.'

deps: ## installs what is missing: Debian packages, build/venv, Procgen's library, the CUDA compiler
	@tools/build/deps.sh build test
	@tools/build/venv.sh
	@tools/build/procgen.sh
	@tools/build/cuda.sh

run: deps ## builds and trains native/breakout for about a minute
	@$(MAKE) $(parallel) all
	$(BUILD)/farm train --env native/breakout $(ARGS)

test: deps ## builds and runs all tests; ends with "N passed, N failed"
	@$(MAKE) $(parallel) build-tests
	@$(MAKE) run-tests

bench: deps ## runs every benchmark and prints one table; RESULTS=file keeps the JSON
	@tools/build/deps.sh bench || echo 'make bench: going on; results whose reference is missing say so'
	@$(MAKE) $(parallel) all
	@$(BUILD)/venv/bin/python tools/build/bench_table.py --build $(BUILD) $(if $(RESULTS),--results $(RESULTS)) $(B)

machine: deps ## this CPU as a line of bench/results/machines.jsonl: tests at three ISA levels, learner and ring benchmarks
	@$(MAKE) $(parallel) all
	@BUILD=$(BUILD) $(BUILD)/venv/bin/python tools/build/machine.py $(ARGS)

bench-peers: deps ## the same work done by other people's systems; B=envpool picks one (installs them into build/peers)
	@$(MAKE) $(parallel) all
	@ARGS="$(ARGS)" RESULTS="$(RESULTS)" tools/build/peers.sh $(B)

asan: deps ## the C tests and the command line's under AddressSanitizer and UBSan
	@$(MAKE) $(parallel) python-extension
	@$(MAKE) $(parallel) BUILD=$(BUILD)/asan SANITIZE=address,undefined build-c-tests
	@ln -sfn ../python $(BUILD)/asan/python
	@$(MAKE) BUILD=$(BUILD)/asan SANITIZE=address,undefined run-c-tests

TSAN_TESTS ?= shm ring learner
tsan: deps ## the tests with threads under ThreadSanitizer
	@$(MAKE) $(parallel) BUILD=$(BUILD)/tsan SANITIZE=thread T="$(or $(T),$(TSAN_TESTS))" build-c-tests
	@$(MAKE) BUILD=$(BUILD)/tsan SANITIZE=thread T="$(or $(T),$(TSAN_TESTS))" run-c-tests

COVERAGE_TESTS ?= shm ring supervisor actor learner
coverage: deps ## lines and branches of src/shm, src/ring, src/supervisor that the C tests run: 90 % each, or it fails
	@$(MAKE) $(parallel) BUILD=$(BUILD)/coverage COVERAGE=1 T="$(COVERAGE_TESTS)" build-c-tests
	@find $(BUILD)/coverage -name '*.gcda' -delete
	@status=0; $(MAKE) BUILD=$(BUILD)/coverage COVERAGE=1 T="$(COVERAGE_TESTS)" run-c-tests || status=1; \
		$(BUILD)/venv/bin/python -m pip install -q --disable-pip-version-check gcovr==8.8 || exit 1; \
		for folder in shm ring supervisor; do $(GCOVR) --filter "src/$$folder/" $(BUILD)/coverage/obj || status=1; done; exit $$status
# Branches on lines with an assert do not count: the way into abort(3) is there never to be taken.
GCOVR = $(BUILD)/venv/bin/python -m gcovr -r . --exclude-branches-by-pattern '.*\bassert\(.*' --fail-under-line 90 --fail-under-branch 90 \
        --print-summary $(if $(V),--txt-metric branch)

fuzz: deps ## fuzzes each target of tests/fuzz for SECONDS=60 and records it; F=recipe picks one
	@SECONDS_EACH=$(or $(SECONDS),60) tools/build/fuzz.sh long $(F)

fuzz-keep: ## after it: the inputs worth committing, into tests/fuzz/corpus
	@tools/build/fuzz.sh keep $(F)

fuzz-seeds: ## writes the seeds of attach, spec and checkpoint anew, where a layout or a format has changed
	@tools/build/fuzz.sh seeds

chaos: deps ## kills actors, learners and supervisors of farms that check every step; adds to bench/results/chaos.jsonl
	@$(MAKE) $(parallel) $(BUILD)/chaos
	@$(BUILD)/chaos --record bench/results/chaos.jsonl $(ARGS)

chaos-mutants: deps ## breaks a rule at a time in copies: the chaos runner must find each (minutes)
	@$(MAKE) $(parallel) $(BUILD)/chaos
	@FARM_BUILD=$(abspath $(BUILD)) tests/chaos/test_mutants.sh --all

kernel-mutants: deps ## breaks a line at a time of copies of the CUDA kernels: their test on the CPU must find each
	@$(MAKE) $(parallel) run-kernel-mutants

aarch64-test: ## tests that need no foreign library, built for AArch64, run under qemu-user
	@tools/build/aarch64_test.sh

numa-guest: deps ## farm topo and farm bw in an emulated machine of four NUMA nodes: shapes, distances, placement
	@tools/build/numa_guest.sh
	@$(MAKE) $(parallel) $(BUILD)/farm
	@$(MAKE) T=numa run-tests

model: deps ## the lane's model checks in full, harmless mutants too: about an hour
	@status=0; for t in tests/model/spin/test_spin.py tests/model/test_lane_model.py; do \
		FARM_MODEL=full FARM_BUILD=$(abspath $(BUILD)) $(BUILD)/venv/bin/python -u $$t || status=1; done; exit $$status

lint: ## layout, static analysis, folder rule, links, AArch64 compile check
	@tools/build/deps.sh build lint
	@$(MAKE) $(parallel) -k run-lint

format: ## lays out all C and CUDA sources
	@tools/build/deps.sh lint
	@tools/build/sources.sh c h cu cuh | xargs -r clang-format -i

install: all ## into $(DESTDIR)$(PREFIX)
	@tools/build/install.sh install "$(DESTDIR)" "$(PREFIX)" "$(BUILD)"

uninstall: ## removes what install put there
	@tools/build/install.sh uninstall "$(DESTDIR)" "$(PREFIX)"

clean: ## removes build/, but keeps the downloads: build/venv, build/procgen, build/cuda, build/peers, build/numa
	@[ ! -d $(BUILD) ] || find $(BUILD) -mindepth 1 -maxdepth 1 ! -name venv ! -name procgen ! -name cuda ! -name peers ! -name numa ! -name cuda.mk \
		-exec rm -rf {} +

# What follows needs to know what the machine has; the targets above do not.
UNCONFIGURED := help deps run test bench machine bench-peers numa-guest model asan tsan coverage fuzz fuzz-% lint format uninstall clean run-lint lint-% aarch64 chaos chaos-mutants kernel-mutants
ifneq ($(filter-out $(UNCONFIGURED),$(or $(MAKECMDGOALS),all)),)
include $(BUILD)/config.mk
-include $(BUILD)/venv/python.mk $(BUILD)/cuda.mk
endif

$(BUILD)/config.mk: tools/build/probe.sh
	@tools/build/probe.sh $@

# Objects depend on this file, which changes only when compiler or flags do.
$(BUILD)/flags: force
	@mkdir -p $(@D)
	@printf '%s\n' '$(CC) $(CPPFLAGS) $(CFLAGS) $(SIMD_avx2) $(SIMD_avx512) $(LDFLAGS)' | cmp -s - $@ || \
		printf '%s\n' '$(CC) $(CPPFLAGS) $(CFLAGS) $(SIMD_avx2) $(SIMD_avx512) $(LDFLAGS)' >$@
# What a program can say of its origin: #include "farm_build.h".
$(BUILD)/gen/farm_build.h: force
	@tools/build/version.sh $@ "$(PREFIX)"
.PHONY: force

##@ The library
FOLDERS  := base config topo shm ring kernels kernels/cpu bw nn algo replay envs envs/native actor learner learner/cpu supervisor report run bridge
SOURCES  := $(wildcard $(FOLDERS:%=src/%/*.c)) $(if $(COVERAGE),tests/support/coverage.c)
ifneq ($(TARGET_CPU),x86_64)
SOURCES  := $(filter-out %_avx2.c %_avx512.c,$(SOURCES))
endif
# The bridge's engine of io_uring, or what says that this build has none.
SOURCES  := $(filter-out src/bridge/engine_uring$(if $(URING_LIBS),_none).c,$(SOURCES))
LIBFARM  := $(BUILD)/libfarm.a
FARM_LIBS := -lhwloc -lnuma -ldnnl -lgomp -ljansson -lyaml -lssl -lcrypto -lisal $(URING_LIBS) -lpthread -lm -ldl
HEAP     := $(if $(SANITIZE),,$(JEMALLOC_LIBS))
object    = $(patsubst %.c,$(BUILD)/obj/%.o,$1)

$(LIBFARM): $(call object,$(SOURCES)) $(BUILD)/flags
	$(call say,AR,$@)
	$(Q)rm -f $@
	$(Q)$(AR) rcsD $@ $(filter %.o,$^)

$(BUILD)/obj/%.o: %.c $(BUILD)/flags | $(BUILD)/gen/farm_build.h
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(call simd_flags,$<) $(call coverage_flags,$<) $(if $(filter tests/%,$<),$(TEST_CPPFLAGS)) -MMD -MP -c $< -o $@

link = $(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) $(filter %.o,$^) $(LIBFARM) $(HEAP) $1 $(FARM_LIBS) -o $@

##@ The program
TOOL_SOURCES := $(wildcard tools/*.c tools/*/*.c)
FARM := $(BUILD)/farm

$(BUILD)/farm: $(call object,$(TOOL_SOURCES)) $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)

##@ Tests: one executable a file; files of tests/support are linked into each
TEST_ALL     := $(wildcard tests/*/test_* tests/*/*/test_* tests/bridge/two_nodes.sh)
TESTS        := $(if $(T),$(foreach t,$(T),$(filter tests/$t/% tests/$t.c tests/$t.py tests/$t.sh,$(TEST_ALL))),$(TEST_ALL))
C_TESTS      := $(patsubst %.c,$(BUILD)/%,$(filter %.c,$(TESTS)))
SCRIPT_TESTS := $(filter %.py %.sh,$(TESTS))
TEST_SUPPORT := $(call object,$(filter-out %/faults.c %/coverage.c,$(wildcard tests/support/*.c)))

# C over CUDA's runtime (cuda/ folders) needs its headers alone, which come with nvcc. Its tests, which lie in folders
# called cuda too, are linked with an emulator for runtime and libraries instead of CUDA, over which the kernels run as
# the host's compiler makes them: no GPU is needed.
CUDA_INCLUDE   := $(patsubst %/cuda_runtime_api.h,%,$(firstword $(wildcard $(addsuffix /cuda_runtime_api.h,\
                    $(if $(NVCC),$(dir $(NVCC))../include) $(BUILD)/cuda/nvidia/cu13/include \
                    $(BUILD)/../cuda/nvidia/cu13/include /usr/local/cuda/include))))
CUDA_C_SOURCES := $(wildcard src/*/cuda/*.c)
CUDA_C_OBJECTS := $(call object,$(CUDA_C_SOURCES))
CUDA_EMULATOR   := $(call object,$(wildcard tests/support/cuda_emulator/*.c)) \
                  $(patsubst %,$(BUILD)/obj/emulator/%.o,$(wildcard src/*/cuda/*.cu))
CUDA_TESTS     := $(strip $(foreach t,$(C_TESTS),$(if $(findstring /cuda/test_,$t),$t)))
ifeq ($(CUDA_INCLUDE),)
C_TESTS        := $(filter-out $(CUDA_TESTS),$(C_TESTS))
CUDA_UNTESTED  := $(CUDA_TESTS)
CUDA_TESTS     :=
endif
$(CUDA_C_OBJECTS) $(filter-out %.cu.o,$(CUDA_EMULATOR)) $(CUDA_TESTS:$(BUILD)/%=$(BUILD)/obj/%.o): private CPPFLAGS += -isystem $(CUDA_INCLUDE) -Itests/support/cuda_emulator
$(CUDA_TESTS): $(CUDA_C_OBJECTS) $(CUDA_EMULATOR)
# Kernels for the CPU: another device.cuh before our own, and a call of the emulator's (access.c) before each load and
# store. AddressSanitizer has functions of these names, so that there UndefinedBehaviorSanitizer alone looks on; under
# ThreadSanitizer, which looks at the host's code, nobody does.
EMULATOR_FLAGS  := -std=c++17 -O1 -g -fPIC -fno-exceptions -fno-rtti -Wall -Wextra -Werror -Wno-unknown-pragmas \
                  -Itests/support/cuda_emulator/device -Itests/support/cuda_emulator -Iinclude -Isrc -I. -I$(BUILD)/gen \
                  $(if $(TSAN),,$(if $(SANITIZE),-fsanitize=undefined -fno-sanitize-recover=all,-fsanitize=kernel-address \
                  $(addprefix --param asan-,instrumentation-with-call-threshold=0 stack=0 globals=0)))
KERNELS_CXX    := $(if $(CUDA_INCLUDE),g++ -x c++ $(EMULATOR_FLAGS) -isystem $(CUDA_INCLUDE))
$(BUILD)/obj/emulator/%.cu.o: %.cu $(BUILD)/flags | $(BUILD)/gen/farm_build.h
	$(call say,CXX,'$< for the CPU')
	$(Q)mkdir -p $(@D)
	$(Q)$(KERNELS_CXX) -MMD -MP -c $< -o $@
# The dynamic linker's places hold what the test puts there.
$(BUILD)/tests/nn/cuda/test_libraries: private LDFLAGS += $(addprefix -Wl$(comma)--wrap=,dlopen dlerror dlsym)
# What opens cuDNN, cuBLASLt and NCCL gets the emulators (tests/support/cuda_emulator/opened.c).
CUDA_WRAP      := -Wl,--wrap=farm_cuda_vendor_open,--wrap=farm_cuda_vendor_describe,--wrap=farm_cuda_nccl_open
$(filter $(BUILD)/tests/learner/cuda/%,$(CUDA_TESTS)): private LDFLAGS += $(CUDA_WRAP)
# What a GPU is asked of the kernels (tests/gpu), asked of the emulator: tests/kernels/cuda/test_kernels.sh runs it.
KERNELS_ON_CPU := $(BUILD)/tests/gpu/test_kernels
KERNELS_OBJECTS := $(patsubst %,$(BUILD)/obj/emulator/%.o,$(filter-out %/test_executor.cu %/litmus.cu,$(wildcard tests/gpu/*.cu bench/gpu/*.cu))) \
                  $(CUDA_EMULATOR) $(CUDA_C_OBJECTS)
# For tests/kernels/cuda/test_mutants.sh, which makes it with another kernel.
KERNELS_TOLD   := KERNELS_CXX='$(KERNELS_CXX)' KERNELS_OBJECTS='$(strip $(KERNELS_OBJECTS))' KERNELS_LIBS='$(LIBFARM) $(FARM_LIBS)'
$(KERNELS_ON_CPU): private LDFLAGS += $(CUDA_WRAP)
$(KERNELS_ON_CPU): $(KERNELS_OBJECTS) $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)
.PHONY: run-kernel-mutants
run-kernel-mutants: $(KERNELS_ON_CPU)
	@FARM_BUILD=$(abspath $(BUILD)) $(KERNELS_TOLD) tests/kernels/cuda/test_mutants.sh --all
build-tests build-c-tests: $(if $(CUDA_INCLUDE),$(if $(filter tests/kernels/cuda/%,$(SCRIPT_TESTS)),$(KERNELS_ON_CPU)))
# The CUDA backend over the emulators, for `farm train --device cuda` in tests; never installed.
CUDA_MAP       := src/learner/cuda/library.map
CUDA_PRETENDED := $(if $(CUDA_INCLUDE),$(BUILD)/tests/tools/libfarm_cuda_emulator.so)
$(BUILD)/tests/tools/libfarm_cuda_emulator.so: $(CUDA_C_OBJECTS) $(CUDA_EMULATOR) $(LIBFARM) $(CUDA_MAP)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared $(LDFLAGS) $(CUDA_WRAP) -Wl,--exclude-libs,ALL,--version-script=$(CUDA_MAP),-z,defs $(filter %.o,$^) $(LIBFARM) $(FARM_LIBS) -o $@
build-tests: $(if $(filter tests/tools/test_cuda% tests/tools/test_elastic% tests/kernels/cuda/%,$(SCRIPT_TESTS)),$(CUDA_PRETENDED))

$(C_TESTS): $(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TEST_SUPPORT) $(LIBFARM)
	$(call say,LINK,$@)
	$(if $(CRITERION_LIBS),,$(error The tests need Criterion. Run `make deps`))
	$(call link,$(if $(TSAN),,$(CRITERION_LIBS)))

# Tests that make calls fail: tests/support/faults.h; the names stand in its .c file.
FAULT_TESTS  := $(filter %/test_faults,$(C_TESTS))
$(FAULT_TESTS): $(call object,tests/support/faults.c)
$(FAULT_TESTS): private LDFLAGS += $(addprefix -Wl$(comma)--wrap=,mmap munmap malloc calloc realloc free fork \
	$(shell sed -n 's/^FAULT.[^,]*, \([a-z0-9_]*\),.*/\1/p' tests/support/faults.c))

# A library with gym3's libenv interface, and the plug-ins that it and Procgen are played through.
$(BUILD)/tests/envs/libenv_fixture.so: tests/envs/libenv_fixture.c src/envs/libenv/libenv.h $(BUILD)/flags
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) -fPIC $(CFLAGS) -shared $< $(LDFLAGS) -o $@
$(BUILD)/tests/envs/test_libenv $(BUILD)/tests/envs/test_procgen: | \
	$(BUILD)/envs/libenv.so $(BUILD)/envs/procgen.so $(BUILD)/tests/envs/libenv_fixture.so

# Both programs over one mapping a segment.
$(BUILD)/tests/learner/test_threads: private LDFLAGS += -Wl,--wrap=farm_place_map,--wrap=munmap

.PHONY: build-tests run-tests build-c-tests run-c-tests
build-tests: $(if $(T),$(FARM) env-plugins python-extension cuda,all) $(C_TESTS)
build-c-tests: $(FARM) $(C_TESTS)
build-tests build-c-tests:
	$(if $(CUDA_UNTESTED),@echo '  CUDA  headers missing$(comma) so not built: $(CUDA_UNTESTED) (make deps)')
run_tests = tools/build/run_tests.py --jobs $(TEST_JOBS) --build $(BUILD) $(if $(SANITIZE),--timeout 300) \
            $(if $(TSAN),$(shell setarch -R true 2>/dev/null && echo '--wrap "setarch -R"'))
# These run again at instruction set levels below this CPU's best, to which oneDNN limits itself then.
ISA_TESTS  := $(filter $(addprefix $(BUILD)/tests/,nn/test_arithmetic nn/test_executor learner/test_learner learner/test_vtrace_lane),$(C_TESTS))
cpu_has     = $(shell grep -qsw $1 /proc/cpuinfo && echo $1)
isa_levels  = $(if $(ONEDNN_MAX_CPU_ISA),,$(if $(call cpu_has,avx2),SSE41) $(if $(call cpu_has,avx512bw),AVX2) \
              $(if $(call cpu_has,avx512_vnni)$(call cpu_has,avx512_bf16),AVX512_CORE))
run-tests:
	@$(KERNELS_TOLD) $(BUILD)/venv/bin/python $(run_tests) $(C_TESTS) $(SCRIPT_TESTS) \
		$(foreach l,$(isa_levels),$(foreach t,$(ISA_TESTS),--again ONEDNN_MAX_CPU_ISA=$l $t))
run-c-tests:
	@FARM_PYTHON=$(abspath $(BUILD)/../venv/bin/python) $(BUILD)/../venv/bin/python $(run_tests) $(C_TESTS) $(if $(findstring address,$(SANITIZE)),$(filter tests/tools/% tests/kernels/%,$(SCRIPT_TESTS)))

##@ Fuzzing: one executable a file tests/fuzz/fuzz_*.c, of clang and the sanitizers; tools/build/fuzz.sh calls this
FUZZ_SOURCES  := $(wildcard src/base/*.c src/shm/*.c src/ring/*.c) src/learner/checkpoint.c src/learner/validator.c \
                 src/learner/backend.c src/config/recipe.c $(wildcard src/algo/*.c) \
                 $(filter-out %/engine_uring.c %/measure.c,$(wildcard src/bridge/*.c))
FUZZ_TARGETS  := $(patsubst tests/fuzz/%.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_MAIN     ?=
FUZZ_MAIN_OBJ := $(call object,$(filter %.c,$(FUZZ_MAIN)))
FUZZ_LIBS     := -ljansson -lyaml -lnuma -lssl -lcrypto -lisal -lpthread -lm -ldl

$(FUZZ_TARGETS) $(BUILD)/make_seeds: $(BUILD)/%: $(BUILD)/obj/tests/fuzz/%.o $(call object,$(FUZZ_SOURCES))
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) $(FUZZ_MAIN_FLAG) $(FUZZ_LIBS) -o $@
$(FUZZ_TARGETS): $(FUZZ_MAIN_OBJ)
$(FUZZ_TARGETS): FUZZ_MAIN_FLAG = $(filter -%,$(FUZZ_MAIN))
.PHONY: fuzz-programs
fuzz-programs: $(FUZZ_TARGETS) $(BUILD)/make_seeds

##@ The chaos runner: own copies of ring, actor, learner and replay with hooks at their stores, the rest from the library
CHAOS_SOURCES := $(filter src/ring/% src/actor/% src/learner/% src/replay/%,$(SOURCES)) \
                 $(filter-out tests/chaos/main.c tests/chaos/test_%,$(wildcard tests/chaos/*.c))
CHAOS_OBJECTS := $(CHAOS_SOURCES:%.c=$(BUILD)/obj/chaos/%.o)

$(BUILD)/obj/chaos/%.o: %.c $(BUILD)/flags | $(BUILD)/gen/farm_build.h
	$(call say,CC,'$< with hooks')
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -Itests/chaos/hooked $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/chaos: $(call object,tests/chaos/main.c) $(CHAOS_OBJECTS) $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)
$(BUILD)/tests/chaos/test_chaos: $(CHAOS_OBJECTS)
build-tests: $(if $(filter tests/chaos/%,$(SCRIPT_TESTS)),$(BUILD)/chaos)

##@ Benchmarks: one executable a file; bench/common*.c are linked into each
BENCH_COMMON := $(call object,$(wildcard bench/common*.c))
BENCHES      := $(patsubst bench/%.c,$(BUILD)/bench/%,$(filter-out bench/common%.c,$(wildcard bench/*.c)))

BENCH_SCRIPTS := $(BUILD)/bench/fps
BENCH_PLUGIN  := $(BUILD)/bench/plugins/uneven.so
$(BENCH_PLUGIN): $(BUILD)/%.so: %.c $(wildcard include/farm/*.h) $(BUILD)/flags
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -Iinclude $(CFLAGS) -fPIC -shared $< $(LDFLAGS) -o $@
$(BUILD)/bench/fps: | $(BENCH_PLUGIN)
$(BENCH_SCRIPTS): $(BUILD)/bench/%: bench/%.py
	$(Q)mkdir -p $(@D) && ln -sfn $(abspath $<) $@
# A benchmark of several files has a folder of its name.
$(BUILD)/bench/bridge: $(call object,$(wildcard bench/bridge/*.c))
$(BENCHES): $(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BENCH_COMMON) $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)

##@ Python extension: build/python/actorfarm, made where build/venv is
PYTHON_PACKAGE := $(BUILD)/python/actorfarm
PY_MODULES     := $(patsubst python/%,$(BUILD)/python/%,$(wildcard python/actorfarm/*.py))
PY_EXTENSION   := $(if $(PY_INCLUDE),$(if $(wildcard python/_farm.c),$(PYTHON_PACKAGE)/_farm$(PY_EXT_SUFFIX)))

$(BUILD)/obj/python/_farm.o: CPPFLAGS += -isystem $(PY_INCLUDE)
# Neither jemalloc nor the library's own names may leak into the interpreter.
$(PYTHON_PACKAGE)/_farm$(PY_EXT_SUFFIX): $(BUILD)/obj/python/_farm.o $(LIBFARM)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,--exclude-libs,ALL $< $(LIBFARM) $(FARM_LIBS) -o $@
$(BUILD)/python/actorfarm/%.py: python/actorfarm/%.py
	$(call say,COPY,$@)
	$(Q)mkdir -p $(@D) && cp $< $@
.PHONY: python-extension
python-extension: $(PY_EXTENSION) $(PY_MODULES)

##@ Plug-ins that come along: build/envs/NAME.so of src/envs/NAME.c, which sees include/farm and nothing else of ours.
# More of one lies in src/envs/NAME/. ENV_FLAGS_NAME and ENV_LIBS_NAME add to it; ENV_WITHOUT names those whose foreign
# library is not here.
ENV_WITHOUT ?=

# mujoco: library and headers of the wheel `mujoco`, models of `gymnasium`. Installed, both lie in mujoco/ beside it. It
# stays in its process (nodelete): the library calls it back for its messages.
SITE_PACKAGES  := $(firstword $(wildcard $(BUILD)/venv/lib/python3*/site-packages $(BUILD)/../venv/lib/python3*/site-packages))
MUJOCO_LIB     := $(abspath $(wildcard $(SITE_PACKAGES)/mujoco/libmujoco.so.3.*))
MUJOCO_ASSETS  := $(abspath $(wildcard $(SITE_PACKAGES)/gymnasium/envs/mujoco/assets))
MUJOCO_FLAGS   := -isystem $(SITE_PACKAGES)/mujoco/include -DMUJOCO_ASSETS='"$(MUJOCO_ASSETS)"'
ENV_FLAGS_mujoco := -D_GNU_SOURCE -Isrc $(MUJOCO_FLAGS)
ENV_LIBS_mujoco  := $(MUJOCO_LIB) -Wl,-z,nodelete -Wl,-rpath,'$$ORIGIN/mujoco' -Wl,-rpath,$(dir $(MUJOCO_LIB)) -lpthread
ifeq ($(and $(MUJOCO_LIB),$(MUJOCO_ASSETS)),)
ENV_WITHOUT += mujoco
endif

# procgen and libenv: a header in common; Procgen's library is found when it is wanted. Installed, it lies in procgen/
# beside them.
ENV_FLAGS_procgen := -D_GNU_SOURCE -Isrc
ENV_FLAGS_libenv  := -D_GNU_SOURCE -Isrc
$(BUILD)/envs/procgen.so: src/envs/libenv/libenv.h

ENV_PLUGINS := $(patsubst %,$(BUILD)/envs/%.so,$(filter-out $(ENV_WITHOUT),mujoco procgen libenv))

$(BUILD)/envs/mujoco.so: $(MUJOCO_LIB)
$(BUILD)/tests/envs/test_mujoco: | $(filter %/mujoco.so,$(ENV_PLUGINS))
$(foreach p,$(ENV_PLUGINS),$(eval $p: $(wildcard $(p:$(BUILD)/envs/%.so=src/envs/%/*.[ch]))))
$(ENV_PLUGINS): $(BUILD)/envs/%.so: $(wildcard include/farm/*.h) $(BUILD)/flags
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -Iinclude $(CFLAGS) $(ENV_FLAGS_$*) -fPIC -fvisibility=hidden -shared $(filter %.c,$^) $(LDFLAGS) $(ENV_LIBS_$*) -lm -o $@
.PHONY: env-plugins
env-plugins: $(ENV_PLUGINS)

##@ CUDA: a shared object that the learner opens on demand, made where nvcc is, and a test that a GPU runs
# Machine code for each architecture, and PTX of the newest, which drivers compile for what comes after it.
CUDA_ARCHES  := 80 90 100 120
CUDA_NEWEST  := $(lastword $(CUDA_ARCHES))
CUDA_SOURCES := $(if $(SANITIZE),,$(wildcard src/*/cuda/*.cu))
CUDA_OBJECTS := $(patsubst %.cu,$(BUILD)/obj/%.cu.o,$(CUDA_SOURCES))
NVCC_FLAGS   := -std=c++17 -O3 -lineinfo -Werror all-warnings -Xcompiler -fPIC,-Wall,-Wextra -Iinclude -Isrc -I. -I$(BUILD)/gen
CUDA_CODE    := $(foreach a,$(CUDA_ARCHES),-gencode arch=compute_$a,code=sm_$a) \
                -gencode arch=compute_$(CUDA_NEWEST),code=compute_$(CUDA_NEWEST)
# tests/gpu: mostly host code over the kernels' objects, linked so that a machine needs the driver and nothing else of CUDA's.
# test_executor also needs what the CPU's executor gives, which a machine with a GPU cannot work out without oneDNN.
GPU_SOURCES  := $(if $(CUDA_SOURCES),$(filter-out %/test_executor.cu %/litmus.cu,$(wildcard tests/gpu/*.cu bench/gpu/*.cu)))
GPU_OBJECTS  := $(patsubst %.cu,$(BUILD)/obj/%.cu.o,$(GPU_SOURCES))
ifneq ($(NVCC),)
CUDA_LIBRARY := $(if $(CUDA_SOURCES),$(BUILD)/libfarm_cuda.so)
GPU_TEST     := $(if $(GPU_SOURCES),$(addprefix $(BUILD)/gpu/,test_kernels test_executor executor.bin litmus round_trip update))
endif

$(BUILD)/nvcc_flags: force
	@mkdir -p $(@D)
	@printf '%s\n' '$(NVCC) $(NVCC_FLAGS) $(CUDA_CODE)' | cmp -s - $@ || printf '%s\n' '$(NVCC) $(NVCC_FLAGS) $(CUDA_CODE)' >$@
$(CUDA_OBJECTS) $(BUILD)/obj/tests/gpu/litmus.cu.o: private NVCC_FLAGS += $(CUDA_CODE)
$(CUDA_OBJECTS) $(GPU_OBJECTS) $(addprefix $(BUILD)/obj/tests/gpu/,test_executor.cu.o litmus.cu.o): $(BUILD)/obj/%.cu.o: %.cu $(BUILD)/nvcc_flags | $(BUILD)/gen/farm_build.h
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/libfarm_cuda.so: $(CUDA_OBJECTS) $(CUDA_C_OBJECTS) $(LIBFARM) $(CUDA_MAP)
	$(call say,LINK,$@)
	$(Q)$(NVCC) -shared -nodlink -cudart static -Xcompiler -static-libgcc,-static-libstdc++ \
		-Xlinker --exclude-libs,ALL,--version-script=$(CUDA_MAP),-z,defs $(filter %.o,$^) $(LIBFARM) -o $@
GPU_EXECUTOR := $(filter $(addprefix $(BUILD)/obj/src/,algo/% kernels/% nn/%),$(CUDA_OBJECTS) $(CUDA_C_OBJECTS))
$(BUILD)/gpu/test_kernels: $(GPU_OBJECTS) $(GPU_EXECUTOR) $(LIBFARM)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -nodlink -cudart static -Xcompiler -static-libgcc,-static-libstdc++ $(filter %.o,$^) $(LIBFARM) -o $@
$(BUILD)/gpu/test_executor: $(BUILD)/obj/tests/gpu/test_executor.cu.o $(GPU_EXECUTOR) $(LIBFARM)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -nodlink -cudart static -Xcompiler -static-libgcc,-static-libstdc++ $(filter %.o,$^) $(LIBFARM) -o $@
$(BUILD)/gpu/executor_expected: $(call object,tests/gpu/executor_expected.c) $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)
$(BUILD)/gpu/executor.bin: $(BUILD)/gpu/executor_expected
	$(call say,RUN,$@)
	$(Q)$< $@
$(BUILD)/gpu/litmus: $(BUILD)/obj/tests/gpu/litmus.cu.o $(BUILD)/obj/tests/gpu/support.cu.o $(filter $(BUILD)/obj/src/kernels/%,$(CUDA_OBJECTS) $(CUDA_C_OBJECTS)) $(LIBFARM)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -nodlink -cudart static -Xcompiler -static-libgcc,-static-libstdc++ $(filter %.o,$^) $(LIBFARM) -o $@
$(BUILD)/gpu/round_trip $(BUILD)/gpu/update: $(BUILD)/gpu/%: $(BUILD)/obj/bench/gpu/%.o $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)
# The Debian libraries of farm and of these programs, for a machine that lacks them: LD_LIBRARY_PATH=build/gpu/lib.
$(BUILD)/gpu/lib: $(FARM) $(BUILD)/gpu/round_trip
	$(call say,COPY,$@)
	$(Q)rm -rf $@ && mkdir -p $@
	$(Q)ldd $^ | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sort -u | grep -Ev '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' | xargs -I{} cp -L {} $@
.PHONY: cuda cuda-carry
cuda-carry: cuda $(BUILD)/gpu/lib ## build/carry.tar.xz: what tests/gpu/check.sh needs on a machine that has a GPU and nothing else
	$(Q)commit=$$(tests/gpu/same_build.sh $(BUILD) 2>$(BUILD)/gpu/same_build.log) || { cat $(BUILD)/gpu/same_build.log; exit 1; }; \
		case $$commit in *-dirty) echo "  NOTE  what is packed is of a changed tree, $$commit: commit it before it is measured" ;; *) echo "  NOTE  of commit $$commit" ;; esac
	$(call say,TAR,$(BUILD)/carry.tar.xz)
	$(Q)tar -C $(BUILD) --exclude gpu/out --exclude gpu/kept --exclude gpu/unpacked -cJf $(BUILD)/carry.tar.xz gpu farm libfarm_cuda.so
cuda: $(CUDA_LIBRARY) $(GPU_TEST)
	$(if $(CUDA_SOURCES),$(if $(NVCC),,@echo '  NVCC  missing, so: no CUDA backend (make deps)'))

all: $(LIBFARM) $(FARM) $(BENCHES) $(BENCH_SCRIPTS) env-plugins python-extension cuda ## everything, benchmarks included (plain `make`)

##@ Lint: each rule alone is a target too
LINTS := lint-format lint-cppcheck lint-folders lint-docs aarch64
.PHONY: run-lint $(LINTS)
run-lint: $(LINTS)
	$(call say,LINT,'clean')

lint-format:
	$(call say,LINT,clang-format)
	@tools/build/check_format.sh

lint-cppcheck:
	$(call say,LINT,cppcheck)
	@rm -rf $(BUILD)/cppcheck && mkdir -p $(BUILD)/cppcheck # a warm one swallows findings across files
	@tools/build/sources.sh c | { grep -v ^tests/ || true; } >$(BUILD)/cppcheck.files
	@[ ! -s $(BUILD)/cppcheck.files ] || cppcheck -q --std=c11 --language=c --enable=warning,performance,portability \
		--inline-suppr --error-exitcode=1 --suppressions-list=tools/build/cppcheck.supp \
		--cppcheck-build-dir=$(BUILD)/cppcheck -D_GNU_SOURCE -D__x86_64__ -Iinclude -Isrc \
		--file-list=$(BUILD)/cppcheck.files

lint-folders:
	$(call say,LINT,'folder rule (who may include whom)')
	@$(PYTHON) tools/build/check_includes.py .

lint-docs:
	$(call say,LINT,'links in documents$(comma) paths of one machine')
	@$(PYTHON) tools/build/check_docs.py .
comma := ,

# Compiles for AArch64, with the other libraries' headers of this machine: nothing is linked or run.
CROSS_CC   := aarch64-linux-gnu-gcc
CROSS_HOST := $(shell uname -m)
CROSS      := $(patsubst %.c,$(BUILD)/aarch64/%.o,$(filter-out %_avx2.c %_avx512.c $(if $(wildcard /usr/include/liburing.h),,src/bridge/engine_uring.c) $(if $(CUDA_INCLUDE),,$(CUDA_C_SOURCES)) $(foreach e,$(ENV_WITHOUT),src/envs/$e/%),$(wildcard src/*/*.c src/*/*/*.c tools/*.c tools/*/*.c bench/*.c)))
$(BUILD)/aarch64/src/envs/mujoco/%.o: private CPPFLAGS += $(MUJOCO_FLAGS)
$(CUDA_C_SOURCES:%.c=$(BUILD)/aarch64/%.o): private CPPFLAGS += -isystem $(CUDA_INCLUDE)
$(BUILD)/aarch64/%.o: %.c Makefile | $(BUILD)/gen/farm_build.h
	$(Q)mkdir -p $(@D)
	$(Q)$(CROSS_CC) $(CPPFLAGS) $(CFLAGS) -idirafter /usr/include -idirafter /usr/include/$(CROSS_HOST)-linux-gnu -MMD -MP -c $< -o $@
aarch64: $(CROSS)
	$(call say,LINT,'AArch64: $(words $(CROSS)) files compile (compiled only: not linked$(comma) not run)')

# What needs no foreign library, as static programs, which open none; tools/build/aarch64_test.sh runs them under
# qemu-user.
CROSS_PARTS    := base shm ring kernels kernels/cpu
CROSS_TESTED   := $(patsubst %.c,$(BUILD)/aarch64/%.o,tests/support/aarch64/numa_calls.c \
                    $(filter-out %_avx2.c %_avx512.c %/cuda_module.c %/json.c %/program.c %/paths.c,$(wildcard $(CROSS_PARTS:%=src/%/*.c))))
CROSS_PROGRAMS := $(patsubst %.c,$(BUILD)/aarch64/%,$(filter-out %/test_faults.c,$(wildcard $(CROSS_PARTS:%=tests/%/test_*.c))))
$(BUILD)/aarch64/tests/%.o: private CPPFLAGS += -Itests/support/criterion_minimal
$(BUILD)/aarch64/tests/%.o: private CFLAGS += -O1 -g0
$(CROSS_PROGRAMS): %: %.o $(CROSS_TESTED)
	$(Q)$(CROSS_CC) -static $^ -lpthread -lm -o $@
.PHONY: aarch64-programs
aarch64-programs: $(CROSS_PROGRAMS)

-include $(shell [ -d $(BUILD) ] && find $(BUILD)/obj $(BUILD)/aarch64 -name '*.d' 2>/dev/null)
