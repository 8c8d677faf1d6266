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
XEP_TIMEOUT=60s timeout 120 ./xep_run -n 2 -x TRACES="$dir" \
    sh -c 'exec strace -o "$TRACES/$PMIX_RANK" ./test/mp/steady.mp long' || exit $?
failed=0
for rank in 0 1; do
    [ "$(grep -c 'getpgid(-77)' "$dir/$rank")" -eq 2 ] || { echo "rank $rank: no trace"; exit 1; }
    between=$(sed -n '/getpgid(-77)/,/getpgid(-77)/p' "$dir/$rank" | grep -v 'getpgid(-77)')
    calls=$(printf '%s\n' "$between" | grep -v -e '^sched_yield' -e nanosleep -e '^$')
    if [ -n "$calls" ]; then
        echo "rank $rank makes system calls in steady state:"
        printf '%s\n' "$calls" | head -20
        failed=1
    fi
done
exit $failed
