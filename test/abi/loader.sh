# SPDX-License-Identifier: BSD-3-Clause
# What the loader refuses, and that each refusal has its own sentence; nothing is ever replaced by another mode.
set -u
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
failed=0
mkdir "$tmp/a" "$tmp/b"
solo=$srcdir/test/abi/stub_mode.c
own="$builddir/.libs"
export XEP_PLUGIN_PATH=$tmp/a:$tmp/b

# build FILE SOURCE [SED-SCRIPT]: a mode, changed
build() {
    sed "${3:-}" "$2" >"$tmp/source.c"
    [ -z "${3:-}" ] || ! cmp -s "$2" "$tmp/source.c" || { echo "\"$3\" changes nothing"; exit 99; }
    ${CC:-cc} ${CFLAGS:-} -w -shared -fPIC -I"$srcdir/include" -I"$builddir/include" -o "$tmp/$1" "$tmp/source.c" ||
        exit 99
}

# load MODE STATUS PATTERN: what loading it says
load() {
    "$builddir/test/abi/mode_load" "$1" >"$tmp/out" 2>&1
    if ! grep -q "^$2 .*$3" "$tmp/out"; then
        echo "mode \"$1\": expected $2 \"$3\", got: $(cat "$tmp/out")"
        failed=1
    fi
}

build a/xep_solo.so "$solo"
load solo XEP_OK ''
load normal XEP_OK ''

# simulate MODE STATUS PATTERN: what is said of 8 ranks on 2 nodes, each of which sends 16 tokens to 2 of 8 experts
simulate() {
    "$builddir/xep_perf" --simulate 8,4 --tokens 16 --topk 2 --experts 8 --mode "$1" --json - >"$tmp/out" 2>&1
    [ $? -eq "$2" ] && grep -q "$3" "$tmp/out" && return
    echo "simulate $1: expected \"$3\", got: $(cat "$tmp/out")"
    failed=1
}

# its own path and memory, by what it tells: room for 6 rows of each of 8 ranks, or by nodes for 12 of one upstream rank
simulate solo 0 '"mode": "solo", .*"chosen": "nodes", .*"memory_bytes": 24576, .*"memory_bytes": 49152, '
simulate solo 0 '"path": "nodes", .*"network_bytes": [1-9][0-9]*0, "us": .*"rounds_us": 30.000, .*"rounds_us": 10.000, '
build a/xep_mute.so "$solo" '/\.traffic = /d; s/"solo"/"mute"/'
simulate mute 2 '^xep_perf: --simulate cannot be used with mode mute: it does not tell its traffic$'
simulate nobody 2 '^xep_perf: --simulate cannot be used with mode nobody: there is none, see --list$'

load nowhere XEP_ERR_PLUGIN "mode \"nowhere\": there is no xep_nowhere.so in $tmp/a, $tmp/b, $own"
load a/solo XEP_ERR_PLUGIN 'invalid mode: "a/solo" (a name without a slash; folders go into XEP_PLUGIN_PATH)'
load ../a/solo XEP_ERR_PLUGIN 'a name without a slash'
load 'so lo' XEP_ERR_PLUGIN '(letters, digits, - and _)'
load "$(printf '%080d' 0)" XEP_ERR_PLUGIN 'characters)'

refused() {
    load "$1" XEP_ERR_PLUGIN "mode \"$1\": $tmp/[ab]/xep_$1.so was refused: $2"
}

build a/xep_stale.so "$solo" 's/= XEP_PLUGIN_ABI,/= XEP_PLUGIN_ABI + 1,/; s/"solo"/"stale"/'
refused stale 'its plugin ABI is [0-9]*, this library.s is [0-9]*: rebuild it'
for field in size env_size shape_size op_struct_size wire_ops_size device_ops_size; do
    build a/xep_sized.so "$solo" "s/\(\.$field = sizeof([a-z_]*)\),/\1 - 8,/; s/\"solo\"/\"sized\"/"
    refused sized 'its structs have .* bytes, this library.s have .*: rebuild it'
done
build a/xep_hole.so "$solo" '/\.explain = /d; s/"solo"/"hole"/'
refused hole 'an operation of its table is NULL'

echo 'int other_name;' >"$tmp/empty.c"
build a/xep_empty.so "$tmp/empty.c"
refused empty 'it has no symbol xep_plugin'
echo 'this is text' >"$tmp/a/xep_bad.so"
refused bad 'it cannot be loaded: .*xep_bad.so'
ln -s "$tmp/nothing" "$tmp/b/xep_dangling.so"
load dangling XEP_ERR_PLUGIN 'there is no xep_dangling.so'
mkfifo "$tmp/a/xep_pipe.so"
refused pipe 'it is not a file'
echo 'int xep_log(void); int xep_plugin(void) { return xep_log(); }' >"$tmp/imports.c"
build a/xep_imports.so "$tmp/imports.c"
refused imports 'it cannot be loaded: .*xep_log'
cp "$tmp/a/xep_solo.so" "$tmp/a/xep_other.so"
refused other 'it calls itself "solo": the file must be named xep_solo.so'

# the first file of that name decides, also when it is refused
cp "$tmp/a/xep_solo.so" "$tmp/b/xep_twice.so"
echo 'this is text' >"$tmp/a/xep_twice.so"
load twice XEP_ERR_PLUGIN "$tmp/a/xep_twice.so was refused: it cannot be loaded"

# the mode of the environment: the same, and never another one instead
"$builddir/test/abi/mode_load" >"$tmp/out" && grep -q '^XEP_OK' "$tmp/out" || { cat "$tmp/out"; failed=1; }
XEP_MODE=nowhere "$builddir/test/abi/mode_load" >"$tmp/out" && { echo "XEP_MODE=nowhere loads"; failed=1; }
grep -q 'there is no xep_nowhere.so' "$tmp/out" || { cat "$tmp/out"; failed=1; }

# xep_info says the same of all at once
"$builddir/xep_info" -p >"$tmp/out" 2>&1
for said in 'its plugin ABI is' 'its structs have' 'has no symbol xep_plugin' 'xep_bad.so' 'is not a file' \
    'it calls itself'; do
    grep -q "$said" "$tmp/out" || { echo "xep_info -p does not say \"$said\":"; cat "$tmp/out"; failed=1; }
done

# a folder that does not exist: no other one is used in its place
export XEP_PLUGIN_PATH=$tmp/a:$tmp/none
said="invalid XEP_PLUGIN_PATH: \"$tmp/a:$tmp/none\" (folders that exist, colon-separated)"
load normal XEP_ERR_INVALID "$said"
"$builddir/xep_info" -p | grep -qF "none: $said" || { echo "xep_info -p does not say $said"; failed=1; }
exit $failed
