# SPDX-License-Identifier: BSD-3-Clause
# Sourced by demo.sh and check.sh: finds or installs what a build needs, and builds in a folder of its own.
# Every step looks first whether it was done: a second run is quick.
# top: the source tree; work: the folder under build/ for this script's products; downloads: shared by all.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
downloads=$top/build/downloads
jobs=$(nproc 2>/dev/null || echo 2)
exec </dev/null
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
# configure looks for the most capable shell, which is bash, but all that it and libtool do a smaller one does in half
# the time
export CONFIG_SHELL=/bin/sh

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# In a source tree that was configured itself, a build elsewhere would take what lies there for its own. So the script
# goes on in a copy, whose files keep their times: a second run is quick there, too.
if [ -e "$top/config.status" ]; then
    say "the source tree itself was configured: this goes on in a copy, build/source"
    mkdir -p "$top/build/source" && make -s -C "$top" distdir distdir=build/release >"$top/build/release.log" 2>&1 &&
        cp -Rp "$top/build/release/." "$top/build/source" && chmod -R u+w "$top/build/source" ||
        { cat "$top/build/release.log"; die "the tree cannot be copied (make distclean there helps, too)"; }
    chmod -R u+w "$top/build/release" && rm -rf "$top/build/release"
    exec bash "$top/build/source/contrib/${0##*/}" "$@"
fi

# bounded SECONDS COMMAND...: ended after that long, and when this script is
bounded() {
    local status
    set -m
    timeout -k 30 "$@" &
    trap "kill -TERM -$! 2>/dev/null; wait $!; exit 143" TERM INT HUP
    wait $!
    status=$?
    trap - TERM INT HUP
    set +m
    return $status
}

# What is needed, a line each: how to see that it is there, and the Debian package that brings it.
needs_to_build='
command:autoconf autoconf
command:automake automake
command:libtoolize libtool
command:pkg-config pkg-config
command:make make
command:cc gcc
command:c++ g++
header:stdio.h libc6-dev
header:numa.h libnuma-dev
library:ucx>=1.13 libucx-dev
library:pmix>=4.0 libpmix-dev'

needs_to_check='
library:cmocka>=1.1 libcmocka-dev
command:nm binutils
command:abidiff abigail-tools
command:clang clang
command:clang-format clang-format
command:mandoc mandoc
command:spin spin
file:/usr/include/relacy/relacy.hpp relacy-dev
command:tcc tcc
command:strace strace
command:python3 python3
python:venv python3-venv
command:mpirun openmpi-bin
command:slurmctld slurm-wlm
file:/usr/lib/*/slurm*/mpi_pmix*.so slurm-wlm-basic-plugins'

is_there() {
    local kind=${1%%:*} what=${1#*:}
    case $kind in
    command) PATH=$PATH:/usr/sbin:/sbin command -v "$what" >/dev/null ;;
    header) printf '#include <%s>\n' "$what" | cc -E - >/dev/null 2>&1 ;;
    library) pkg-config --exists "${what/>=/ >= }" 2>/dev/null ;;
    python) python3 -c "import $what, ensurepip" 2>/dev/null ;;
    python-header) python3 -c "import os, sysconfig; os.stat(sysconfig.get_path('include') + '/$what')" 2>/dev/null ;;
    file) compgen -G "$what" >/dev/null ;;
    esac
}

# packages whose need is not met
missing() {
    local need package
    while read -r need package; do
        [ -z "$need" ] || is_there "$need" || printf '%s\n' "$package"
    done <<<"$1" | sort -u
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    command -v apt-get >/dev/null && { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" >>"$work/apt.log" 2>&1
}

# install NEEDS: what is missing of them; returns 1 when something still is
install() {
    local packages
    packages=$(missing "$1")
    [ -n "$packages" ] || return 0
    may_install || return 1
    say "installing $(echo $packages) (log: ${work#"$top"/}/apt.log)"
    # an old list of packages names files that are gone
    apt_install $packages || { as_root apt-get update >>"$work/apt.log" 2>&1 && apt_install $packages; } ||
        for package in $packages; do apt_install "$package"; done
    [ -z "$(missing "$1")" ]
}

install_to_build() {
    install "$needs_to_build" && return
    say "These are needed and could not be installed from here: $(echo $(missing "$needs_to_build"))" >&2
    say "On Debian and Ubuntu: apt-get install $(echo $(missing "$needs_to_build"))" >&2
    say "Elsewhere: a C and C++ compiler, autoconf, automake, libtool, pkg-config, make, and the development" >&2
    say "files of UCX 1.13 or newer (ucx.pc), PMIx 4 or newer (pmix.pc) and libnuma (numa.h)." >&2
    exit 1
}

# makes ./configure, when it is not there or older than what it is made of
generate() {
    local sources=("$top/configure.ac" "$top/Makefile.am" "$top"/*/local.mk "$top/autogen.sh")
    [ -x "$top/configure" ] && [ -z "$(find "${sources[@]}" -newer "$top/configure")" ] &&
        [ "$top/Makefile.in" -nt "$top/Makefile.am" ] && return
    say "autogen.sh"
    (cd "$top" && ./autogen.sh) >"$work/autogen.log" 2>&1 || { cat "$work/autogen.log"; die "autogen.sh failed"; }
}

# configure FOLDER SCRIPT ARGUMENT...: again only when the script or the arguments are not those of the last time
configure() {
    local folder=$1
    shift
    mkdir -p "$folder"
    if [ ! -e "$folder/Makefile" ] || [ "$top/configure" -nt "$folder/config.status" ] ||
        [ "$*" != "$(cat "$folder/configured" 2>/dev/null)" ]; then
        rm -f "$folder/configured"
        (cd "$folder" && "$@") >"$folder/configure.log" 2>&1 || { cat "$folder/configure.log"; return 1; }
        printf '%s\n' "$*" >"$folder/configured"
    fi
}
