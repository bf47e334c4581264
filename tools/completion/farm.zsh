#compdef farm
# zsh completion of `farm`: commands, flags and choices as `farm --help` and `farm COMMAND --help` print them,
# environments as `farm envs` does (once per shell: it starts Python). Runs the `farm` of PATH, whatever path the line
# names, and nothing of the current folder: "." and empty folders of PATH are left out.
local -x PATH=${(j.:.)${(M)path:#/*}}:/usr/bin:/bin
local farm=$(whence -p farm)
[[ $farm == /* ]] || return
local flag=$words[CURRENT-1] help choices
local -a found
if (( CURRENT == 2 )); then
    found=(${(f)"$($farm --help | awk '/^commands:/ { on = 1; next } !NF { on = 0 }
        on { name = $1; sub(/^ *[^ ]* */, ""); print name ":" $0 }')"})
    _describe command found
    return
fi
help=$($farm $words[2] --help 2>/dev/null)
if [[ $PREFIX == -* ]]; then
    found=(${(f)"$(sed -n 's/:/\\:/g; s/^  \(--*[a-z0-9.-]*\) *\(.*\)/\1:\2/p' <<<$help)"})
    _describe flag found
elif [[ $flag == --env ]]; then
    (( $+_farm_envs )) || _farm_envs=(${(f)"$($farm envs --json | grep -o '"[^" ]*/[^" ]*"' | tr -d '"' | sort -u)"})
    compadd -a _farm_envs
elif choices=$(sed -n "s/^  $flag .*(\([^() ]*|[^() ]*\)).*/\1/p" <<<$help) && [[ -n $choices ]]; then
    compadd ${(s:|:)choices}
else
    _files
fi
