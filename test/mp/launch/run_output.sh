#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# again: 2
# xep_run: labels, lines that stay whole, stdin.
. "${srcdir:-.}/test/rig/run.bash"

# what several ranks write in pieces comes in whole lines with their ranks, unless it is asked for as it is
pieces='for i in 1 2 3 4 5; do printf $i; sleep 0.1; done; echo'
env -u XEP_RUN_RAW "$run" -np 2 sh -c "$pieces" >"$tmp/stdout" </dev/null
sort "$tmp/stdout" | cmp - <(printf '[0] 12345\n[1] 12345\n') || wrong "by default: $(cat "$tmp/stdout")"
for raw in "-u XEP_RUN_RAW $run -r -n 2" "XEP_RUN_RAW=1 $run -n 2" "-u XEP_RUN_RAW $run -n 1"; do
    env $raw printf 'a\n' </dev/null | sort -u | cmp - <(echo a) || wrong "not as it is: $raw"
done
# on a terminal ranks have one, and so lose no line when they are killed
if command -v script >/dev/null; then
    env -u XEP_RUN_RAW script -qec "$run -n 2 sh -c '[ -t 1 ] && [ -t 2 ] && echo terminal'" /dev/null \
        >"$tmp/stdout" </dev/null
    [ "$(tr -d '\r' <"$tmp/stdout" | grep -c '^\[[01]\] terminal$')" -eq 2 ] ||
        wrong "no terminal: $(cat "$tmp/stdout")"
fi

# stdout and stderr kept apart; a last line without its end gets one
"$run" -l -n 2 sh -c 'echo out; echo err >&2; printf last' >"$tmp/stdout" 2>"$tmp/stderr" </dev/null
printf '%s\n' '[0] last' '[0] out' '[1] last' '[1] out' >"$tmp/wanted"
sort "$tmp/stdout" | cmp - "$tmp/wanted" || wrong "labels: $(cat "$tmp/stdout")"
printf '%s\n' '[0] err' '[1] err' >"$tmp/wanted"
sort "$tmp/stderr" | cmp - "$tmp/wanted" || wrong "labels of stderr: $(cat "$tmp/stderr")"
expect 0 '^\[0\] $' "$run" --label -n 1 echo

# many ranks write at once, in pieces: every line is one rank's, all are there, in its order
lines=2000
"$run" -l -n 4 awk -v lines=$lines 'BEGIN { r = ENVIRON["PMIX_RANK"]
    for (i = 0; i < lines; i++) { printf "%d ", r; if (i % 7 == 0) fflush()
        printf "%d ", i; printf "%0*d\n", i % 300, r }}' \
    >"$tmp/stdout" </dev/null || wrong "many lines: it failed"
awk -v lines=$lines '
    $1 != "[" $2 "]" || $3 != next_line[$2] || length($4) != ($3 % 300 ? $3 % 300 : 1) {
        print "wrong line:", $0; bad = 1; exit 1 }
    { next_line[$2]++ }
    END { for (r = 0; r < 4 && !bad; r++) if (next_line[r] != lines) {
        print "rank", r, "wrote", next_line[r]; exit 1 } }' \
    "$tmp/stdout" || wrong "lines are not whole"

# a line as long as the buffer and longer: nothing is lost
"$run" -l -n 2 awk 'BEGIN { printf "%0100000d\n", 7; printf "%065536d\n", 7 }' >"$tmp/stdout" </dev/null
[ "$(sed 's/^\[[01]\] //' "$tmp/stdout" | tr -d '\n' | wc -c)" -eq $((2 * 165536)) ] || wrong "a long line lost bytes"
[ "$(grep -vc '^\[[01]\] ' "$tmp/stdout")" -eq 0 ] || wrong "a part of a long line has no label"

# a rank that writes on and a reader that is gone: SIGPIPE, as without us
timeout $((100 * ${XEP_TEST_SLOW:-1})) "$run" -l -n 2 yes 2>"$tmp/stderr" | head -1 >/dev/null
[ "${PIPESTATUS[0]}" -eq 141 ] || wrong "closed stdout: status ${PIPESTATUS[0]}, $(cat "$tmp/stderr")"

# a slow reader gets all
n=$("$run" -l -n 2 seq 20000 </dev/null | { sleep 0.5; wc -l; })
[ "$n" -eq 40000 ] || wrong "a slow reader got $n lines of 40000"

# without a thread that reads what ranks write, they are ended, and so is xep_run
expect 125 'cannot start a thread' env LD_PRELOAD="$builddir/test/mp/launch/.libs/no_threads.so" \
    ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0" "$run" -l -n 2 sleep 1000

# stdin goes to rank 0, even when the others are there first: they find its end
seq 1000 | "$run" -l -n 3 sh -c '[ $PMIX_RANK != 0 ] || sleep 0.5; exec cat' >"$tmp/stdout"
[ "$(grep -c '^\[0\] ' "$tmp/stdout")" -eq 1000 ] && [ "$(wc -l <"$tmp/stdout")" -eq 1000 ] || wrong "stdin"
seq 1000 | "$run" -n 3 cat | cmp - <(seq 1000) || wrong "stdin, without labels"
"$run" -n 2 cat <&- 2>"$tmp/stderr" || true # closed: whatever cat says, no hang
