#!/bin/bash
# The C tests that need no foreign library pass on AArch64, emulated.
set -eu
cd "${FARM_SOURCE:-$PWD}"
exec tools/build/aarch64_test.sh
