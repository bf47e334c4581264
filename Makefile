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
CXX      := $(if $(filter default undefined,$(origin CXX)),g++,$(CXX))
AR       := $(if $(filter default undefined,$(origin AR)),ar,$(AR))
PYTHON   ?= python3
BUILD    ?= build
PREFIX   ?= /usr/local
override PREFIX := $(abspath $(PREFIX))
DESTDIR  ?=
SANITIZE ?=
# What follows narrows or widens a target: `make test T=ring`, `make run ARGS="--seconds 30"`, `make bench B=ring`.
T        ?=
B        ?=
ENV       = native/breakout
ARGS     ?=
RESULTS  ?=
TEST_JOBS ?= 3
export PYTHON BUILD CC

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter
# Of everything that is compiled and linked. Sanitizers find more than fortified calls do, and without optimisation these
# do not exist. A level that the caller chose stays.
FORTIFY  := $(if $(SANITIZE)$(COVERAGE),-U_FORTIFY_SOURCE,$(if $(findstring _FORTIFY_SOURCE,$(CPPFLAGS) $(CFLAGS)),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2))
HARDEN   := -fstack-protector-strong $(FORTIFY)
HARDEN_LINK := -Wl,-z,relro,-z,now,-z,noexecstack
# Files without stack protector, as patterns: src/kernels/%.
UNPROTECTED :=
CPPFLAGS += -D_GNU_SOURCE -Iinclude -Isrc -I. -I$(BUILD)/gen
CFLAGS   += -std=c17 -O2 -g $(WARNINGS) -fno-math-errno -ffp-contract=off -fPIC $(HARDEN)
LDFLAGS  += -Wl,--as-needed $(HARDEN_LINK)
ifneq ($(SANITIZE),)
# gcc's flow warnings are wrong about instrumented code; TSan does not see fences (which order only sleeping).
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
file_flags   = $(if $(filter $(UNPROTECTED),$1),-fno-stack-protector )$(if $(filter %_avx2.c,$1),$(SIMD_avx2))$(if $(filter %_avx512.c,$1),$(SIMD_avx512))$(if $(filter src/kernels/cpu/lstm% src/kernels/cpu/maxpool% src/kernels/cpu/norm% src/intake/validator% src/view/consumer%,$1), $(LOOPS)$(if $(filter %_avx512.c,$1), -mprefer-vector-width=512))$(if $(filter src/kernels/cpu/winograd%,$1), $(FUSED))
# Plain loops that the compiler turns into vectors.
LOOPS := -O3 -fno-trapping-math
# Sums of products in one rounding, if the CPU has that.
FUSED := -ffp-contract=fast

