##@ CUDA: a shared object that the learner opens on demand, made where nvcc is, and a test that a GPU runs
# Machine code for each architecture, and PTX of the newest, which drivers compile for what comes after it.
CUDA_ARCHES  := 80 90 100 120
CUDA_NEWEST  := $(lastword $(CUDA_ARCHES))
CUDA_SOURCES := $(if $(SANITIZE),,$(wildcard src/*/cuda/*.cu))
CUDA_OBJECTS := $(patsubst %.cu,$(BUILD)/obj/%.cu.o,$(CUDA_SOURCES))
NVCC_FLAGS   := -std=c++17 -O3 -lineinfo -Werror all-warnings -Xcompiler -fPIC,-Wall,-Wextra,$(subst $( ) ,$(comma),$(strip $(HARDEN))) -Iinclude -Isrc -I. -I$(BUILD)/gen
CUDA_LINK    := $(subst -Wl$(comma),-Xlinker ,$(HARDEN_LINK))
CUDA_CODE    := $(foreach a,$(CUDA_ARCHES),-gencode arch=compute_$a,code=sm_$a) \
                -gencode arch=compute_$(CUDA_NEWEST),code=compute_$(CUDA_NEWEST)
# tests/gpu: mostly host code over the kernels' objects, linked so that a machine needs the driver and nothing else of CUDA's.
GPU_SOURCES  := $(if $(CUDA_SOURCES),$(filter-out %/litmus.cu,$(wildcard tests/gpu/*.cu)))
GPU_OBJECTS  := $(patsubst %.cu,$(BUILD)/obj/%.cu.o,$(GPU_SOURCES))
ifneq ($(NVCC),)
CUDA_LIBRARY := $(if $(CUDA_SOURCES),$(BUILD)/libfarm_cuda.so)
GPU_TEST     := $(if $(GPU_SOURCES),$(addprefix $(BUILD)/gpu/,test_kernels test_executor litmus round_trip update))
endif

$(BUILD)/nvcc_flags: force
	@mkdir -p $(@D)
	@printf '%s\n' '$(NVCC) $(NVCC_FLAGS) $(CUDA_CODE)' | cmp -s - $@ || printf '%s\n' '$(NVCC) $(NVCC_FLAGS) $(CUDA_CODE)' >$@
$(CUDA_OBJECTS) $(BUILD)/obj/tests/gpu/litmus.cu.o: private NVCC_FLAGS += $(CUDA_CODE)
$(CUDA_OBJECTS) $(GPU_OBJECTS) $(BUILD)/obj/tests/gpu/litmus.cu.o: $(BUILD)/obj/%.cu.o: %.cu $(BUILD)/nvcc_flags | $(BUILD)/gen/farm_build.h
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/libfarm_cuda.so: $(CUDA_OBJECTS) $(CUDA_C_OBJECTS) $(LIBFARM) $(CUDA_MAP)
	$(call say,LINK,$@)
	$(Q)$(NVCC) -shared $(CUDA_LINK) -nodlink -cudart static -Xcompiler -static-libgcc,-static-libstdc++ \
		-Xlinker --exclude-libs,ALL,--version-script=$(CUDA_MAP),-z,defs $(filter %.o,$^) $(LIBFARM) -o $@
GPU_EXECUTOR := $(filter $(addprefix $(BUILD)/obj/src/,algo/% kernels/% nn/%),$(CUDA_OBJECTS) $(CUDA_C_OBJECTS))
$(BUILD)/gpu/test_kernels: $(GPU_OBJECTS)
$(BUILD)/gpu/test_executor: $(BUILD)/obj/tests/gpu/executor.o
$(BUILD)/obj/tests/gpu/executor.o: private CPPFLAGS += -isystem $(CUDA_INCLUDE) -Itests/support/criterion_minimal
$(BUILD)/gpu/litmus: $(addprefix $(BUILD)/obj/tests/gpu/,litmus.cu.o support.cu.o)
# test_executor also runs the CPU's executor, with oneDNN's library.
$(BUILD)/gpu/test_executor: private GPU_LIBS := -Xlinker --as-needed $(FARM_LIBS)
$(addprefix $(BUILD)/gpu/,test_kernels test_executor litmus): $(GPU_EXECUTOR) $(LIBFARM)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(CUDA_LINK) -nodlink -cudart static $(or $(GPU_LIBS),-Xcompiler -static-libgcc$(comma)-static-libstdc++) $(filter %.o,$^) $(LIBFARM) $(GPU_LIBS) -o $@
$(BUILD)/gpu/round_trip $(BUILD)/gpu/update: $(BUILD)/gpu/%: $(BUILD)/obj/bench/gpu/%.o $(LIBFARM)
	$(call say,LINK,$@)
	$(call link)
# The Debian libraries of farm and of these programs, for a machine that lacks them: LD_LIBRARY_PATH=build/gpu/lib.
$(BUILD)/gpu/lib: $(FARM) $(addprefix $(BUILD)/gpu/,round_trip test_executor)
	$(call say,COPY,$@)
	$(Q)rm -rf $@ && mkdir -p $@
	$(Q)ldd $^ | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sort -u | grep -Ev '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' | xargs -I{} cp -L {} $@
.PHONY: cuda cuda-carry
cuda-carry: cuda $(BUILD)/gpu/lib $(BUILD)/bench/ring $(BUILD)/bench/learner ## build/carry.tar.xz: what tests/gpu/check.sh needs on a machine that has a GPU and nothing else
	$(call say,TAR,$(BUILD)/carry.tar.xz)
	$(Q)BUILD=$(BUILD) tests/gpu/check.sh carry
cuda: $(CUDA_LIBRARY) $(GPU_TEST)
	$(if $(CUDA_SOURCES),$(if $(NVCC),,@echo '  NVCC  not found yet, so: no CUDA backend (make deps looks for it)'))
