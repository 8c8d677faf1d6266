#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 200
# What make bench decides: by bounds that nothing meets and that everything meets, and what it says of a bad file.
. "${srcdir:-.}/test/rig/run.bash"
command -v python3 >/dev/null || { echo 'skipped: there is no python3'; exit 77; }
ratios="python3 $srcdir/test/bench/ratios.py $builddir $tmp/bounds --iters 20"

cat >"$tmp/bounds" <<'END'
# mode ranks tokens hidden topk experts
normal 2 8 64 2 8  dispatch limit 0.001   # of what has no bytes nothing is so fast
normal 2 8 64 2 8  combine  peer  1e9
ll     2 8 64 2 8  combine  limit 1e9
normal 2 8 64 2 8  dispatch place 0.001
normal 2 8 64 2 8  dispatch read  1e9
END
expect 1 '^normal .* dispatch limit +0.00 .*[0-9]-[0-9.]+  slower$' $ratios --busy --launches 2
grep -q '^2 of 5 slower than their bound, 0 not judged$' "$tmp/out" || wrong "$(cat "$tmp/out")"
expect 0 '^ll .* combine +limit 1000000000.00 ' $ratios --busy --launches 1 combine
grep -q '^0 of 2 slower than their bound, 0 not judged$' "$tmp/out" || wrong "$(cat "$tmp/out")"

expect 1 '^normal .* dispatch place +0.00 .*slower$' $ratios --busy --launches 1 place
expect 0 '^normal .* dispatch read +1000000000.00 +[0-9.]+ ' $ratios --busy --launches 1 read

# somebody else at work: nothing is judged, and nothing is called slower
sh -c 'while :; do :; done' &
busy=$!
expect 0 'not judged: the machine was quiet during 0 launches' $ratios --launches 1 dispatch
kill $busy
grep -q '^0 of 3 slower than their bound, 3 not judged$' "$tmp/out" || wrong "$(cat "$tmp/out")"

expect 1 'no line of .* has frob' $ratios frob
printf '%s\n' 'cores 1' 'll 2 8 64 2 8 combine limit 1e9' 'cores 100000' 'nosuch' >"$tmp/more"
cat "$tmp/bounds" "$tmp/more" >"$tmp/both" && mv "$tmp/bounds" "$tmp/two" && mv "$tmp/both" "$tmp/bounds"
expect 0 '^0 of 1 slower than their bound, 0 not judged$' $ratios --busy --launches 1
mv "$tmp/two" "$tmp/bounds"
echo 'normal 2 8 64 2 8 dispatch limit' >>"$tmp/bounds"
expect 1 "^$tmp/bounds:7: not a bound: normal 2 8 64 2 8 dispatch limit" $ratios
sed -i '$d' "$tmp/bounds"
echo 'nosuch 2 8 64 2 8 dispatch limit 1' >>"$tmp/bounds"
expect 1 'no mode "nosuch"|nosuch' $ratios nosuch

# a limit that is beaten is none, whatever the bound
mkdir "$tmp/beaten"
cat >"$tmp/beaten/xep_run" <<'END'
#!/bin/sh
echo "{\"ops\": [{\"op\": \"combine\", \"us\": {\"median\": $MEDIAN}, \"limit_us\": 100}]}"
END
chmod +x "$tmp/beaten/xep_run"
echo 'll 2 8 64 2 8 combine limit 1e9' >"$tmp/bounds"
beaten="python3 $srcdir/test/bench/ratios.py $tmp/beaten $tmp/bounds --busy --launches 1"
MEDIAN=96 expect 1 '^a limit that is beaten: ll 2 8 64 2 8 combine, 0.96$' $beaten
MEDIAN=97.5 expect 0 '^0 of 1 slower than their bound, 0 not judged$' $beaten
