#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# xep_run: nothing is left, however it ends: no rank, no child of a rank, no file (run.bash looks for those).
. "${srcdir:-.}/test/rig/run.bash"

note='echo $$ >>'"$tmp"'/pids'
all_gone() {
    for pid in $(cat "$tmp/pids"); do gone "$pid" || return 1; done
}
noted() {
    [ -e "$tmp/pids" ] && [ "$(wc -l <"$tmp/pids")" -ge "$1" ]
}
nothing_left() {
    [ -z "$(ls -A "$TMPDIR")" ]
}

# children that ranks leave: of their group, of a session of their own, stopped, deaf, with the output open
expect 0 '^done$' "$run" -n 2 sh -c "$note; sleep 60 & echo \$! >>$tmp/pids
    setsid sh -c '$note; sleep 61' & (trap '' TERM HUP; setsid setsid sh -c '$note; sleep 62 & sleep 63') &
    sh -c '$note; kill -STOP \$\$' & until [ \$(wc -l <$tmp/pids) -ge 10 ]; do sleep 0.05; done; echo done"
all_gone || wrong "left behind: $(ps -o pid,ppid,args -p "$(paste -sd, "$tmp/pids")")"
expect 0 '^\[1\] done$' "$run" -l -n 2 sh -c 'sleep 60 & echo done'

# xep_run is killed: so are the ranks, scripts that are ranks and what they wait for, and the files
for how in direct script; do
    rm -f "$tmp/pids"
    case $how in
    direct) rank="$note; exec sleep 60" ;;
    script) rank="$note; sh -c '$note; sleep 64'; true" ;;
    esac
    "$run" -n 3 sh -c "$rank" </dev/null &
    launcher=$!
    case $how in direct) until_true noted 3 ;; script) until_true noted 6 ;; esac
    kill -KILL $launcher
    wait $launcher 2>/dev/null
    until_true all_gone
    until_true nothing_left
done

# xep_run and the process that stands by are killed: ranks die; the folder is the next one's to remove
rm -f "$tmp/pids"
"$run" -n 2 sh -c "$note; exec sleep 60" </dev/null &
launcher=$!
until_true noted 2
keeper=$(ps --ppid $launcher -o pid=,comm= | awk '/keeper/ { print $1 }')
kill -KILL $keeper $launcher || wrong "nobody stands by"
wait $launcher 2>/dev/null
until_true all_gone
nothing_left && wrong "the folder is gone although nobody was there to remove it"
left=$(echo "$TMPDIR"/xep_run.*)

# but only a folder that xep_run made itself: not what has such a name, is a copy, or has the mark of another
mkdir -m 700 "$TMPDIR/xep_run.mydata" "$TMPDIR/xep_run.linked"
echo precious >"$TMPDIR/xep_run.mydata/results"
ln -s "$left/.made_by_xep_run" "$TMPDIR/xep_run.linked/.made_by_xep_run"
cp -a "$left" "$TMPDIR/xep_run.copied"
mkdir "$tmp/elsewhere"
echo precious >"$tmp/elsewhere/results"
ln -s "$tmp/elsewhere" "$left/link"
touch -d '10 minutes ago' "$TMPDIR"/xep_run.*
"$run" -n 1 true
[ ! -e "$left" ] || wrong "the folder of a predecessor was not removed: $(ls -lA "$left")"
[ -e "$tmp/elsewhere/results" ] || wrong "a link in the folder of a predecessor was followed"
for mine in mydata/results linked copied/.made_by_xep_run; do
    [ -e "$TMPDIR/xep_run.$mine" ] || wrong "xep_run.$mine of the user was removed"
done
rm -rf "$TMPDIR"/xep_run.*

# one that is in use is not, however old
rm -f "$tmp/pids"
"$run" -n 1 sh -c 'touch -d "10 minutes ago" '"$TMPDIR"'/xep_run.*; '"$note"'; sleep 60' </dev/null &
launcher=$!
until_true noted 1
folder=$(echo "$TMPDIR"/xep_run.*)
sleep 0.3
"$run" -n 1 true
[ -d "$folder" ] || wrong "the folder of a running job was removed"
kill -TERM $launcher
wait $launcher

# nowhere to write
TMPDIR=/no/such expect 125 'cannot make the folder /no/such/xep_run.*[(]TMPDIR says where[)]' "$run" -n 1 true
