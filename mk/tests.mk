# Tests, fuzz targets, the chaos runner, and the targets that run them at length.

asan: deps ## the C tests and the command line's under AddressSanitizer and UBSan
	@$(MAKE) $(parallel) python-extension
	@$(MAKE) $(parallel) BUILD=$(BUILD)/asan SANITIZE=address,undefined build-c-tests
	@ln -sfn ../python $(BUILD)/asan/python
	@$(MAKE) BUILD=$(BUILD)/asan SANITIZE=address,undefined run-c-tests

TSAN_TESTS ?= shm ring intake learner
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

chaos: deps ## kills actors, learners and supervisors of farms that check every step; adds to bench/results/chaos_runner.jsonl
	@$(MAKE) $(parallel) $(BUILD)/chaos
	@$(BUILD)/chaos --record bench/results/chaos_runner.jsonl $(ARGS)

chaos-mutants: deps ## breaks a rule at a time in copies: the chaos runner must find each (minutes)
	@$(MAKE) $(parallel) $(BUILD)/chaos
	@FARM_MUTANTS=all FARM_BUILD=$(abspath $(BUILD)) $(BUILD)/venv/bin/python -u tests/chaos/test_mutants.py

kernel-mutants: deps ## breaks a line at a time of copies of the CUDA kernels: their test on the CPU must find each
	@$(MAKE) $(parallel) run-kernel-mutants

aarch64-test: ## tests that need no foreign library, built for AArch64, run under qemu-user
	@tools/build/aarch64_test.sh

model: deps ## the lane's model checks in full, harmless mutants too: about an hour
	@FARM_MODEL=full FARM_BUILD=$(abspath $(BUILD)) $(BUILD)/venv/bin/python -u tests/model/test_lane_model.py

# MORE_PYTHON names an interpreter that has the packages of tools/build/peers/python-requirements.txt.
MORE_TESTS := $(wildcard tests/python/more_*.py)
KILLS      ?= 100
test-more: deps ## tests/python/more_*.py, for PyTorch, JAX, SB3, TorchRL (in build/peers/python); KILLS=100 of farms with a saved replay; T=python or T=chaos picks
	@$(MAKE) $(parallel) $(BUILD)/farm env-plugins python-extension
	@status=0; python=$(MORE_PYTHON); tests='$(if $(T),$(foreach t,$(T),$(filter tests/$t/% tests/$t.py,$(MORE_TESTS))),$(MORE_TESTS))'; \
		[ ! "$$tests" ] || [ "$$python" ] || python=$$(tools/build/peers.sh --install python) || exit 1; \
		[ ! "$$tests" ] || $$python tools/build/run_tests.py --build $(BUILD) --timeout 1800 --skips-fail $$tests || status=1; \
		$(if $(filter chaos%,$(or $(T),chaos)),FARM_BUILD=$(abspath $(BUILD)) $(BUILD)/venv/bin/python -u tests/chaos/test_saved_replay.py --kills $(KILLS) || status=1;) exit $$status

