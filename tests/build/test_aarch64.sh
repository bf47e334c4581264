#!/bin/bash
# The C tests without foreign libraries pass on emulated AArch64.
set -eu
cd "${FARM_SOURCE:-$PWD}"
exec tools/build/aarch64_test.sh
