#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 240, again: 2
# A trace of real ranks, read by a program that shares nothing with its writer; what is said when something is missing.
. "$srcdir/test/rig/run.bash"
command -v python3 >/dev/null || { echo 'skipped: there is no python3'; exit 77; }
program=$builddir/test/mp/perf/traced
merge="$builddir/xep_trace merge"
trace=$tmp/t.json
export XEP_TIMEOUT=30s XEP_LOG=warn
unset UCX_TLS XEP_MAP XEP_TRACE_BYTES

# check WHAT...: by trace_check.py, which prints what is wrong
check() {
    python3 "$srcdir/test/mp/perf/trace_check.py" "$trace" "$@" >"$tmp/check" 2>&1 ||
        { wrong "trace_check.py $*:"; tail -3 "$tmp/check"; }
}

# quiet COMMAND...: exits with 0 and says nothing
quiet() {
    timeout -k 5 $((60 * ${XEP_TEST_SLOW:-1})) "$@" >"$tmp/out" 2>&1 </dev/null || wrong "$*: status $?"
    [ ! -s "$tmp/out" ] || { wrong "$* says:"; sed 's/^/    /' "$tmp/out"; }
}

# journals: nothing but the merged file is left
no_journals() {
    left=$(cd "$tmp" && ls -d t.json.* 2>/dev/null)
    [ -z "$left" ] || wrong "left behind: $left"
}

# what an earlier job has left is no part of this one
echo junk >"$trace.1"
export XEP_TRACE=$trace
quiet "$run" -n 4 "$program" "$tmp" rounds
check rounds "$tmp" 4
no_journals

# the same where ranks reach one another over a network
quiet "$run" -n 3 -N 3 -x UCX_TLS=tcp,self "$program" "$tmp" rounds
check rounds "$tmp" 3
no_journals

# ranks on another clock: what barriers say aligns them
if unshare --time --monotonic 1000 --fork true 2>/dev/null; then
    quiet "$run" -n 4 sh -c 'case $PMIX_RANK in [23]) exec unshare --time --monotonic 1000 --fork "$@" ;; esac
        exec "$@"' sh "$program" "$tmp" rounds
    check rounds "$tmp" 4 1000
else
    echo 'left out: clocks that differ (unshare --time is not permitted)'
fi

# more events than there is room for, of a ring as small as it gets
expect 0 't.json.0: the oldest [0-9]+ events were dropped' \
    env XEP_TRACE_BYTES=0 "$run" -n 2 "$program" "$tmp" flood 5000
check flood 5000

# a rank that is killed, and one that has no trace
expect 137 'signal 9|killed' "$run" -n 3 "$program" "$tmp" killed
check killed "$tmp"
expect 0 'rank 0 is missing: .*t.json.0: No such file or directory' \
    "$run" -n 3 sh -c '[ $PMIX_RANK != 0 ] || unset XEP_TRACE; exec "$@"' sh "$program" "$tmp" rounds
check missing 0

# a file that is no trace is told once
expect 0 't.json.0: not a trace of this version' \
    "$run" -n 3 sh -c '[ $PMIX_RANK != 0 ] || { echo junk >"$XEP_TRACE.0"; unset XEP_TRACE; }; exec "$@"' sh \
    "$program" "$tmp" rounds
! grep -q 'is missing' "$tmp/out" || wrong 'it is called missing'
check missing 0

# what cannot be written is said, and the program goes on
XEP_TRACE=$tmp/no/such/t.json expect 0 \
    "warning: no trace is written: $tmp/no/such/t.json.1: No such file or directory" \
    "$run" -n 2 "$program" "$tmp" flood 5
if unshare -m true 2>/dev/null; then
    mkdir "$tmp/small"
    expect 0 'warning: no trace of thread [0-9]+: no room for [0-9]+ bytes more in its file: No space left' \
        unshare -m sh -c 'mount -t tmpfs -o size=1m none "$0" && exec "$@"' "$tmp/small" \
        env XEP_TRACE="$tmp/small/t.json" "$run" -n 2 "$program" "$tmp" flood 5
fi

# without xep_run: one rank alone, then xep_trace
rm -f "$trace"
quiet "$program" "$tmp" flood 3000
quiet env XEP_TRACE_BYTES=64k "$program" "$tmp" flood 3000
expect 0 'the oldest [0-9]+ events were dropped' $merge "$trace"
check flood 3000

# files that are damaged, cut off, or none: said, and never followed
ruin() {
    cp "$tmp/whole" "$trace.0"
    printf "$2" | dd of="$trace.0" bs=1 seek="$1" conv=notrunc status=none
}
cp "$trace.0" "$tmp/whole"
ruin 65600 '\377\377\377\377\377\377\377\377'
expect 1 'events are damaged: left out' $merge "$trace"
ruin 0 'y'
expect 1 't.json.0: not a trace of this version of xep' $merge "$trace"
ruin 8 '\377\377'
expect 1 't.json.0: an impossible rank' $merge "$trace"
ruin 24 '\001'
expect 1 't.json.0: impossible rings' $merge "$trace"
ruin 65536 '\377\377\377\377\377\377\377\177'
expect 0 'events were dropped' $merge "$trace"
cp "$tmp/whole" "$trace.0"
truncate -s 70000 "$trace.0"
quiet $merge "$trace"
truncate -s 1 "$trace.0"
expect 1 't.json.0: not a trace of this version of xep' $merge "$trace"
cp "$tmp/whole" "$trace.0"
cp "$tmp/whole" "$trace.1"
printf '\002' | dd of="$trace.0" bs=1 seek=12 conv=notrunc status=none
expect 1 't.json.1: rank 0 of 1 of another job: left out' $merge "$trace"

# xep_trace itself
expect 1 "no rank has written a trace: there is no $tmp/none.json.0" $merge "$tmp/none.json"
expect 2 'command missing' "$builddir/xep_trace"
expect 2 'unknown command: "mrege" \(merge\)' "$builddir/xep_trace" mrege x
expect 2 'file missing' $merge
expect 2 'unexpected file: "b"' $merge a b
expect 0 '^usage: xep_trace merge FILE' "$builddir/xep_trace" --help
