# SPDX-License-Identifier: BSD-3-Clause
# limit: 400, again: 2
# xep_run: one rank to sixty-four, nodes drawn by force.
. "$srcdir/test/rig/launch.bash" || exit 99

whole '1 rank' 1 1 1 ./xep_run -n 1
whole '4 ranks' 4 1 4 ./xep_run -n 4
whole '4 ranks on 2 virtual nodes' 4 2 2 ./xep_run -n 4 -N 2
many=64
[ -z "${XEP_TEST_BRIEF:-}" ] || many=20
whole "$many ranks" $many 1 $many ./xep_run -n $many
meets '4 ranks' 4 ./xep_run -n 4
[ ! -x test/mp/groups/meet_by_name ] || passes 'no launcher, so no name' test/mp/groups/meet_by_name 1 alone
exit $failed
