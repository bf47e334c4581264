##@ Lint: each rule alone is a target too
LINTS := lint-format lint-cppcheck lint-tidy lint-folders lint-docs lint-english lint-python aarch64
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
	$(call say,LINT,'folder rule (which may include which)')
	@$(PYTHON) tools/build/check_includes.py .

lint-docs:
	$(call say,LINT,'links in documents$(comma) paths of one machine')
	@$(PYTHON) tools/build/check_docs.py .

# Leaks and dead stores. The trials of farm doctor (checks.c) free by the end of their process.
TIDY_CHECKS := -*,clang-analyzer-unix.*,clang-analyzer-deadcode.*
lint-tidy:
	$(call say,LINT,clang-tidy)
	@$(MAKE) compile-commands
	@tools/build/sources.sh c | grep -E '^(src|tools)/' | grep -vE '/cuda/|^src/envs/.*/|^tools/doctor/checks.c' | \
		xargs -P "$$(nproc)" -n 8 clang-tidy --quiet -p $(BUILD) --checks='$(TIDY_CHECKS)' --warnings-as-errors='*' 2>$(BUILD)/tidy.log || \
		{ grep -v 'warnings\? generated' $(BUILD)/tidy.log >&2; exit 1; }

lint-english:
	$(call say,LINT,'idioms (CONTRIBUTING.md: English)')
	@$(PYTHON) tools/build/check_english.py .

# The types of the package as it is built; _consumer's are nanobind's stubs.
lint-python:
	$(call say,LINT,mypy)
	@[ -x $(BUILD)/venv/bin/mypy ] && [ -f $(PYTHON_PACKAGE)/_consumer.pyi ] || { echo '  LINT  mypy or _consumer is missing (make deps$(comma) make): NOT CHECKED'; exit 0; }; \
		root=$$PWD && cd $(BUILD)/python && $(abspath $(BUILD))/venv/bin/python -m mypy --no-error-summary --config-file $$root/pyproject.toml -p actorfarm

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
CROSS_PROGRAMS := $(patsubst %.c,$(BUILD)/aarch64/%,$(filter-out %/test_faults.c %/test_paths.c %/test_confine.c,$(wildcard $(CROSS_PARTS:%=tests/%/test_*.c))))
$(BUILD)/aarch64/tests/%.o: private CPPFLAGS += -Itests/support/criterion_minimal
$(BUILD)/aarch64/tests/%.o: private CFLAGS += -O1 -g0
$(CROSS_PROGRAMS): %: %.o $(CROSS_TESTED)
	$(Q)$(CROSS_CC) -static $^ -lpthread -lm -o $@
.PHONY: aarch64-programs
aarch64-programs: $(CROSS_PROGRAMS)
