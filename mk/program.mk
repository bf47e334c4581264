# libfarm.a, the program `farm`, and the Python extension.

##@ The library
# Protocol buffers, by protobuf-c.
PROTO_C  := $(patsubst src/%.proto,$(BUILD)/gen/%.pb-c.c,$(wildcard src/*/*.proto))
FOLDERS  := base config topo shm ring board kernels kernels/cpu bw nn algo replay intake policy envs envs/native actor learner learner/cpu supervisor report run bridge view
SOURCES  := $(wildcard $(FOLDERS:%=src/%/*.c)) $(if $(COVERAGE),tests/support/coverage.c)
ifneq ($(TARGET_CPU),x86_64)
SOURCES  := $(filter-out %_avx2.c %_avx512.c,$(SOURCES))
endif
# The bridge's engine of io_uring, or what says that this build has none.
SOURCES  := $(filter-out src/bridge/engine_uring$(if $(URING_LIBS),_none).c,$(SOURCES)) $(PROTO_C)
LIBFARM  := $(BUILD)/libfarm.a
FARM_LIBS := -lhwloc -lnuma -ldnnl -lgomp -ljansson -lyaml -lssl -lcrypto -lisal -llz4 -lprotobuf-c $(URING_LIBS) -lpthread -lm -ldl
HEAP     := $(if $(SANITIZE),,$(JEMALLOC_LIBS))
object    = $(patsubst %.c,$(BUILD)/obj/%.o,$1)

$(PROTO_C): $(BUILD)/gen/%.pb-c.c: src/%.proto
	$(call say,PROTO,$<)
	$(Q)mkdir -p $(@D)
	$(Q)protoc-c --proto_path=src --c_out=$(BUILD)/gen $<
$(BUILD)/obj/src/report/tensorboard.o $(BUILD)/aarch64/src/report/tensorboard.o compile-commands: $(PROTO_C)

$(LIBFARM): $(call object,$(SOURCES)) $(BUILD)/flags
	$(call say,AR,$@)
	$(Q)rm -f $@
	$(Q)$(AR) rcsD $@ $(filter %.o,$^)

$(BUILD)/obj/%.o: %.c $(BUILD)/flags | $(BUILD)/gen/farm_build.h
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(call file_flags,$<) $(call coverage_flags,$<) $(if $(filter tests/%,$<),$(TEST_CPPFLAGS)) -MMD -MP -c $< -o $@

link = $(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) $(filter %.o,$^) $(LIBFARM) $(HEAP) $1 $(FARM_LIBS) -o $@

##@ The program
TOOL_SOURCES := $(wildcard tools/*.c tools/*/*.c)
FARM := $(BUILD)/farm

$(BUILD)/farm: $(call object,$(TOOL_SOURCES)) $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)

