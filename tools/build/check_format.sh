#!/bin/bash
# Fails if clang-format would change a source. Releases of clang-format differ in details, so another release than ours
# checks nothing and prints that.
set -eu
made_with=14
tool=$(command -v "clang-format-$made_with" || command -v clang-format)
version=$("$tool" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
if [ "$version" != "$made_with" ]; then
    echo "  LINT  clang-format $version is installed, the layout needs $made_with: NOT CHECKED"
    exit 0
fi
found=$("$(dirname "$0")/sources.sh" c h cpp hpp cu cuh | xargs -r "$tool" --dry-run -Werror --style=file 2>&1) && exit 0
grep -v ': error: code should be clang-formatted' <<<"$found" | grep ': error: ' >&2 || true
sed -n 's/^\([^:]*\):[0-9:]* error: code should be clang-formatted.*/\1/p' <<<"$found" | uniq -c |
    while read -r count file; do echo "$file: differs from clang-format at $count places; \`make format\` corrects them"; done
exit 1
