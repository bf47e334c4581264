#!/bin/bash
# Prints the project's own files with one of the given endings, one a line: sources.sh c h cu. In a checkout: what
# git tracks or would track; elsewhere what lies there, build/ excepted.
set -eu
patterns=("${@/#/*.}")
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -co --exclude-standard -- "${patterns[@]}" | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
else
    for pattern in "${patterns[@]}"; do
        find . -path ./build -prune -o -type f -name "$pattern" -print | sed 's,^\./,,'
    done
fi | sort