Q    := $(if $(V),,@)
say   = @printf '  %-5s %s\n' $1 $2
# A recipe that starts make again uses all cores, unless the caller chose a number.
parallel = $(if $(findstring -j,$(MAKEFLAGS))$(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

##@ Targets
.PHONY: all help deps run test test-more bench figures machine bench-peers packages numa-guest model lint format asan tsan coverage fuzz fuzz-keep fuzz-seeds aarch64-test install install-all uninstall wheel wheel-check wheel-stage clean compile-commands chaos chaos-mutants kernel-mutants

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  V=1 prints commands, T=ring or T=ring/test_lane picks tests, B=ring picks benchmarks,'
	@echo '  ENV=ale/Pong and ARGS="--seconds 30" go to farm train, PREFIX=~/.local is for install, PYTHON=... and CC=... choose the tools, FARM_NVCC=pypi the CUDA compiler.'

deps: ## installs what is missing: Debian packages, build/venv, Procgen's library, the CUDA compiler
	@tools/build/deps.sh build python procgen cuda test
	@tools/build/venv.sh --tests
	@tools/build/procgen.sh
	@tools/build/cuda.sh

run: ## builds farm and trains native/breakout for about a minute; another environment by ENV=ale/Pong
	@tools/build/deps.sh build $(if $(run_python),python) $(if $(call run_names,procgen/),procgen)
	$(if $(run_python),@tools/build/venv.sh)
	$(if $(call run_names,procgen/),@tools/build/procgen.sh)
	@$(MAKE) $(parallel) $(BUILD)/farm $(if $(run_python)$(call run_names,libenv:),env-plugins python-extension)
	$(BUILD)/farm train --env $(ENV) $(ARGS)
run_names  = $(strip $(foreach f,$1,$(findstring $f,$(ENV) $(ARGS))))
run_python = $(call run_names,ale/ gym/ mujoco/ procgen/)

test: deps ## builds and runs all tests; ends with "N passed, N failed"
	@$(MAKE) $(parallel) build-tests
	@$(MAKE) run-tests

bench: deps ## runs every benchmark and prints one table; RESULTS=bench/results keeps them, a line of JSON each
	@tools/build/deps.sh bench || echo 'make bench: going on; results whose reference is missing say so'
	@$(MAKE) $(parallel) all
	@$(BUILD)/venv/bin/python tools/build/bench_table.py --build $(BUILD) $(if $(RESULTS),--results $(RESULTS)) $(B)

machine: deps ## this CPU as a line of bench/results/machines.jsonl: tests at three ISA levels, learner and ring benchmarks
	@$(MAKE) $(parallel) all
	@BUILD=$(BUILD) $(BUILD)/venv/bin/python tools/build/machine.py $(ARGS)

bench-peers: deps ## the same work done by other systems; B=envpool picks one (installs them into build/peers)
	@$(MAKE) $(parallel) all
	@ARGS="$(ARGS)" RESULTS="$(RESULTS)" tools/build/peers.sh $(B)

packages: deps ## docs/ENVIRONMENTS.md's table: third-party environments, installed into build/packages (1.5 GB); P="minigrid" picks some
	@$(MAKE) $(parallel) all
	@$(BUILD)/venv/bin/python bench/packages.py $(BUILD) $(BUILD)/packages $(P)

figures: deps ## docs/figures and docs/RESULTS.md from bench/results
	@mkdir -p docs/figures && $(BUILD)/venv/bin/python bench/figures.py

numa-guest: deps ## farm topo and farm bw in an emulated machine of four NUMA nodes: shapes, distances, placement
	@tools/build/numa_guest.sh
	@$(MAKE) $(parallel) $(BUILD)/farm
	@$(MAKE) T=numa run-tests

lint: ## layout, static analysis, folder rule, links, English, AArch64 compile check
	@tools/build/deps.sh build python procgen lint
	@$(MAKE) $(parallel) -k run-lint

format: ## lays out all C, C++ and CUDA sources
	@tools/build/deps.sh lint
	@tools/build/sources.sh c h cpp hpp cu cuh | xargs -r clang-format -i

compile-commands: $(BUILD)/gen/farm_build.h ## build/compile_commands.json, for clangd and clang-tidy
	$(file >$(BUILD)/compile_commands.json,[)$(foreach f,$(COMPILED),$(file >>$(BUILD)/compile_commands.json,$(call compile_command,$f)$(comma)))
	@echo '$(call compile_command,src/base/log.c)]' >>$(BUILD)/compile_commands.json
COMPILED = $(SOURCES) $(TOOL_SOURCES) $(patsubst $(BUILD)/%,%.c,$(filter-out $(CUDA_TESTS),$(C_TESTS))) $(wildcard bench/*.c)
compile_command = {"directory": "$(CURDIR)", "file": "$1", "command": "$(CC) $(CPPFLAGS) $(CFLAGS) $(call file_flags,$1) -c $1"}

install: ## builds farm and installs it in PREFIX: native, ale/* and gym/* environments, library, man pages, completion
	@tools/build/deps.sh build python
	@$(MAKE) $(parallel) installables
	@tools/build/install.sh install "$(DESTDIR)" "$(PREFIX)" "$(BUILD)"

install-all: deps ## the same with mujoco/*, procgen/* and the CUDA learner, whose libraries `make deps` fetches
	@$(MAKE) install

uninstall: ## removes what install put there
	@tools/build/install.sh uninstall "$(DESTDIR)" "$(PREFIX)"

clean: ## removes build/, but keeps the downloads: build/venv, build/procgen, build/cuda, build/peers, build/numa
	@[ ! -d $(BUILD) ] || find $(BUILD) -mindepth 1 -maxdepth 1 ! -name venv ! -name procgen ! -name cuda ! -name peers ! -name numa ! -name cuda.mk \
		-exec rm -rf {} +

# What follows needs to know what the machine has; the targets above do not.
UNCONFIGURED := help deps run test test-more bench figures machine bench-peers packages numa-guest model asan tsan coverage fuzz fuzz-% lint format install install-all uninstall wheel wheel-% clean run-lint lint-% aarch64 chaos chaos-mutants kernel-mutants
ifneq ($(filter-out $(UNCONFIGURED),$(or $(MAKECMDGOALS),all)),)
include $(BUILD)/config.mk
-include $(BUILD)/python.mk $(BUILD)/cuda.mk
endif

$(BUILD)/config.mk: tools/build/probe.sh
	@tools/build/probe.sh $@

# Where Python's headers are; does not exist as long as there is no Python with headers.
$(BUILD)/python.mk: tools/build/venv.sh $(wildcard $(BUILD)/venv/stamp $(BUILD)/venv/stamp-tests)
	@mkdir -p $(@D)
	@tools/build/venv.sh --headers >$@
	@[ -s $@ ] || rm $@

# Objects depend on this file, which changes only when compiler or flags do.
$(BUILD)/flags: force
	@mkdir -p $(@D)
	@printf '%s\n' '$(CC) $(CPPFLAGS) $(CFLAGS) $(SIMD_avx2) $(SIMD_avx512) $(LOOPS) $(FUSED) $(UNPROTECTED) $(LDFLAGS)' | cmp -s - $@ || \
		printf '%s\n' '$(CC) $(CPPFLAGS) $(CFLAGS) $(SIMD_avx2) $(SIMD_avx512) $(LOOPS) $(FUSED) $(UNPROTECTED) $(LDFLAGS)' >$@
# What a program can say of its origin: #include "farm_build.h".
$(BUILD)/gen/farm_build.h: force
	@tools/build/version.sh $@ "$(PREFIX)"
.PHONY: force

comma := ,
include mk/program.mk mk/tests.mk mk/bench.mk mk/envs.mk mk/cuda.mk mk/wheel.mk mk/lint.mk

all: $(LIBFARM) $(FARM) $(BUILD)/farm.pc $(BENCHES) $(BENCH_SCRIPTS) env-plugins python-extension cuda ## everything, benchmarks included (plain `make`)

-include $(shell [ -d $(BUILD) ] && find $(BUILD)/obj $(BUILD)/aarch64 -name '*.d' 2>/dev/null)
