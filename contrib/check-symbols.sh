#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What the built objects export and import: the library the names of its map, which are those its headers declare;
# a mode one object, xep_plugin, and nothing of ours. Prints each violation, and exits 1 when there is one.
#
#     contrib/check-symbols.sh LIBRARY MAP HEADERS [PLUGIN...]     HEADERS: a folder, or a file
set -u
[ $# -ge 3 ] || { sed -n 's/^# \{0,1\}//; 6,7p' "$0" >&2; exit 2; }
export LC_ALL=C
library=$1 map=$2 header=$3
shift 3
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
failed=0

say() {
    echo "$*"
    failed=1
}

# what sanitizers and coverage put into every object
instrumentation='^(___?asan|__(odr_asan|ubsan|tsan|lsan|sanitizer|sancov|gcov|llvm|profc|start__|stop__))'
# functions of the C library that a mode does not call
forbidden='getenv|v?f?printf|v?dprintf|puts|fputs|putchar|perror|fopen|abort|_?exit|fork|system|pthread_.*|dlopen|dlsym'

exported() {
    nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $NF); print $NF }' |
        grep -vE "$instrumentation" | sort -u
}

imported() {
    nm -D --undefined-only "$1" | awk '{ sub(/@.*/, "", $NF); print $NF }' | grep -vE "$instrumentation" | sort -u
}

# writable objects but those every shared object has
globals() {
    objdump -t "$1" | awk '$0 ~ / O \.(data|bss|tdata|tbss)[ \t]/ { print $NF }' |
        grep -vE '^(__dso_handle|completed\.[0-9]+|__TMC_END__)$' | sort -u
}

needed() {
    objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }'
}

instrumented() {
    nm -D --undefined-only "$1" | grep -qE ' (__asan_|__tsan_|__gcov|__llvm_prof)'
}

check_library() {
    exported "$library" >"$tmp/exported"
    sed -n 's/^[ \t]*\([A-Za-z0-9_]*\);.*/\1/p' "$map" | sort >"$tmp/map"
    for name in $(uniq -d "$tmp/map"); do say "$map: $name stands there twice"; done
    sort -u -o "$tmp/map" "$tmp/map"
    find "$header" -type f -exec cat {} + | grep -v '^#' | tr '\n' ' ' | grep -oE 'XEP_API [^;(]*\(' |
        grep -oE '[A-Za-z0-9_]+ *\($' | tr -d ' (' | sort -u >"$tmp/header"
    for name in $(grep -v '^xep_' "$tmp/exported"); do
        say "$library: exports $name, which does not begin with xep_"
    done
    for name in $(comm -23 "$tmp/exported" "$tmp/map"); do say "$library: exports $name, which is not in $map"; done
    for name in $(comm -13 "$tmp/exported" "$tmp/map"); do say "$library: does not export $name, which is in $map"; done
    for name in $(comm -23 "$tmp/header" "$tmp/map"); do say "$header: declares $name, which is not in $map"; done
    for name in $(comm -13 "$tmp/header" "$tmp/map"); do say "$header: does not declare $name, which is in $map"; done
    # it loads where PMIx is not installed
    ! needed "$library" | grep -q pmix || say "$library: is linked with $(needed "$library" | grep pmix)"
}

# what ldd -r says no library has, but for what a mode may not import at all
unresolved() {
    awk '/^undefined symbol:/ { print $3 }' | grep -vE '^(xep|ucp|uct|ucs|PMIx)_' | sort -u
}

check_plugin() {
    for name in $(exported "$1" | grep -vx xep_plugin); do
        say "$1: exports $name: a mode exports xep_plugin alone"
    done
    exported "$1" | grep -qx xep_plugin || say "$1: does not export xep_plugin"
    for name in $(imported "$1" | grep -E '^(xep|ucp|uct|ucs|PMIx)_'); do
        say "$1: imports $name: all a mode may use is in its env"
    done
    for name in $(imported "$1" | grep -E "^(__)?(secure_)?($forbidden)(_chk)?\$"); do
        say "$1: imports $name: a mode reads no environment, prints nothing, starts no thread"
    done
    for name in $(needed "$1" | grep -vE '^(libc|libm|libgcc_s|ld-linux.*|lib[a-z]*san)\.so'); do
        say "$1: is linked with $name"
    done
    # a program that loads it may have loaded nothing else
    instrumented "$1" || for name in $(ldd -r "$1" 2>&1 | unresolved); do
        say "$1: imports $name, which no library that it is linked with has"
    done
    instrumented "$1" || for name in $(globals "$1"); do say "$1: has the mutable global $name"; done
}

for object in "$library" "$@"; do
    [ -e "$object" ] || { echo "$object: is not there"; exit 2; }
done
check_library
for plugin; do check_plugin "$plugin"; done
exit $failed
