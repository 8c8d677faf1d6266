# SPDX-License-Identifier: BSD-3-Clause
# A release holds every file of the repository, and besides them what autotools make.
set -u
cd "$srcdir" || exit 99
[ -e .git ] && git rev-parse --git-dir >/dev/null 2>&1 || { echo "skipped: this is no git tree"; exit 77; }
tmp=$(mktemp -d) || exit 99
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT

env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL "${MAKE:-make}" -s -C "$builddir" distdir distdir="$tmp/dist" \
    >"$tmp/log" 2>&1 ||
    { cat "$tmp/log"; exit 1; }
# what was added and not committed counts, what was deleted does not
git ls-files --cached --others --exclude-standard | while read -r file; do [ ! -e "$file" ] || echo "$file"; done |
    grep -vx '\.gitignore' | sort >"$tmp/tree"
(cd "$tmp/dist" && find . -type f -o -type l | sed 's|^\./||') |
    grep -vxE 'configure|aclocal\.m4|autoconf\.h\.in|Makefile\.in|build-aux/.*|m4/.*' | sort >"$tmp/release"
diff "$tmp/tree" "$tmp/release" || { echo "< in the repository, not in the release; > the other way round"; exit 1; }

# where the source tree was configured itself, scripts that build elsewhere do so in a copy, and keep their options
cd "$tmp/dist" || exit 99
touch config.status
printf 'distdir:\n\tmkdir -p $(distdir) && cp -Rp contrib $(distdir)\n' >Makefile
printf '. "$(dirname "$0")/setup.bash"\necho "in $top: $*"\n' >contrib/builds
for time in first second; do
    said=$(env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL bash contrib/builds --tokens 4 2>&1 | tail -n 1)
    [ "$said" = "in $PWD/build/source: --tokens 4" ] ||
        { echo "beside a build in the tree, the $time time: $said"; exit 1; }
done