##@ Tests: one executable a file; files of tests/support are linked into each
TEST_ALL     := $(wildcard tests/*/test_* tests/*/*/test_* tests/bridge/two_nodes.sh)
TESTS        := $(if $(T),$(foreach t,$(T),$(filter tests/$t/% tests/$t.c tests/$t.py tests/$t.sh,$(TEST_ALL))),$(TEST_ALL))
C_TESTS      := $(patsubst %.c,$(BUILD)/%,$(filter %.c,$(TESTS)))
SCRIPT_TESTS := $(filter %.py %.sh,$(TESTS))
TEST_SUPPORT := $(call object,$(filter-out %/faults.c %/coverage.c,$(wildcard tests/support/*.c)))

# C over CUDA's runtime (cuda/ folders) needs only its headers, which come with nvcc. Its tests, also in folders called
# cuda, are linked with emulators of the runtime and the vendor's libraries, over which the kernels run as compiled by the
# host's compiler: they need no GPU.
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
$(CUDA_C_OBJECTS) $(filter-out %.cu.o,$(CUDA_EMULATOR)) $(CUDA_TESTS:$(BUILD)/%=$(BUILD)/obj/%.o) $(call object,tests/learner/cuda/farm.c): private CPPFLAGS += -isystem $(CUDA_INCLUDE) -Itests/support/cuda_emulator
$(CUDA_TESTS): $(CUDA_C_OBJECTS) $(CUDA_EMULATOR)
$(filter $(BUILD)/tests/learner/cuda/%,$(CUDA_TESTS)): $(call object,tests/learner/cuda/farm.c)
# Kernels for the CPU: another device.cuh before our own, and a call of the emulator (access.c) before each load and
# store. AddressSanitizer has functions of these names, so only UndefinedBehaviorSanitizer checks kernels in its builds;
# ThreadSanitizer checks host code only.
EMULATOR_FLAGS  := -std=c++17 -O2 -g -fPIC -fno-exceptions -fno-rtti -Wall -Wextra -Werror -Wno-unknown-pragmas \
                  -Itests/support/cuda_emulator/device -Itests/support/cuda_emulator -Iinclude -Isrc -I. -I$(BUILD)/gen \
                  $(if $(TSAN),,$(if $(SANITIZE),-fsanitize=undefined -fno-sanitize-recover=all,-fsanitize=kernel-address \
                  $(addprefix --param asan-,instrumentation-with-call-threshold=0 stack=0 globals=0)))
KERNELS_CXX    := $(if $(CUDA_INCLUDE),g++ -x c++ $(EMULATOR_FLAGS) -isystem $(CUDA_INCLUDE))
$(BUILD)/obj/emulator/%.cu.o: %.cu $(BUILD)/flags | $(BUILD)/gen/farm_build.h
	$(call say,CXX,'$< for the CPU')
	$(Q)mkdir -p $(@D)
	$(Q)$(KERNELS_CXX) -MMD -MP -c $< -o $@
# The dynamic linker's places hold what the test puts there.
$(BUILD)/tests/nn/cuda/test_vendor: private LDFLAGS += $(addprefix -Wl$(comma)--wrap=,dlopen dlerror dlsym)
# Opens the emulators instead of cuDNN, cuBLASLt and NCCL (tests/support/cuda_emulator/vendor_open.c).
CUDA_WRAP      := -Wl,--wrap=farm_cuda_vendor_open,--wrap=farm_cuda_vendor_describe,--wrap=farm_cuda_nccl_open
$(filter $(BUILD)/tests/learner/cuda/%,$(CUDA_TESTS)): private LDFLAGS += $(CUDA_WRAP)
# The kernels' tests of a GPU (tests/gpu) over the emulator: tests/kernels/cuda/test_kernels.sh runs them.
KERNELS_ON_CPU := $(BUILD)/tests/gpu/test_kernels
KERNELS_OBJECTS := $(patsubst %,$(BUILD)/obj/emulator/%.o,$(filter-out %/litmus.cu,$(wildcard tests/gpu/*.cu))) \
                  $(CUDA_EMULATOR) $(CUDA_C_OBJECTS)
# For tests/kernels/cuda/test_mutants.py, which builds it with a changed kernel.
KERNELS_BUILD   := KERNELS_CXX='$(KERNELS_CXX)' KERNELS_OBJECTS='$(strip $(KERNELS_OBJECTS))' KERNELS_LIBS='$(LIBFARM) $(FARM_LIBS)'
$(KERNELS_ON_CPU): private LDFLAGS += $(CUDA_WRAP)
$(KERNELS_ON_CPU): $(KERNELS_OBJECTS) $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)
.PHONY: run-kernel-mutants
run-kernel-mutants: $(KERNELS_ON_CPU)
	@FARM_MUTANTS=all FARM_BUILD=$(abspath $(BUILD)) $(KERNELS_BUILD) $(BUILD)/venv/bin/python -u tests/kernels/cuda/test_mutants.py
build-tests build-c-tests: $(if $(CUDA_INCLUDE),$(if $(filter tests/kernels/cuda/%,$(SCRIPT_TESTS)),$(KERNELS_ON_CPU)))
# The CUDA backend over the emulators, for `farm train --device cuda` in tests; never installed.
CUDA_MAP       := src/learner/cuda/exports.map
CUDA_EMULATED := $(if $(CUDA_INCLUDE),$(BUILD)/tests/tools/libfarm_cuda_emulator.so)
$(BUILD)/tests/tools/libfarm_cuda_emulator.so: $(CUDA_C_OBJECTS) $(CUDA_EMULATOR) $(LIBFARM) $(CUDA_MAP)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared $(LDFLAGS) $(CUDA_WRAP) -Wl,--exclude-libs,ALL,--version-script=$(CUDA_MAP),-z,defs $(filter %.o,$^) $(LIBFARM) $(FARM_LIBS) -o $@
build-tests: $(if $(filter tests/tools/test_cuda% tests/tools/test_elastic% tests/kernels/cuda/%,$(SCRIPT_TESTS)),$(CUDA_EMULATED))

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
$(BUILD)/tests/envs/test_libenv: | $(BUILD)/envs/libenv.so $(BUILD)/envs/procgen.so $(BUILD)/tests/envs/libenv_fixture.so

# Both programs over one mapping a segment.
$(BUILD)/tests/learner/test_threads: private LDFLAGS += -Wl,--wrap=farm_place_map,--wrap=munmap

.PHONY: build-tests run-tests build-c-tests run-c-tests build-fuzz
build-tests: $(if $(T),$(FARM) env-plugins python-extension $(if $(filter tests/gpu/% tests/build/%,$(TESTS)),cuda),all) $(C_TESTS)
build-c-tests: $(FARM) $(C_TESTS)
build-tests: $(if $(filter tests/build/%,$(SCRIPT_TESTS)),$(BUILD)/farm.pc $(BUILD)/man/farm.1)
build-tests: $(if $(filter tests/envs/test_procgen.py,$(SCRIPT_TESTS)),$(BUILD)/tests/envs/libenv_fixture.so)
build-tests: $(if $(filter tests/fuzz/%,$(SCRIPT_TESTS)),build-fuzz)
build-tests: $(if $(filter tests/build/test_aarch64.sh,$(SCRIPT_TESTS)),$(if $(shell command -v aarch64-linux-gnu-gcc),aarch64-programs))
build-fuzz:
	@tools/build/fuzz.sh build
build-tests build-c-tests:
	$(if $(CUDA_UNTESTED),@echo '  CUDA  headers missing$(comma) so not built: $(CUDA_UNTESTED) (make deps)')
run_tests = tools/build/run_tests.py --jobs $(TEST_JOBS) --build $(BUILD) \
            $(if $(TSAN),$(shell setarch -R true 2>/dev/null && echo '--wrap "setarch -R"'))
# These run again at instruction set levels below this CPU's best, to which oneDNN limits itself then.
ISA_TESTS  := $(filter $(addprefix $(BUILD)/tests/,nn/test_arithmetic nn/test_executor learner/test_learner learner/test_updates),$(C_TESTS))
cpu_has     = $(shell grep -qsw $1 /proc/cpuinfo && echo $1)
isa_levels  = $(if $(ONEDNN_MAX_CPU_ISA),,$(if $(call cpu_has,avx2),SSE41) $(if $(call cpu_has,avx512bw),AVX2) \
              $(if $(call cpu_has,avx512_vnni)$(call cpu_has,avx512_bf16),AVX512_CORE))
# These take longest, so they start first.
LONG_TESTS := $(addprefix tests/,tools/test_cuda.py tools/test_cli.py tools/test_python_envs.py tools/test_deterministic.py build/test_aarch64.sh \
              model/% kernels/cuda/% envs/test_mujoco.py tools/test_plugin.py python/test_ale% tools/test_farm_bw.py tools/test_fps.py \
              python/test_actor% bridge/two_nodes.sh tools/test_elastic.py build/test_install.sh envs/test_procgen.py chaos/% tools/test_usage.py \
              tools/test_report.py tools/test_doctor% tools/test_watchdog.py gpu/% bridge/test_kills.py)
run-tests:
	@$(KERNELS_BUILD) $(BUILD)/venv/bin/python $(run_tests) $(foreach t,$(LONG_TESTS),$(filter $t,$(SCRIPT_TESTS))) $(C_TESTS) $(filter-out $(LONG_TESTS),$(SCRIPT_TESTS)) \
		$(foreach l,$(isa_levels),$(foreach t,$(ISA_TESTS),--again ONEDNN_MAX_CPU_ISA=$l $t))
run-c-tests:
	@FARM_PYTHON=$(abspath $(BUILD)/../venv/bin/python) $(BUILD)/../venv/bin/python $(run_tests) $(C_TESTS) $(if $(findstring address,$(SANITIZE)),$(filter tests/tools/% tests/kernels/%,$(SCRIPT_TESTS)))

##@ Fuzzing: one executable a file tests/fuzz/fuzz_*.c, of clang and the sanitizers; tools/build/fuzz.sh calls this
FUZZ_SOURCES  := $(wildcard src/base/*.c src/shm/*.c src/ring/*.c src/board/*.c) src/learner/checkpoint.c src/replay/store.c src/intake/validator.c \
                 src/learner/backend.c src/kernels/head.c src/nn/net.c src/nn/net_text.c src/policy/describe.c src/policy/observation.c \
                 tests/fuzz/no_arithmetic.c src/config/recipe.c src/config/env_name.c $(wildcard src/algo/*.c) \
                 $(filter-out %/engine_uring.c %/measure.c,$(wildcard src/bridge/*.c)) \
                 src/run/offer.c $(addprefix src/envs/,registry.c python.c plugin.c probe.c) $(wildcard src/envs/native/*.c)
FUZZ_TARGETS  := $(patsubst tests/fuzz/%.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_LIBS     := -ljansson -lyaml -lnuma -lssl -lcrypto -lisal -llz4 -lpthread -lm -ldl

$(FUZZ_TARGETS) $(BUILD)/make_seeds: $(BUILD)/%: $(BUILD)/obj/tests/fuzz/%.o $(call object,$(FUZZ_SOURCES))
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) $(FUZZER) $(FUZZ_LIBS) -o $@
$(FUZZ_TARGETS): FUZZER = -fsanitize=fuzzer
.PHONY: fuzz-programs
fuzz-programs: $(FUZZ_TARGETS) $(BUILD)/make_seeds

##@ The chaos runner: own copies of ring, actor, intake, policy, learner, replay and the player with hooks at their stores, the rest from the library
CHAOS_SOURCES := $(filter src/ring/% src/actor/% src/intake/% src/policy/% src/learner/% src/replay/% src/run/player.c,$(SOURCES)) \
                 $(filter-out tests/chaos/main.c tests/chaos/test_%,$(wildcard tests/chaos/*.c))
CHAOS_OBJECTS := $(CHAOS_SOURCES:%.c=$(BUILD)/obj/chaos/%.o)

$(BUILD)/obj/chaos/%.o: %.c $(BUILD)/flags | $(BUILD)/gen/farm_build.h
	$(call say,CC,'$< with hooks')
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -Itests/chaos/hooked $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/chaos: $(call object,tests/chaos/main.c) $(CHAOS_OBJECTS) $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)
$(BUILD)/tests/chaos/test_chaos $(BUILD)/tests/chaos/test_paused: $(CHAOS_OBJECTS)
build-tests: $(if $(filter tests/chaos/%,$(SCRIPT_TESTS)),$(BUILD)/chaos)
