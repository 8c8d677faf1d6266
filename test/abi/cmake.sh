# SPDX-License-Identifier: BSD-3-Clause
# What CMake's users need: find_package(xep) of an installation, its target, a version that is too new refused, and the
# same of an installation that was moved.
set -u
command -v cmake >/dev/null || { echo "skipped: there is no cmake"; exit 77; }
. "$srcdir/test/rig/installed.bash" || exit 99

mkdir "$tmp/project"
cat >"$tmp/project/program.c" <<'END'
#include <stdio.h>
#include <xep/xep.h>
int main(void) { return puts(xep_version_string()) < 0; }
END
cat >"$tmp/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.13)
project(user C)
find_package(xep ${WANTED} REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE xep::xep)
END
limit=$((60 * ${XEP_TEST_SLOW:-1}))
find_it() {
    timeout $limit cmake -S "$tmp/project" -B "$tmp/made" -DCMAKE_PREFIX_PATH="$prefix" "$@" >"$tmp/log" 2>&1
}
prefix=${libdir%/*}
find_it && timeout $limit cmake --build "$tmp/made" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
version=$("$tmp/made/program") && [ "$version" = "$(pkg-config --modversion xep)" ] ||
    { echo "the program says: $version"; exit 1; }
# the headers are those of the library, whatever else CMake looks at first
mkdir -p "$tmp/other/include/xep" && echo '#error other headers' >"$tmp/other/include/xep/xep.h" && rm -rf "$tmp/made"
find_it -DCMAKE_PREFIX_PATH="$tmp/other;$prefix" && timeout $limit cmake --build "$tmp/made" >"$tmp/log" 2>&1 ||
    { cat "$tmp/log"; echo "headers of another folder"; exit 1; }
rm -rf "$tmp/made"
! find_it -DWANTED=99.0 && grep -q 'version: ' "$tmp/log" || { cat "$tmp/log"; echo "version 99 was found"; exit 1; }

# moved: to a folder with a blank in its name, without what remains of its first place
prefix="$tmp/moved here"
mkdir "$prefix" && cp -a "${libdir%/*}"/. "$prefix" && mv "${libdir%/*}" "$tmp/gone" && rm -rf "$tmp/made"
find_it && timeout $limit cmake --build "$tmp/made" >"$tmp/log" 2>&1 && [ "$("$tmp/made/program")" = "$version" ] ||
    { cat "$tmp/log"; echo "not found when it was moved"; exit 1; }
