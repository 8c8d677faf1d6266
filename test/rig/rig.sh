# SPDX-License-Identifier: BSD-3-Clause
# The test rig itself: limits, ranks, skips, and that a hang fails.
set -u
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
failed=0

# a test program of the given suffix: head comment, then shell commands
program() {
    mkdir -p "$tmp/build/test" "$tmp/src/test"
    printf '/* %s */\n' "$2" >"$tmp/src/test/${1%.*}.c"
    printf '#!/bin/sh\n%s\n' "$3" >"$tmp/build/test/$1"
    chmod +x "$tmp/build/test/$1"
}

# expect NAME STATUS PATTERN ENV...: runs test/NAME
expect() {
    name=$1 status=$2 pattern=$3
    shift 3
    (cd "$tmp/build" && env -u XEP_TEST_RANKS -u XEP_TEST_SLOW -u XEP_TEST_BRIEF -u XEP_TEST_LAUNCH \
        srcdir="$tmp/src" "$@" bash "$srcdir/test/rig/run-test" "./test/$name") >"$tmp/out" 2>&1
    got=$?
    if [ $got -ne "$status" ] || ! grep -q "$pattern" "$tmp/out"; then
        echo "$name: status $got, expected $status and \"$pattern\" in:"
        cat "$tmp/out"
        failed=1
    fi
}

mkdir -p "$tmp/build"
printf '#!/bin/sh\n[ "$1" = -n ] && echo "launched $2" && shift 2 && exec "$@"\n' >"$tmp/build/xep_run"
chmod +x "$tmp/build/xep_run"
cp "$tmp/build/xep_run" "$tmp/other"

program hang.t 'limit: 1' 'sleep 60'
expect hang.t 124 'killed, not done after 1 seconds'
expect hang.t 124 'not done after 2 seconds' XEP_TEST_SLOW=2

program tap.t '' 'echo "1..1"; echo "ok 1 $CMOCKA_MESSAGE_OUTPUT"'
expect tap.t 0 'ok 1 TAP'

program two.mp 'no key' 'echo "deadline $XEP_TIMEOUT"'
expect two.mp 0 'launched 2'
expect two.mp 0 'deadline 30s'
expect two.mp 0 'launched 5' XEP_TEST_RANKS=5
expect two.mp 0 'launched 2' XEP_TEST_LAUNCH="$tmp/other"

program many.mp 'ranks: 1 3, brief: 4' true
expect many.mp 0 'launched 3' XEP_TEST_BRIEF=
expect many.mp 0 'launched 4' XEP_TEST_BRIEF=yes
expect many.mp 0 'launched 5' XEP_TEST_BRIEF=yes XEP_TEST_RANKS=5

program alone.mp 'ranks: none' 'echo by itself'
expect alone.mp 0 '^by itself' XEP_TEST_RANKS=5

program fails.mp 'ranks: 2 3' 'exit 3'
expect fails.mp 3 'launched 2'

program skips.mp 'ranks: 2 3' 'exit 77'
expect skips.mp 77 'launched 3'

program stuck.mp 'ranks: 2, limit: 6, grace: 1' 'trap "" TERM; sleep 100'
expect stuck.mp 137 'killed, not done after 6 seconds'

# a signal to the runner ends the test too, and the test may clean up
program ended.t '' "trap 'echo cleaned >$tmp/cleaned; exit 1' TERM; echo >$tmp/ready; sleep 60 & wait"
(cd "$tmp/build" && srcdir="$tmp/src" exec bash "$srcdir/test/rig/run-test" ./test/ended.t) >"$tmp/out" 2>&1 &
for _ in $(seq 600); do [ ! -e "$tmp/ready" ] || break; sleep 0.1; done
kill -TERM $!
wait $!
[ $? -eq 143 ] && [ -s "$tmp/cleaned" ] ||
    { echo 'a signal to the runner does not reach the test:'; cat "$tmp/out"; failed=1; }

# what check.sh reads in the log of a test that compares times
program timed.t 'limit: 9, again: 2' 'true'
expect timed.t 0 '^# again: 2$'

program what.xyz '' 'true'
expect what.xyz 99 'no runner'

# what a script runs has a limit of its own, which must grow like the script's
fixed_limits() { grep -nE '\<timeout( --foreground)?( -k [0-9]+)? [0-9]{2,} ' "$@"; }
printf 'timeout -k 5 60 true\n' >"$tmp/fixed.sh"
fixed_limits "$tmp/fixed.sh" >/dev/null || { echo 'a limit that XEP_TEST_SLOW does not reach is not found'; failed=1; }
fixed_limits $(find "$srcdir/test" -name '*.sh' ! -path '*/rig/rig.sh' -o -name '*.bash') | grep -v scancel &&
    { echo 'limits that XEP_TEST_SLOW does not reach (use $((60 * ${XEP_TEST_SLOW:-1})))'; failed=1; }

# automake names a log after its test without the suffix: two tests that differ in the suffix alone would share a log
twice=$(grep -o 'test/[a-z_/]*\.\(t\|mp\|sh\)\>' "$srcdir/Makefile.am" | sort -u | sed 's/\.[a-z]*$//' | uniq -d)
[ -z "$twice" ] || { echo "tests whose log files have the same name: $twice"; failed=1; }

exit $failed
