#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# again: 2
# xep_run: exit statuses, what it says, and that it says nothing else.
. "${srcdir:-.}/test/rig/run.bash"

quiet() {
    wanted=$1
    shift
    timeout -k 5 $((60 * ${XEP_TEST_SLOW:-1})) "$@" >"$tmp/out" 2>&1 </dev/null
    got=$?
    [ "$got" -eq "$wanted" ] && [ ! -s "$tmp/out" ] || wrong "$*: status $got, printed $(cat "$tmp/out")"
}

quiet 0 "$run" -n 1 true
quiet 0 "$run" -n 4 true
expect 3 '^xep_run: rank 1 exited with status 3$' "$run" -n 3 sh -c '[ $PMIX_RANK != 1 ] || exit 3; sleep 30'
expect 137 '^xep_run: rank 2 killed by signal 9 \(Killed\)$' \
    "$run" -n 3 sh -c '[ $PMIX_RANK != 2 ] || kill -9 $$; sleep 30'
[ "$(wc -l <"$tmp/out")" -eq 1 ] || wrong "more than one line: $(cat "$tmp/out")"
expect 139 'rank 0 killed by signal 11 \(Segmentation fault\)' "$run" -n 1 sh -c 'kill -SEGV $$'

# -k: the others go on, the first failure is the status, each is told
expect 5 'rank 1 exited with status 5' \
    "$run" -k -n 3 sh -c '[ $PMIX_RANK != 1 ] || exit 5; sleep 0.5; touch '"$tmp"'/went-on.$PMIX_RANK'
[ -e "$tmp/went-on.0" ] && [ -e "$tmp/went-on.2" ] || wrong "-k: the others did not go on"
# each ends when xep_run has seen the one before it end
expect 4 'rank 2 exited with status 6' "$run" -k -n 3 sh -c 'before=$((PMIX_RANK - 1))
    echo $$ >"$0.new.$PMIX_RANK" && mv "$0.new.$PMIX_RANK" "$0.$PMIX_RANK"
    [ $before -lt 0 ] || until [ -s "$0.$before" ] && ! kill -0 $(cat "$0.$before") 2>/dev/null; do sleep 0.05; done
    exit $((PMIX_RANK + 4))' "$tmp/pid"
# without it they do not
expect 5 'rank 1' "$run" -n 3 sh -c '[ $PMIX_RANK != 1 ] || exit 5; sleep 20; touch '"$tmp"'/ended.$PMIX_RANK'
[ ! -e "$tmp/ended.0" ] && [ ! -e "$tmp/ended.2" ] || wrong "a failed rank did not end the others"

# ranks that do not heed SIGTERM are killed after the grace period
begin=$(date +%s%N)
expect 5 'rank 0 exited with status 5' \
    "$run" -n 2 sh -c '[ $PMIX_RANK != 0 ] || { until [ -e "$0" ]; do sleep 0.05; done; exit 5; }
    trap "" TERM; : >"$0"; sleep 200' "$tmp/deaf"
took=$((($(date +%s%N) - begin) / 1000000))
[ $took -ge 2000 ] || wrong "grace period: the job took $took ms"

for limit in 0.3 3 30; do # in which rank 1 can end
    is 124 "time limit of $limit s passed, still running: ranks 0 2\$" \
        "$run" -t $limit -n 3 sh -c '[ $PMIX_RANK = 1 ] || sleep 200' && break
done || wrong "-t $limit: status $got, $(cat "$tmp/out")"
expect 124 'still running: rank 0$' "$run" -t 0.3 -k -n 1 sh -c 'trap "" TERM; sleep 30; sleep 30'
quiet 0 "$run" -t 50 -n 2 true

expect 127 '^xep_run: cannot run /no/such: No such file or directory$' "$run" -n 3 /no/such
expect 127 'cannot run /etc: Permission denied' "$run" -n 1 /etc
printf 'echo plain script\n' >"$tmp/script"
chmod +x "$tmp/script"
expect 0 'plain script' "$run" -n 1 "$tmp/script"

for options in '' '-n' '-n 0' '-n x' '-n -1' '-n 5000' '-n 2' '-n 2 -N 3 true' '-n 5 -N 4 true' '-n 2 -t 0 true' \
    '-n 2 -t x true' '-n 2 -x novalue true' '-n 2 -x =v true' '-n 2 -q true' '-n 2 --bad true' 'true'; do
    expect 2 '^.*xep_run: ' "$run" $options
done
expect 2 '^xep_run: number of ranks missing \(for example: xep_run -n 4 xep_perf; xep_run --help says more\)$' "$run"
expect 2 '^xep_run: program missing' "$run" -n 2
expect 2 '^xep_run: invalid -n: "x" ' "$run" -np x true
expect 2 '^xep_run: invalid -n: "p" ' "$run" -np
quiet 0 "$run" -np 2 true
expect 2 '^xep_run: invalid -n: "x" \(1 to 4096 ranks\)$' "$run" -n x true
expect 2 '^xep_run: invalid -N for 5 ranks: 4 \(2 on each node make 3\)$' "$run" -n 5 -N 4 true
expect 2 '^xep_run: unknown option: "--bad" \(xep_run --help lists them\)$' "$run" -n 2 --bad true
expect 2 '^xep_run: unknown option: "-q"' "$run" -n 2 -q true
expect 2 '^xep_run: missing value: "-n" ' "$run" -n
expect 0 '^usage: xep_run -n RANKS' "$run" --help
expect 0 '^xep_run [0-9]' "$run" -V
# options end where the program begins
expect 0 "^-k -t$" "$run" -n 1 echo -k -t
