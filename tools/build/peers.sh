#!/bin/bash
# Runs the comparisons with other systems and prints one table.
# usage: peers.sh [NAME...]   a comparison (bench/peers/NAME.py) or a peer (tools/build/peers/NAME-requirements.txt);
#                             without names: all
#        peers.sh --install PEER   makes the peer's environment if necessary and prints its Python
# $ARGS goes to each comparison ("--seconds 20"); $RESULTS is a folder that keeps the documents (FOLDER/peers.jsonl). A
# comparison names its peer in a line "# peer: NAME". Each peer has pinned packages in its own virtual environment,
# $BUILD/peers/NAME, because their requirements conflict. This script makes it on first use.
# A comparison with peers from Debian has one or both of these lines instead and runs with the system's Python:
#   # packages: likwid libzmq3-dev g++     installed with apt-get if missing (deps.sh --packages)
#   # sources: numactl                     source packages, unpacked into $BUILD/peers/debian/numactl/ without Debian's
#                                          patches
# It builds its programs itself, in $BUILD/peers/debian (its first argument is $BUILD).
# Exit status 1 if a comparison failed; the others still run.
set -eu
build=${BUILD:-build}
here=$(dirname "$0")
read -ra args <<<"${ARGS:-}"

read_header() { sed -n "s/^# $2: *//p;10q" "$1"; } # a line in the header of a comparison
peer_of() { # "debian": the system's Python and Debian's packages
    local peer
    peer=$(read_header "$1" peer)
    [ -n "$peer" ] || [ -z "$(read_header "$1" packages)$(read_header "$1" sources)" ] || peer=debian
    echo "$peer"
}
read_property() { sed -n "s/^# $2: *//p" "$here/peers/$1-requirements.txt"; } # a line of the peer's requirements

list() {
    local script
    for script in bench/peers/*.py; do
        [ -z "$(peer_of "$script")" ] || printf '%s %s\n' "$(basename "$script" .py)" "$(peer_of "$script")"
    done
}

# Makes the peer's environment, unless it is up to date.
install_peer() {
    local peer=$1 venv=$build/peers/$1 below python options=() stamp
    local requirements=$here/peers/$peer-requirements.txt
    below=$(read_property "$peer" 'on top of')
    [ -z "$below" ] || install_peer "$below" || return 1
    stamp=$(grep -v '^#' "$requirements" | sha256sum)
    [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ] || return 0

    python=$("$here/venv.sh" --find) || return 1
    echo "  VENV  $venv ($(read_property "$peer" size) on disk; once)"
    rm -rf "$venv"
    mkdir -p "$venv"
    "$python" -m venv "$venv" || return 1
    if [ -n "$below" ]; then # after its own packages, which take precedence
        "$build/peers/$below/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
            >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_$below.pth"
    fi
    [ -z "$(read_property "$peer" complete)" ] || options+=(--no-deps)
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input -q "${options[@]}" -r "$requirements" \
        >"$venv/pip.log" 2>&1 </dev/null; then
        tail -n 8 "$venv/pip.log" >&2
        echo "bench-peers: pip could not fetch these with $("$python" -V) (PyPI must be reachable):" >&2
        grep -v '^ *\(#\|$\)' "$requirements" | sed 's/^/    /' >&2
        return 1
    fi
    echo "$stamp" >"$venv/stamp"
}

# Fetches Debian's source packages from this system's sources, with separate lists and settings for apt.
unpack_sources() {
    local to=$build/peers/debian apt=$build/peers/debian/apt name file options missing=()
    for name in "$@"; do
        [ -d "$to/$name" ] || missing+=("$name")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    mkdir -p "$apt/lists/partial" "$apt/cache" "$apt/sources.d"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        [ ! -f "$file" ] || sed -e 's/^Types:.*/Types: deb-src/' -e 's/^deb /deb-src /' "$file" >"$apt/sources.d/$(basename "$file")"
    done
    apt=$(realpath "$apt")
    options=(-q -o Dir::Etc::SourceList=- -o "Dir::Etc::SourceParts=$apt/sources.d" -o "Dir::State::Lists=$apt/lists"
        -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=)
    apt-get "${options[@]}" update >"$apt/log" 2>&1 || true # some sources have no source packages
    for name in "${missing[@]}"; do
        rm -rf "${apt:?}/$name" && mkdir -p "$apt/$name" "$to/$name"
        if ! (cd "$apt/$name" && apt-get "${options[@]}" --tar-only --download-only source "$name" >>"$apt/log" 2>&1) ||
            ! tar -xf "$apt/$name"/*.tar.* -C "$to/$name" --strip-components=1; then
            rm -rf "${to:?}/$name"
            tail -n 8 "$apt/log" >&2
            echo "bench-peers: apt-get could not fetch the source package '$name' (its last lines are above)" >&2
            return 1
        fi
    done
}

# Prepares the comparison's peer and prints its Python.
prepare() {
    local script=$1 peer=$2 packages sources
    if [ "$peer" != debian ]; then
        install_peer "$peer" >&2 && echo "$build/peers/$peer/bin/python"
        return
    fi
    read -ra packages <<<"$(read_header "$script" packages)"
    read -ra sources <<<"$(read_header "$script" sources)"
    [ ${#packages[@]} -eq 0 ] || "$here/deps.sh" --packages "${packages[@]}" >&2 || return 1
    unpack_sources "${sources[@]}" >&2 || return 1
    "$here/venv.sh" --find
}

if [ "${1:-}" = --install ]; then
    install_peer "$2" >&2
    echo "$build/peers/$2/bin/python"
    exit 0
fi
chosen=()
for name in "$@"; do
    mapfile -t found < <(list | awk -v name="$name" '$1 == name || $2 == name { print $1 }')
    if [ ${#found[@]} -eq 0 ]; then
        echo "bench-peers: no '$name'; choose from (comparison, peer):" >&2
        list | sed 's/^/    /' >&2
        exit 2
    fi
    chosen+=("${found[@]}")
done
[ $# -gt 0 ] || mapfile -t chosen < <(list | awk '{ print $1 }')

status=0 documents=()
mkdir -p "$build/peers/results" ${RESULTS:+"$RESULTS"}
for name in "${chosen[@]}"; do
    peer=$(peer_of "bench/peers/$name.py")
    document=$build/peers/results/$name.json
    rm -f "$document"
    echo "  PEER  $name"
    if ! { python=$(prepare "bench/peers/$name.py" "$peer") &&
        "$python" "bench/peers/$name.py" "$build" --json "$document" "${args[@]}"; }; then
        echo "FAILED $name" >&2
        status=1
    fi
    [ ! -s "$document" ] || documents+=("$document")
done
if [ ${#documents[@]} -eq 0 ]; then
    echo "bench-peers: no result" >&2
    exit 1
fi
"${PYTHON:-python3}" tools/build/bench_table.py --documents ${RESULTS:+--results "$RESULTS"} "${documents[@]}"
exit $status
