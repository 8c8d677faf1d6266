#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Steady state on mapped peers makes no system call but those of a waiting loop (yield, sleep).
set -u
command -v strace >/dev/null || { echo "skipped: strace is not installed"; exit 77; }
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
strace -o "$dir/try" true 2>/dev/null || { echo "skipped: strace may not trace here"; exit 77; }
unset UCX_TLS XEP_MAP
# the leak sanitizer and strace trace by the same means
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"

# all but those of a waiting loop
other_calls() {
    for rank in 0 1; do
        sed -n '/getpgid(-77)/,/getpgid(-77)/p' "$dir/$rank" |
            grep -v -e 'getpgid(-77)' -e '^sched_yield' -e nanosleep -e '^$'
    done
}

# Where another process has kept a rank away for 200 ms, the one that waits asks whether it lives. So one run of five
# must be clean; calls of a dispatch or a combine are in all. is_clean TRACE: of xep's own, or none
is_clean() {
    for _ in 1 2 3 4 5; do
        XEP_TIMEOUT=60s timeout $((120 * ${XEP_TEST_SLOW:-1})) ./xep_run -n 2 -x TRACES="$dir" -x XEP_TRACE="$1" \
            sh -c 'exec strace -o "$TRACES/$PMIX_RANK" ./test/mp/ops/no_allocations.mp long' || exit $?
        [ "$(cat "$dir"/[01] | grep -c 'getpgid(-77)')" -eq 4 ] || { echo 'there are no traces'; exit 1; }
        [ -z "$1" ] || [ -s "$1" ] || { echo 'XEP_TRACE had no effect'; exit 1; }
        calls=$(other_calls)
        [ -n "$calls" ] || return 0
    done
    echo "system calls in steady state${1:+ with XEP_TRACE}:"
    printf '%s\n' "$calls" | head -20
    return 1
}
is_clean '' && is_clean "$dir/own"
