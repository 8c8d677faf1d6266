# SPDX-License-Identifier: BSD-3-Clause
# A mode written outside the tree: built from the installed headers and kit alone, found through XEP_PLUGIN_PATH, used
# on one rank and on several, that map one another, some of one another, or nobody.
set -u
. "$srcdir/test/rig/installed.bash" || exit 99
here=$srcdir/test/abi/outoftree

mkdir "$tmp/modes"
compile "$tmp/modes/xep_flood.so" -shared -fPIC "$here/xep_flood.c" $(pkg-config --cflags --libs xep-kit)
compile "$tmp/client" "$here/flood_client.c" $(pkg-config --libs xep)
bash "$srcdir/contrib/check-symbols.sh" "$libdir/libxep.so" "$srcdir/src/xep.map" "$srcdir/include/xep" \
    "$tmp/modes/xep_flood.so" || exit 1

export XEP_BOOT=single
if "$tmp/client" >"$tmp/out" 2>&1 || ! grep -q 'there is no xep_flood.so in' "$tmp/out"; then
    cat "$tmp/out"
    echo "without XEP_PLUGIN_PATH there must be no mode flood"
    exit 1
fi
export XEP_PLUGIN_PATH=$tmp/modes
"$tmp/client" || exit 1

unset XEP_BOOT
# run RANKS MAPPED VARIABLE...: what the client says of itself
run() {
    ranks=$1 mapped=$2
    shift 2
    env "$@" timeout $((100 * ${XEP_TEST_SLOW:-1})) "$builddir/xep_run" -n "$ranks" "$tmp/client" >"$tmp/out" 2>&1 &&
        grep -q "flood: ok on $ranks ranks, $mapped mapped" "$tmp/out" || { cat "$tmp/out"; exit 1; }
}
run 2 2 XEP_MAP=auto
run 3 1 XEP_MAP=never
run 4 2 XEP_NODE_RANKS=2 XEP_LOG=info
grep -q 'path flat: the mode has no other$' "$tmp/out" || { cat "$tmp/out"; exit 1; }
