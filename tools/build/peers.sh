#!/bin/bash
# Runs the comparisons with other people's systems and prints one table of them.
# usage: peers.sh [NAME...]   a comparison (bench/peers/NAME.py) or a peer (tools/build/peers/NAME-requirements.txt);
#                             none: all
# $ARGS goes to each comparison ("--seconds 20"), $RESULTS is a folder that keeps the documents (FOLDER/peers.jsonl). A comparison
# names its peer in a line "# peer: NAME"; each peer has pinned packages in a virtual environment of its own,
# $BUILD/peers/NAME, because their needs clash. It is made on first use, by this script alone.
# A comparison with peers from Debian has one or both of these lines instead, and is run by the system's Python:
#   # packages: likwid libzmq3-dev g++     installed with apt-get where they are missing (deps.sh --packages)
#   # sources: numactl                     source packages, unpacked into $BUILD/peers/debian/numactl/ (upstream's,
#                                          without Debian's patches)
# It builds what it needs of them itself, in $BUILD/peers/debian (its first argument is $BUILD).
# Exit status 1 where a comparison failed; the others run all the same.
set -eu
build=${BUILD:-build}
here=$(dirname "$0")
read -ra args <<<"${ARGS:-}"

named_in() { sed -n "s/^# $2: *//p;10q" "$1"; } # a line at the head of a comparison
peer_of() { # "debian": the system's Python and Debian's packages
    local peer
    peer=$(named_in "$1" peer)
    [ -n "$peer" ] || [ -z "$(named_in "$1" packages)$(named_in "$1" sources)" ] || peer=debian
    echo "$peer"
}
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

# Debian's source packages, from where this system's packages come; apt's own lists and settings stay as they are.
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
    apt-get "${options[@]}" update >"$apt/log" 2>&1 || true # a source that has no source packages does not matter
    for name in "${missing[@]}"; do
        rm -rf "${apt:?}/$name" && mkdir -p "$apt/$name" "$to/$name"
        if ! (cd "$apt/$name" && apt-get "${options[@]}" --tar-only --download-only source "$name" >>"$apt/log" 2>&1) ||
            ! tar -xf "$apt/$name"/*.tar.* -C "$to/$name" --strip-components=1; then
            rm -rf "${to:?}/$name"
            tail -n 8 "$apt/log" >&2
            echo "bench-peers: apt-get could not fetch the source package '$name' (its last words are above)" >&2
            return 1
        fi
    done
}

# The comparison's peer made ready; prints the Python that runs it.
prepare() {
    local script=$1 peer=$2 packages sources
    if [ "$peer" != debian ]; then
        install "$peer" >&2 && echo "$build/peers/$peer/bin/python"
        return
    fi
    read -ra packages <<<"$(named_in "$script" packages)"
    read -ra sources <<<"$(named_in "$script" sources)"
    [ ${#packages[@]} -eq 0 ] || "$here/deps.sh" --packages "${packages[@]}" >&2 || return 1
    unpack_sources "${sources[@]}" >&2 || return 1
    "$here/venv.sh" --find
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
