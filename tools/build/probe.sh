#!/bin/bash
# Compiles and links a small program for each library, prints whether it exists, and writes the results for make:
# probe.sh OUTPUT. Fails and names `make deps` if a required library is missing. Uses $CC.
set -eu
output=$1
cc=${CC:-cc}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
required_missing=()

if ! command -v "${cc%% *}" >/dev/null; then
    echo "No C compiler '$cc'. Run \`make deps\`." >&2
    exit 1
fi

builds() { # flags; source on stdin
    # shellcheck disable=SC2086
    $cc -std=c17 -D_GNU_SOURCE -x c - -x none -o "$scratch/probe" $1 >"$scratch/log" 2>&1
}

report() { printf '  PROBE %-12s %s\n' "$1" "$2"; }

# required NAME PACKAGE FLAGS < source
required() {
    if builds "$3"; then
        report "$1" found
    else
        report "$1" "MISSING: package $2"
        required_missing+=("$2")
    fi
}

# optional NAME PACKAGE FLAGS VARIABLE CONSEQUENCE < source: sets VARIABLE to FLAGS if it exists.
optional() {
    if builds "$3"; then
        report "$1" found
        echo "$4 := $3" >>"$scratch/config.mk"
    else
        report "$1" "missing, so: $5 (package $2)"
        echo "$4 :=" >>"$scratch/config.mk"
    fi
}

machine=$($cc -dumpmachine)
echo "TARGET_CPU := ${machine%%-*}" >"$scratch/config.mk"

required hwloc libhwloc-dev -lhwloc <<'C'
#include <hwloc.h>
int main(void) { return hwloc_get_api_version() < 0x20000; }
C
required numa libnuma-dev -lnuma <<'C'
#include <numa.h>
#include <numaif.h>
int main(void) { return numa_available(); }
C
required oneDNN libdnnl-dev "-ldnnl -lgomp" <<'C'
#include <dnnl.h>
#if DNNL_VERSION_MAJOR != 2 && DNNL_VERSION_MAJOR != 3
#error this uses the interface of oneDNN 2.x or 3.x
#endif
void omp_set_num_threads(int);
int main(void) { omp_set_num_threads(1); return dnnl_version() == NULL; }
C
required jansson libjansson-dev -ljansson <<'C'
#include <jansson.h>
int main(void) { return json_object() == NULL; }
C
required libyaml libyaml-dev -lyaml <<'C'
#include <yaml.h>
int main(void) { yaml_parser_t parser; return !yaml_parser_initialize(&parser); }
C
required OpenSSL libssl-dev "-lssl -lcrypto" <<'C'
#include <openssl/ssl.h>
#if OPENSSL_VERSION_MAJOR < 3
#error the bridge needs OpenSSL 3.0 or later
#endif
int main(void) { return TLS_method() == NULL; }
C
required ISA-L libisal-dev -lisal <<'C'
#include <isa-l/crc.h>
int main(void) { unsigned char byte = 0; return crc32_iscsi(&byte, 1, 0) == 1; }
C
required LZ4 liblz4-dev -llz4 <<'C'
#include <lz4.h>
int main(void) { return LZ4_compressBound(1) < 1; }
C
required protobuf-c libprotobuf-c-dev -lprotobuf-c <<'C'
#include <protobuf-c/protobuf-c.h>
int main(void) { return protobuf_c_version_number() < 1003000; }
C
command -v protoc-c >/dev/null || { report protoc-c "MISSING: package protobuf-c-compiler"; required_missing+=(protobuf-c-compiler); }
optional jemalloc libjemalloc-dev "-Wl,--no-as-needed -ljemalloc -Wl,--as-needed" JEMALLOC_LIBS "glibc's heap" <<'C'
#include <jemalloc/jemalloc.h>
int main(void) { return mallctl("thread.arena", NULL, NULL, NULL, 0); }
C
optional liburing liburing-dev -luring URING_LIBS "the bridge uses poll(2)" <<'C'
#include <liburing.h>
int main(void) { struct io_uring ring; return io_uring_queue_init(8, &ring, IORING_SETUP_SINGLE_ISSUER); }
C
optional criterion libcriterion-dev -lcriterion CRITERION_LIBS "no C tests" <<'C'
#include <criterion/criterion.h>
Test(probe, links) { cr_assert(1); }
C

if [ ${#required_missing[@]} -gt 0 ]; then
    echo "Cannot build without: ${required_missing[*]}. Run \`make deps\`, which installs what is missing." >&2
    exit 1
fi
mkdir -p "$(dirname "$output")"
mv "$scratch/config.mk" "$output"
