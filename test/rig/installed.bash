# SPDX-License-Identifier: BSD-3-Clause
# Sourced by tests that need xep as a user has it: installs the build into $tmp/root, and lets pkg-config and the loader
# find it there.
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL "${MAKE:-make}" -s -C "$builddir" install DESTDIR="$tmp/root" \
    >"$tmp/log" 2>&1 ||
    { cat "$tmp/log"; echo "make install failed"; exit 1; }

pc=$(find "$tmp/root" -name xep.pc)
[ -n "$pc" ] || { echo "no xep.pc was installed"; exit 1; }
export PKG_CONFIG_PATH=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$tmp/root
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
libdir=$(dirname "$PKG_CONFIG_PATH")
export LD_LIBRARY_PATH=$libdir:${LD_LIBRARY_PATH#"$builddir/.libs"}
# the installed modes are found beside the library
unset XEP_PLUGIN_PATH

# compile OUTPUT FLAG...: as a user would, with pkg-config
compile() {
    output=$1
    shift
    ${CC:-cc} ${CFLAGS:-} -std=c11 -pedantic -Wall -Wextra -Werror $(pkg-config --cflags xep) -o "$output" "$@" ||
        { echo "cannot compile: $*"; exit 1; }
}
