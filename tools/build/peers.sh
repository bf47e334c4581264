#!/bin/bash
# Runs the comparisons with other people's systems and prints one table of them.
# usage: peers.sh [NAME...]   a comparison (bench/peers/NAME.py) or a peer (tools/build/peers/NAME-requirements.txt);
#                             none: all
# $ARGS goes to each comparison ("--seconds 20"), $RESULTS is a file that keeps the documents as one list. A comparison
# names its peer in a line "# peer: NAME"; each peer has pinned packages in a virtual environment of its own,
# $BUILD/peers/NAME, because their needs clash. It is made on first use, by this script alone.
# Exit status 1 where a comparison failed; the others run all the same.
set -eu
build=${BUILD:-build}
here=$(dirname "$0")
read -ra args <<<"${ARGS:-}"

peer_of() { sed -n 's/^# peer: *//p;10q' "$1"; }
said() { sed -n "s/^# $2: *//p" "$here/peers/$1-requirements.txt"; } # what the peer's list says of itself

list() {
    local script
    for script in bench/peers/*.py; do
        [ -z "$(peer_of "$script")" ] || printf '%s %s\n' "$(basename "$script" .py)" "$(peer_of "$script")"
    done
}

# Makes the peer's environment, where it is not there as it should be.
install() {
    local peer=$1 venv=$build/peers/$1 below python options=() stamp
    local requirements=$here/peers/$peer-requirements.txt
    below=$(said "$peer" 'on top of')
    [ -z "$below" ] || install "$below" || return 1
    stamp=$(grep -v '^#' "$requirements" | sha256sum)
    [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ] || return 0

    python=$("$here/venv.sh" --find) || return 1
    echo "  VENV  $venv ($(said "$peer" size) on disk; once)"
    rm -rf "$venv"
    mkdir -p "$venv"
    "$python" -m venv "$venv" || return 1
    if [ -n "$below" ]; then # after its own packages, so that these win
        "$build/peers/$below/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
            >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_$below.pth"
    fi
    [ -z "$(said "$peer" complete)" ] || options+=(--no-deps)
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input -q "${options[@]}" -r "$requirements" \
        >"$venv/pip.log" 2>&1 </dev/null; then
        tail -n 8 "$venv/pip.log" >&2
        echo "bench-peers: pip could not fetch these with $("$python" -V) (PyPI has to be reachable):" >&2
        grep -v '^ *\(#\|$\)' "$requirements" | sed 's/^/    /' >&2
        return 1
    fi
    echo "$stamp" >"$venv/stamp"
}

chosen=()
for name in "$@"; do
    mapfile -t found < <(list | awk -v name="$name" '$1 == name || $2 == name { print $1 }')
    if [ ${#found[@]} -eq 0 ]; then
        echo "bench-peers: no '$name'; there are (comparison, peer):" >&2
        list | sed 's/^/    /' >&2
        exit 2
    fi
    chosen+=("${found[@]}")
done
[ $# -gt 0 ] || mapfile -t chosen < <(list | awk '{ print $1 }')

status=0 documents=()
mkdir -p "$build/peers/results"
for name in "${chosen[@]}"; do
    peer=$(peer_of "bench/peers/$name.py")
    document=$build/peers/results/$name.json
    rm -f "$document"
    echo "  PEER  $name"
    if ! { install "$peer" &&
        "$build/peers/$peer/bin/python" "bench/peers/$name.py" "$build" --json "$document" "${args[@]}"; }; then
        echo "FAILED $name" >&2
        status=1
    fi
    [ ! -s "$document" ] || documents+=("$document")
done
if [ ${#documents[@]} -eq 0 ]; then
    echo "bench-peers: no result" >&2
    exit 1
fi
"${PYTHON:-python3}" bench/peers/table.py ${RESULTS:+--results "$RESULTS"} "${documents[@]}"
exit $status
