#!/bin/bash
# Manual pages with the text of --help: man.sh FARM FOLDER writes FOLDER/farm.1, farm-train.1, farm-bridge-bench.1, ...
set -eu
farm=$(realpath "$1")
folder=$2
rm -rf "$folder"
mkdir -p "$folder"

# The text is: the usage, up to an empty line; paragraphs; headings, above lines that are indented by two spaces, either
# "--flag VALUE" in 26 columns or more and its help, or words, two spaces and their meaning, or an example.
page() { # name, summary, other pages; stdin: the text
    awk -v name="$1" -v summary="$2" -v others="$3" -v version="$("$farm" --version)" '
function text(line) {
    gsub(/\\/, "\\e", line)
    gsub(/-/, "\\-", line)
    gsub(/"/, "\\(dq", line)
    return line ~ /^[.\047]/ ? "\\&" line : line
}
function keep_lines(wanted) {
    if (kept != wanted) print wanted ? ".nf" : ".fi"
    kept = wanted
}
function item(tag, meaning) {
    sub(/ +$/, "", tag)
    sub(/^ +/, "", meaning)
    keep_lines(0)
    printf ".TP\n.B %s\n%s\n", text(tag), text(meaning)
}
{ line[NR] = $0 }
END {
    printf ".TH %s 1 \"\" \"%s\" actorfarm\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", toupper(name), version, text(name), text(summary)
    keep_lines(1)
    for (i = 1; line[i] != ""; i++) print text(substr(line[i], 8))
    keep_lines(0)
    print ".SH DESCRIPTION"
    for (; i <= NR; i++) {
        rest = substr(line[i], 29)
        gap = match(substr(line[i], 3), /   */) ? RSTART + 2 : 0
        if (line[i] == "" && line[i + 1] ~ /^[a-z].*:/ && line[i + 2] ~ /^  [^ ]/) {
            keep_lines(0)
            heading = line[++i]
            sub(/:$/, "", heading)
            print ".SH " text(toupper(substr(heading, 1, 1)) substr(heading, 2))
        } else if (line[i] == "") {
            keep_lines(0)
            print ".PP"
        } else if (line[i] ~ /^  -/) {
            item(substr(line[i], 3, 25 + index(rest, " ")), substr(rest, index(rest, " ")))
        } else if (line[i] ~ /^  / && gap && heading != "examples") {
            item(substr(line[i], 3, gap - 2), substr(line[i], gap))
        } else {
            keep_lines(line[i] ~ /^  /)
            print text(line[i])
        }
    }
    keep_lines(0)
    printf ".SH SEE ALSO\n%s\n", text(others)
}' >"$folder/$1.1"
}

commands=$("$farm" --help | awk '/^commands:/ { on = 1; next } !NF { on = 0 } on { print $1 }')
# shellcheck disable=SC2086 # a line each
"$farm" --help | page farm "reinforcement-learning actors and their learner over shared memory" \
    "$(printf 'farm-%s(1), ' $commands | sed 's/, $//')"
for command in $commands; do
    help=$("$farm" "$command" --help)
    page "farm-$command" "$("$farm" --help | sed -n "s/^  $command  *//p")" "farm(1)" <<<"$help"
    # Words of its own: farm bridge keygen FILE.
    for word in $(sed -n "/^\$/q; s/.* farm $command \([a-z][a-z]*\) .*/\1/p" <<<"$help"); do
        page "farm-$command-$word" "$word, of farm $command" "farm-$command(1)" < <("$farm" "$command" "$word" --help)
    done
done
