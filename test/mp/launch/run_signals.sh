#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# again: 2
# xep_run: what a signal to it does to the ranks.
. "${srcdir:-.}/test/rig/run.bash"

# a shell ignores SIGINT and SIGQUIT in what it starts in the background; who has started this test may ignore SIGTSTP
start() {
    rm -f "$tmp"/ready.* "$tmp"/got.*
    env --default-signal=INT,QUIT,TSTP "$run" "$@" >"$tmp/out" 2>&1 </dev/null &
    pid=$!
}

# so many ranks have written: one that is stopped behind its open() never does
ready() {
    [ "$(find "$tmp" -name 'ready.*' -size +0 | wc -l)" -eq "$1" ]
}

# status WANTED NAME: of the job started last; what it took is in $took
status() {
    wait "$pid"
    got=$?
    took=$((($(date +%s%N) - begin) / 1000000))
    [ "$got" -eq "$1" ] || wrong "$2: status $got, expected $1: $(cat "$tmp/out")"
}

signal() {
    begin=$(date +%s%N)
    kill -"$1" "$pid"
}

# once NAME FUNCTION: runs it until it succeeds. A rank that gets no processor for the whole grace period is killed, or
# ends as late, whatever it would have done: a machine may do that once or twice, but not ten times.
once() {
    for _ in $(seq 10); do
        "$2" && return
    done
    wrong "$1: not once, at last after $took ms"
}

heard() {
    local rank
    for rank; do [ -e "$tmp/got.$rank" ] || return; done
}

# well before the grace period was over
soon() {
    [ $took -lt 1500 ]
}

heeds='trap "echo $0 >'"$tmp"'/got.$PMIX_RANK; exit 0" $0
    echo >'"$tmp"'/ready.$PMIX_RANK; while :; do sleep 0.05; done'
plain='echo > '"$tmp"'/ready.$PMIX_RANK; sleep 100'
deaf='trap "" INT TERM QUIT; echo > '"$tmp"'/ready.$PMIX_RANK; sleep 1000'

# all ranks get it
heeded() {
    start -n 3 sh -c "$heeds" $name
    until_true ready 3
    signal $name
    case $name in
    INT | TERM | QUIT) status $((128 + $(kill -l $name))) "$name, heeded" ;;
    *) status 0 "$name, heeded" ;;
    esac
    heard 0 1 2
}
for name in INT TERM QUIT HUP USR1 USR2; do once "$name, heeded by all ranks" heeded; done

# and die of it; what a rank has started gets it too (the shell waits for its sleep)
terminated() {
    start -n 3 sh -c "$plain"
    until_true ready 3
    signal TERM
    status 143 'TERM'
    soon
}
once 'TERM, soon' terminated
start -n 2 sh -c "$plain"
until_true ready 2
signal HUP
status 129 'HUP, not heeded'

# a rank that is a script, and what it waits for: both get it
script() {
    start -n 2 sh -c "sh -c '$heeds' TERM; true"
    until_true ready 2
    signal TERM
    status 143 'TERM to a script'
    heard 0 1
}
once "TERM to what a script has started" script
# it has the grace period, although its script is gone at once
slow_script() {
    start -n 2 sh -c "sh -c 'trap \"sleep 0.5; echo >$tmp/got.\$PMIX_RANK; exit\" TERM
        echo >$tmp/ready.\$PMIX_RANK; while :; do sleep 0.05; done'; true"
    until_true ready 2
    signal TERM
    status 143 'TERM to a script, slow to end'
    heard 0 1
}
once "the grace period of what a script has started" slow_script

# the deaf are killed, after the grace period or at the second signal
start -n 2 sh -c "$deaf"
until_true ready 2
signal INT
status 130 'INT, deaf'
[ $took -ge 1900 ] || wrong "INT, deaf: the job took $took ms to end"
interrupted_twice() {
    start -n 2 sh -c "$deaf"
    until_true ready 2
    signal INT
    sleep 0.2
    kill -INT $pid
    status 130 'INT twice'
    soon
}
once 'INT twice' interrupted_twice

# a stopped job stops as a whole, and goes on as a whole
written() {
    cat "$tmp"/ready.* | wc -l
}
stopped() {
    for rank in 0 1; do
        case $(sed 's/.*) //' "/proc/$(head -n 1 "$tmp/ready.$rank")/stat") in T*) ;; *) return 1 ;; esac
    done
}
went_on() {
    [ "$(written)" -gt "$before" ]
}
# bash, as dash makes processes by vfork(): it does not look stopped while a new one is stopped before its exec()
start -n 2 bash -c 'while :; do echo $$ >>'"$tmp"'/ready.$PMIX_RANK; sleep 0.02; done'
until_true ready 2
kill -TSTP $pid
until_true stopped
before=$(written)
sleep 0.3
went_on && wrong "TSTP: the ranks went on"
kill -CONT $pid
until_true went_on
signal TERM
status 143 'TERM after a stop'

# told to ignore it, xep_run does, and so do the ranks
sh -c 'trap "" INT; exec "$@"' - "$run" -n 2 sh -c 'echo > '"$tmp"'/ready2.$PMIX_RANK; sleep 1' >"$tmp/out" 2>&1 &
pid=$!
until_true here "$tmp/ready2.1"
signal INT
status 0 'INT, ignored from the start'

# a parent that ignores SIGCHLD
(trap '' CHLD; exec "$run" -n 2 sh -c 'exit $((PMIX_RANK + 3))') >"$tmp/out" 2>&1
got=$?
[ $got -eq 3 ] || [ $got -eq 4 ] || wrong "SIGCHLD ignored by the parent: status $got"
