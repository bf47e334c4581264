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
MUJOCO_RPATH   := $$ORIGIN/mujoco:$(dir $(MUJOCO_LIB))
ENV_LIBS_mujoco  := $(MUJOCO_LIB) -Wl,-z,nodelete -Wl,-rpath,'$(MUJOCO_RPATH)' -lpthread
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
