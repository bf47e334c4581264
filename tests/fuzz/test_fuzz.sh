#!/bin/bash
# Every fuzz target survives its corpus and a short time of new inputs; `make fuzz` gives them long ones.
set -eu
cd "${FARM_SOURCE:-$PWD}"
exec tools/build/fuzz.sh test
