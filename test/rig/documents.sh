# SPDX-License-Identifier: BSD-3-Clause
# The documents keep contrib/check-documents.sh, and every rule of it finds what breaks it, in a copy of the tree. The
# manual pages have no mistakes that mandoc knows of.
set -u
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
check=$srcdir/contrib/check-documents.sh

# names that are nowhere in the tree: not here either
absent=nothing_of_that_name
ABSENT=NOTHING_OF_THAT_NAME

bash "$check" "$srcdir" || { echo "the documents break the rules above"; exit 1; }
[ -z "${XEP_TEST_BRIEF:-}" ] || exit 0

mkdir "$tmp/tree"
(cd "$srcdir" && tar cf - --exclude=.git --exclude='./build*' --exclude=autom4te.cache --exclude=.libs .) |
    tar xf - -C "$tmp/tree"
chmod -R u+w "$tmp/tree"
: >"$tmp/expected"

# bad FILE LINE RULE: the line, put at the end of the file, breaks the rule
bad() {
    printf '%s\n' "$2" >>"$tmp/tree/$1"
    expect "$1:$(wc -l <"$tmp/tree/$1")" "$3"
}

# change FILE SED-SCRIPT RULE WHERE: breaks the rule, which is found at that file and line
change() {
    sed -i "$2" "$tmp/tree/$1"
    expect "$4" "$3"
}

expect() {
    echo "$1: $2" >>"$tmp/expected"
}

# line FILE PATTERN: the first line with it
line() {
    echo "$1:$(grep -nm1 "$2" "$tmp/tree/$1" | cut -d: -f1)"
}

bad README.md 'see src/group/nothing.c' 'no such path'
bad docs/howto/python.md 'and `tools/perf/nothing_*.c`' 'no such path'
bad NEWS 'contrib/nothing.sh is new' 'no such path'
bad ARCHITECTURE.md 'in `nothing.h`' 'no such file'
bad CONTRIBUTING.md "calls \`xep_$absent()\`" 'no such name in the tree'
bad ARCHITECTURE.md '  xep_dispatch()  src/util/log.c  gone' 'not in its place'
bad docs/howto/launching.md "XEP_$ABSENT=1 ./prog" 'no such name in the tree'
change man/xep_run.1 '/^\.It Fl k$/d' 'an option' man/xep_run.1:1
bad man/xep_run.1 ".Ev XEP_$ABSENT" 'no such name in the tree'
bad docs/howto/modes.md '[gone](nothing.md)' 'a link that leads nowhere'
bad docs/howto/modes.md '[here](launching.md#nothing-of-the-kind)' 'a link that leads nowhere'
bad docs/howto/measuring.md '    xep_run -n 2 xep_perf --nothing     # --check' 'an option'
: >"$tmp/tree/docs/howto/orphan.md"
expect docs/howto/orphan.md:1 'a page nobody finds'
variables=docs/reference/configuration.md
change $variables '/^\* `XEP_MAP` (/d' 'a variable that is not described' $variables:1
change $variables 's/^\(\* `XEP_STREAMING` (\)`[0-9a-z]*`/\1`1k`/' 'a variable that is not described' \
    "$(line $variables XEP_STREAMING)"
bad $variables '* `XEP_DTYPE_LIST`: a name, but not of a variable' 'no such variable'
change include/xep/xep.h '/^XEP_API.* xep_group_barrier(/i\\' 'a public function' \
    "include/xep/xep.h:$(($(grep -n '^XEP_API.* xep_group_barrier(' "$tmp/tree/include/xep/xep.h" | cut -d: -f1) + 1))"
sed -i 's/xep_version_string;/&\n        xep_of_the_map_alone;/' "$tmp/tree/src/xep.map"
expect src/xep.map:1 'a public function'
sed -i '/^with xep.Group() as group:/s/group/g/' "$tmp/tree/examples/hello.py"
expect "$(line README.md 'example: examples/hello.py')" 'not the example that it names'
change debian/changelog 's/^xep (/&9/' 'not the version of configure.ac' debian/changelog:1
change python/pyproject.toml '/^version = /d' 'not the version of configure.ac' python/pyproject.toml:1
mkdir "$tmp/tree/src/fresh"
expect ARCHITECTURE.md:1 'a folder that is not on the map'
change man/xep_info.1 's/^\.It Fl a, Fl -all\|^\.It Fl a .*/.It Fl a , Fl -everything/' 'an option' man/xep_info.1:1
bad man/xep_perf.1 '.It Fl -nothing Ar n' 'an option'
sed -i 's|^man/xep_perf.1:[0-9]*: an|man/xep_perf.1:1: an|' "$tmp/expected"

# no violations
cat >>"$tmp/tree/docs/howto/modes.md" <<'END'
[elsewhere](https://example.org/nothing.md), `plugins/*/`, `XEP_TEST_*`, `xep_<name>.so`, test/bench/kernels,
src/group/, build/devel, [a heading](#writing-a-mode)
END

bash "$check" "$tmp/tree" >"$tmp/out"
status=$?
[ $status -eq 1 ] || { echo "status $status with violations"; exit 1; }
sed 's/^\([^ ]*:[0-9]*: [^:]*\):.*/\1/' "$tmp/out" | sort -u >"$tmp/found"
sort -u "$tmp/expected" | diff - "$tmp/found" ||
    { echo 'not as expected: < not found, > found without reason'; exit 1; }

command -v mandoc >/dev/null || { echo 'mandoc is not installed: the manual pages are not looked at'; exit 0; }
mandoc -Tlint "$srcdir"/man/*.1 2>/dev/null | grep -v 'referenced manual not found' >"$tmp/lint"
[ ! -s "$tmp/lint" ] || { cat "$tmp/lint"; exit 1; }

# each function of the library has a page, and so has each type that it takes
for name in $(grep -oE '\<xep_[a-z0-9_]+\>;' "$srcdir/src/xep.map" | tr -d ';') xep xep_dispatch_args_t xep_status_t; do
    [ -s "$builddir/docs/man3/$name.3" ] ||
        { echo "no page of the manual: $name (docs/local.mk: api_headers)"; exit 1; }
done
mandoc -Tlint -W warning "$builddir"/docs/man3/*.3 2>/dev/null | grep -v 'referenced manual not found' >"$tmp/lint"
[ ! -s "$tmp/lint" ] || { cat "$tmp/lint"; exit 1; }
