# SPDX-License-Identifier: BSD-3-Clause
# Every deliberate defect of test/mutants still applies: a change of the lines that it breaks takes it along. Whether
# tests notice them all is "make mutants", which takes half an hour; one that applies no more would lie there till then.
set -u
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT

bash "$srcdir/test/mutants/run" -n "$srcdir" "$tmp/tree" >"$tmp/out" || {
    grep -v ' applies$' "$tmp/out"
    echo "the text of these entries of test/mutants is not in the sources exactly once"
    exit 1
}
[ -s "$tmp/out" ] || { echo "no entry was looked at"; exit 1; }

# one that is gone and one that is there twice are found, and no other
mkdir -p "$tmp/stale/plugins" "$tmp/stale/test/mutants"
printf 'once;\ntwice;\ntwice;\n' >"$tmp/stale/plugins/some.c"
for word in once twice gone; do
    printf '= ll %s\nplugins/some.c\n-%s;\n+\n\n' "$word" "$word"
done >"$tmp/stale/test/mutants/some.mutants"
bash "$srcdir/test/mutants/run" -n "$tmp/stale" "$tmp/built" >"$tmp/out" && { echo "stale entries pass"; exit 1; }
awk '{ print $2, $NF }' "$tmp/out" >"$tmp/found"
diff - "$tmp/found" <<'END' || { echo "entries found (>) are not those that are stale"; exit 1; }
once applies
twice apply
gone apply
END
