#!/bin/bash
# Prints the project's files with one of the given endings: sources.sh c h cu. In a checkout: files that git tracks or
# would track; elsewhere all files outside build/.
set -eu
patterns=("${@/#/*.}")
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -co --exclude-standard -- "${patterns[@]}" | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
else
    for pattern in "${patterns[@]}"; do
        find . -path ./build -prune -o -type f -name "$pattern" -print | sed 's,^\./,,'
    done
fi | sort
