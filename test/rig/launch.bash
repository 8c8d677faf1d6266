# SPDX-License-Identifier: BSD-3-Clause
# Sourced by the tests of launchers: the same small programs under each, and what they must say.
set -u
tmp=$(mktemp -d) || exit 99
trap 'cleanup; rm -rf "$tmp"' EXIT
trap 'exit 143' TERM INT HUP
failed=0
export XEP_TIMEOUT=${XEP_TIMEOUT:-$((60 * ${XEP_TEST_SLOW:-1}))s}

# a test that has more to clean up defines its own
cleanup() { :; }

skip() {
    echo "skipped: $*"
    exit 77
}

# run NAME COMMAND...: its output into $tmp/out, its status into $status; never longer than two minutes; a signal to
# this test's process group reaches the command too, so that cleanup comes before the end
run() {
    name=$1
    shift
    echo "== $name"
    timeout --foreground -k 10 $((120 * ${XEP_TEST_SLOW:-1})) "$@" >"$tmp/out" 2>"$tmp/err"
    status=$?
}

wrong() {
    echo "$name: $*; status $status, output:"
    cat "$tmp/out" "$tmp/err"
    failed=1
}

# whole NAME RANKS NODES MAPPED LAUNCHER...: xep_perf finds that many ranks and nodes, can map that many peers
# from rank 0, and every byte is right
whole() {
    local ranks=$2 nodes=$3 mapped=$4 said
    name=$1
    shift 4
    run "$name" "$@" ./xep_perf --check-only --tokens 96 --hidden 512 --topk 4 --experts 37 --json -
    for said in "\"ranks\": $ranks" "\"nodes\": $nodes" "\"mapped\": $mapped" '"check": "ok"'; do
        grep -q "$said[,}]" "$tmp/out" || { wrong "no $said"; return; }
    done
    [ $status -eq 0 ] || wrong "it failed"
}

# passes NAME COMMAND...
passes() {
    run "$@"
    [ $status -eq 0 ] || wrong "it failed"
}

# refuses NAME PATTERN COMMAND...: fails and says so
refuses() {
    local pattern=$2
    name=$1
    shift 2
    run "$name" "$@"
    [ $status -ne 0 ] && [ $status -ne 124 ] && cat "$tmp/out" "$tmp/err" | grep -q -e "$pattern" ||
        wrong "expected a failure with \"$pattern\""
}

# meets NAME RANKS LAUNCHER...: a group finds its joiners by a name that the launcher keeps, also where none is given
meets() {
    [ ! -x test/mp/groups/meet_by_name ] || passes "$1, a name" "${@:3}" test/mp/groups/meet_by_name "$2"
    [ ! -x test/mp/groups/meet_by_name ] || passes "$1, no name" "${@:3}" test/mp/groups/meet_by_name "$2" unnamed
}

# ended WORD COUNT NAME COMMAND...: so many processes, of it and of the joiner that $tmp/joiner has heard, say that
# they have come to their end
ended() {
    local word=$1 count=$2
    shift 2
    run "$@"
    wait
    cat "$tmp/joiner" >>"$tmp/out"
    [ "$(grep -c "^$word" "$tmp/out")" -eq "$count" ] || wrong "not $count processes say \"$word\""
}

# goes_on NAME LAUNCHER...: a launcher that lets the others live: the ranks left make a smaller group, and a process
# that it has not started replaces a dead one; all compare every operation with the oracle
goes_on() {
    local scenario
    [ -x test/mp/groups/shrink ] && [ -x test/mp/groups/grow ] || return
    : >"$tmp/joiner"
    ended survived 2 "$1, two of four die" "${@:2}" -n 4 test/mp/groups/shrink killed 1 2
    ended survived 3 "$1, one dies while another computes" "${@:2}" -n 4 test/mp/groups/shrink early 0
    for scenario in one:4 replaced:3; do
        rm -f "$tmp/address"
        timeout $((100 * ${XEP_TEST_SLOW:-1})) test/mp/groups/grow joiner file "$tmp/address" >"$tmp/joiner" 2>&1 &
        ended grown ${scenario#*:} "$1, a joiner: ${scenario%:*}" "${@:2}" -n 3 \
            test/mp/groups/grow members ${scenario%:*} "$tmp/address"
    done
}

# programs of the suite, where they were built; the second one of a task is refused
programs() {
    local program
    for program in test/mp/launch/boot_client.mp test/mp/ops/normal_ops.mp; do
        [ ! -x "$program" ] || passes "$1, $program" "${@:2}" "./$program"
    done
    program=./test/mp/launch/boot_client.mp
    [ ! -x $program ] || passes "$1, two programs in one task" "${@:2}" sh -c '"$0" rounds 1 100 &&
        "$0" rounds 1 100 2>&1 | grep "an earlier program of this task has made a group"' $program
}