##@ Python extension: build/python/actorfarm, made if there is a Python with headers
PYTHON_PACKAGE := $(BUILD)/python/actorfarm
PY_MODULES     := $(patsubst python/%,$(BUILD)/python/%,$(wildcard python/actorfarm/*.py))
PY_OBJECTS     := $(call object,$(wildcard python/_farm/*.c))
PY_EXTENSION   := $(if $(PY_INCLUDE),$(PYTHON_PACKAGE)/_farm$(PY_EXT_SUFFIX))

# The version of the stable ABI, as in PY_LIMITED_API (a wheel's).
PY_LIMITED     ?=
$(PY_OBJECTS): private CPPFLAGS += -isystem $(PY_INCLUDE) $(if $(PY_LIMITED),-DPy_LIMITED_API=$(PY_LIMITED))
$(PY_OBJECTS): private CFLAGS += -fvisibility=hidden
# Neither jemalloc nor the library's own names may leak into the interpreter.
$(PYTHON_PACKAGE)/_farm$(PY_EXT_SUFFIX): $(PY_OBJECTS) $(LIBFARM)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && rm -f $(@D)/_farm.*.so
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,--exclude-libs,ALL $(PY_OBJECTS) $(LIBFARM) $(FARM_LIBS) -o $@
$(BUILD)/python/actorfarm/%.py: python/actorfarm/%.py
	$(call say,COPY,$@)
	$(Q)mkdir -p $(@D) && cp $< $@
$(FARM): | $(PY_MODULES) # `farm plot` without `make all`

# actorfarm._consumer, and the stubs that nanobind makes of it: if there are nanobind (build/venv) and a C++ compiler.
CONSUMER_OBJECTS := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(wildcard python/_consumer/*.cpp))
CONSUMER := $(if $(and $(PY_INCLUDE),$(NANOBIND),$(shell command -v $(CXX))),$(PYTHON_PACKAGE)/_consumer$(PY_EXT_SUFFIX))
CXXFLAGS += $(filter-out -std=% -Wshadow -Wstrict-prototypes -Wmissing-prototypes,$(CFLAGS)) -std=c++17 -fvisibility=hidden -fno-strict-aliasing
BINDINGS := -isystem $(PY_INCLUDE) -isystem $(NANOBIND)/include -isystem $(NANOBIND)/ext/robin_map/include $(if $(PY_LIMITED),-DPy_LIMITED_API=$(PY_LIMITED)) $(if $(PY_THREADED),-DNB_FREE_THREADED)

$(CONSUMER_OBJECTS): $(BUILD)/obj/%.o: %.cpp $(BUILD)/flags $(BUILD)/python.mk
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(CPPFLAGS) $(BINDINGS) $(CXXFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/obj/python/nanobind.o: $(BUILD)/flags $(BUILD)/python.mk
	$(call say,CXX,nanobind)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(BINDINGS) $(CXXFLAGS) -g0 -w -DNDEBUG -DNB_COMPACT_ASSERTIONS -ffunction-sections -fdata-sections -c $(NANOBIND)/src/nb_combined.cpp -o $@
$(CONSUMER): $(CONSUMER_OBJECTS) $(BUILD)/obj/python/nanobind.o $(LIBFARM)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && rm -f $(@D)/_consumer.*
	$(Q)$(CXX) -shared $(LDFLAGS) -Wl,--exclude-libs,ALL -Wl,--gc-sections $^ $(FARM_LIBS) -o $@
$(PYTHON_PACKAGE)/_consumer.pyi: $(CONSUMER) | $(PY_EXTENSION) $(PY_MODULES)
	$(Q)$(PY_COMMAND) -m nanobind.stubgen -q -i $(BUILD)/python -m actorfarm._consumer -M $(@D)/py.typed -o $@

.PHONY: python-extension
python-extension: $(PY_EXTENSION) $(PY_MODULES) $(if $(CONSUMER),$(PYTHON_PACKAGE)/_consumer.pyi)
	$(if $(CONSUMER),,@echo '  CXX   nanobind or a C++ compiler is missing$(comma) so not built: actorfarm._consumer (make deps)')

# What `make install` installs. `farm` itself prints the text of its manual pages.
.PHONY: installables
installables: $(LIBFARM) $(FARM) $(BUILD)/farm.pc $(BUILD)/man/farm.1 env-plugins python-extension $(if $(NVCC),cuda)
$(BUILD)/man/farm.1: tools/build/man.sh $(FARM)
	$(call say,MAN,$(@D))
	$(Q)tools/build/man.sh $(FARM) $(@D)

# For programs that use libfarm; install.sh fills in the prefix.
$(BUILD)/farm.pc: mk/program.mk $(BUILD)/config.mk
	$(Q)printf '%s\n' 'prefix=@PREFIX@' 'Name: farm' 'Description: reinforcement-learning actors and their learner over shared memory' \
		'Version: 0' 'Cflags: -I$${prefix}/include' 'Libs: -L$${prefix}/lib -lfarm $(FARM_LIBS)' >$@
