# SPDX-License-Identifier: BSD-3-Clause
# Sources of C and CUDA are as clang-format 14 leaves them ("make format" makes them so); no line has more than 120
# columns.
set -u
cd "$srcdir" || exit 99
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT

# what people write: not what a build or autotools have left
written() {
    find include src plugins tools oracle test python examples contrib docs man .ci \
        \( -name build -o -name '*.egg-info' \) -prune -o -type f \( "$@" \) -print |
        grep -v '^include/xep/version\.h$' | sort
}

too_long() {
    awk 'length > 120 { print FILENAME ":" FNR ": " length " columns" }' "$@"
}

# every rule is seen to fail
printf '%121s\n' x >"$tmp/long"
[ "$(too_long "$tmp/long")" = "$tmp/long:1: 121 columns" ] || { echo 'a line of 121 columns is not found'; exit 1; }

written -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.in' >"$tmp/sources"
{ written -name '*.sh' -o -name '*.bash' -o -name '*.py' -o -name '*.md' -o -name '*.mk' -o -name '*.toml'
  written -name '*.pml'
  written -name '*.1' -o -name '*.awk' -o -name run-test -o -name run-tests
  written -path 'contrib/configure-*' -o -path .ci/run
  ls README.md ARCHITECTURE.md CONTRIBUTING.md NEWS Makefile.am configure.ac autogen.sh; } >"$tmp/others"
too_long $(cat "$tmp/sources" "$tmp/others") >"$tmp/found"
if [ -s "$tmp/found" ]; then
    cat "$tmp/found"
    exit 1
fi

for format in clang-format-14 clang-format; do
    "$format" --version 2>/dev/null | grep -q 'version 14\.' && break
    format=
done
[ -n "$format" ] || { echo 'skipped: clang-format 14 is not installed (Debian: clang-format)'; exit 77; }
"$format" --style=file --dry-run -Werror $(grep -E '\.([ch]|cuh?)$' "$tmp/sources") 2>"$tmp/found" ||
    { head -20 "$tmp/found"; echo 'run "make format"'; exit 1; }
mkdir "$tmp/tree"
cp .clang-format "$tmp/tree"
echo 'int  f( void ){return 1 ;}' >"$tmp/tree/untidy.c"
! "$format" --style=file --dry-run -Werror "$tmp/tree/untidy.c" 2>"$tmp/found" ||
    { echo 'an untidy source is not found'; exit 1; }
