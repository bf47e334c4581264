# Benchmarks.

##@ Benchmarks: one executable a file; bench/common*.c are linked into each
BENCH_COMMON := $(call object,$(wildcard bench/common*.c))
BENCHES      := $(patsubst bench/%.c,$(BUILD)/bench/%,$(filter-out bench/common%.c,$(wildcard bench/*.c)))

BENCH_SCRIPTS := $(BUILD)/bench/fps $(BUILD)/bench/inference
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
$(BUILD)/bench/board: $(call object,$(wildcard bench/board/*.c) bench/bridge/host.c)
$(BENCHES): $(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BENCH_COMMON) $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)
