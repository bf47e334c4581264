##@ Wheels: tools/wheel/wheel.sh starts pip, pip starts scikit-build-core, this starts `make wheel-stage` here (tools/wheel/CMakeLists.txt)
# Interpreters with headers; from 3.12 on one wheel serves all.
WHEEL_PYTHONS ?= $(PYTHON)
wheel: ## wheels for WHEEL_PYTHONS="python3.10 python3.11 python3.12", with all libraries: build/wheel/dist
	@tools/build/deps.sh build
	@tools/wheel/wheel.sh build $(WHEEL_PYTHONS)

wheel-check: wheel ## builds them, installs each in an empty virtual environment, and uses it
	@tools/wheel/wheel.sh check $(WHEEL_PYTHONS)

# The package for PYTHON in the folder STAGE, with bin, lib, share and include as below a PREFIX. STABLE=3.12: of this
# stable ABI. All Pythons share one build. The wheel `mujoco` and Gymnasium lie beside the package.
WHEEL_BUILD := build/wheel/make
python_says  = $(shell $(PYTHON) -c 'import os, importlib.util as u; print($1)')
wheel_flags  = BUILD=$(WHEEL_BUILD) $(if $(STABLE),PY_EXT_SUFFIX=.abi3.so PY_LIMITED=$(call python_says,"0x%02x%02x0000" % ($(subst .,$(comma),$(STABLE))))) \
    SITE_PACKAGES=$(call python_says,os.path.dirname(u.find_spec("mujoco").submodule_search_locations[0])) \
    MUJOCO_ASSETS=../../../../gymnasium/envs/mujoco/assets MUJOCO_RPATH='$$$$ORIGIN/../../../../mujoco'
wheel-stage:
	@rm -rf $(WHEEL_BUILD)/{obj/python,python,python.mk,envs} # another Python's
	@$(MAKE) $(parallel) $(wheel_flags) $(WHEEL_BUILD)/farm env-plugins python-extension
	@rm -rf $(STAGE) && mkdir -p $(STAGE)/{share/farm,include,licenses}
	@install -D -t $(STAGE)/bin $(WHEEL_BUILD)/farm && install -D -t $(STAGE)/lib/farm/envs $(WHEEL_BUILD)/envs/*.so
	@cp -r $(WHEEL_BUILD)/python/actorfarm/. $(STAGE) && cp -r recipes $(STAGE)/share/farm && cp -r include/farm $(STAGE)/include
# Licences of the libraries that auditwheel adds, as Debian has them.
	@ldd $(WHEEL_BUILD)/farm | awk '$$3 ~ /^\// { print $$3 }' | while read -r library; do \
		package=$$(dpkg-query -S "$$(realpath "$$library")" "$$library" 2>/dev/null | head -n 1 | cut -d: -f1) || true; \
		[ ! -f "/usr/share/doc/$$package/copyright" ] || cp "/usr/share/doc/$$package/copyright" "$(STAGE)/licenses/$$package"; done
