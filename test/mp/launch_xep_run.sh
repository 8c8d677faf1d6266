# SPDX-License-Identifier: BSD-3-Clause
# limit: 400, again: 2
# xep_run: one rank to sixty-four, nodes drawn by force.
. "$srcdir/test/mp/launch.bash" || exit 99

whole '1 rank' 1 1 1 ./xep_run -n 1
whole '4 ranks' 4 1 4 ./xep_run -n 4
whole '4 ranks on 2 virtual nodes' 4 2 2 ./xep_run -n 4 -N 2
whole '64 ranks' 64 1 64 ./xep_run -n 64
meets '4 ranks' 4 ./xep_run -n 4
[ ! -x test/mp/met ] || passes 'no launcher, so no name' test/mp/met 1 alone
exit $failed
