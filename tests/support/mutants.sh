# For tests that break a line at a time of copies and want each fault found; sourced. They define `mutants`, a line each
# of "name | file | Perl expression over the whole file", and `chosen`, the words that a name must hold ('' takes all);
# and end with mutants_end. `found` and `missed` are theirs to count in.
found=0 missed=()

# Calls FUNCTION name file expression for each that is chosen.
each_mutant() { # function
    local name file expression
    while IFS='|' read -r name file expression; do
        [ -n "$name" ] || continue
        read -r name <<<"$name"
        read -r file <<<"$file"
        [[ $name != *"$chosen"* ]] || "$1" "$name" "$file" "$expression"
    done <<<"$mutants"
}

# What has been found, `of what` and `by whom`; the exit status says whether that is all.
mutants_end() { # of what, by whom
    echo "covered: $found of $((found + ${#missed[@]})) $1 are found $2"
    [ ${#missed[@]} = 0 ] || printf 'MISSED: %s\n' "${missed[@]}"
    [ "$found" -gt 0 ] || echo "no mutant is found that is called $chosen"
    [ ${#missed[@]} = 0 ] && [ "$found" -gt 0 ]
}
