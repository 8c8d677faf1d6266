# SPDX-License-Identifier: BSD-3-Clause
# A mode written outside the tree: built from the installed headers alone, found through XEP_PLUGIN_PATH, used.
set -u
. "$srcdir/test/rig/installed.bash" || exit 99
here=$srcdir/test/abi/outoftree

mkdir "$tmp/modes"
compile "$tmp/modes/xep_solo.so" -shared -fPIC "$here/xep_solo.c"
compile "$tmp/client" "$here/solo_client.c" $(pkg-config --libs xep)
bash "$srcdir/contrib/check-symbols.sh" "$libdir/libxep.so" "$srcdir/src/xep.map" "$srcdir/include/xep/xep.h" "$tmp/modes/xep_solo.so" || exit 1

export XEP_BOOT=single
if "$tmp/client" >"$tmp/out" 2>&1 || ! grep -q 'there is no xep_solo.so in' "$tmp/out"; then
    cat "$tmp/out"
    echo "without XEP_PLUGIN_PATH there must be no mode solo"
    exit 1
fi
XEP_PLUGIN_PATH=$tmp/modes "$tmp/client" || exit 1

unset XEP_BOOT
if XEP_PLUGIN_PATH=$tmp/modes "$builddir/xep_run" -n 2 "$tmp/client" >"$tmp/out" 2>&1 ||
    ! grep -q 'solo serves a group of one rank, this one has 2' "$tmp/out"; then
    cat "$tmp/out"
    echo "on two ranks solo must say that it serves one"
    exit 1
fi
