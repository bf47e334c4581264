# bash completion of `farm`: commands, flags and choices as `farm --help` and `farm COMMAND --help` print them,
# environments as `farm envs` does (once per shell: it starts Python). Runs the `farm` of PATH, whatever path the line
# names, and nothing of the current folder: "." and empty folders of PATH are left out.
_farm() {
    local farm rest=$PATH: folders=
    while [ "$rest" ]; do
        [[ $rest != /* ]] || folders+=${rest%%:*}:
        rest=${rest#*:}
    done
    local PATH=$folders/usr/bin:/bin
    farm=$(type -P farm) || return
    local word=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]} help words
    if [ "$COMP_CWORD" = 1 ]; then
        words=$("$farm" --help | awk '/^commands:/ { on = 1; next } !NF { on = 0 } on { print $1 }')
        words+=$'\n--help\n--version'
    else
        help=$("$farm" "${COMP_WORDS[1]}" --help 2>/dev/null)
        case $flag in
        --env)
            [ -n "${_farm_envs-}" ] || _farm_envs=$("$farm" envs --json | grep -o '"[^" ]*/[^" ]*"' | tr -d '"' | sort -u)
            words=$_farm_envs
            ;;
        --*) words=$(sed -n "s/^  $flag .*(\([^() ]*|[^() ]*\)).*/\1/p" <<<"$help" | tr '|' '\n') ;;
        esac
        [[ $word != -* ]] || words=$(sed -n 's/^  \(--*[a-z0-9.-]*\).*/\1/p' <<<"$help")
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _farm farm
