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
