#!/bin/sh
# check.py has the parts, what they need, and what they write: check.sh [SEED [PART...]]
exec python3 "$(dirname "$0")/check.py" "$@"
