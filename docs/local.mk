# SPDX-License-Identifier: BSD-3-Clause
# The documents, and what makes a site of them.

EXTRA_DIST += %D%/index.md %D%/images/load.png %D%/images/sweep.svg \
	%D%/howto/failures.md %D%/howto/frameworks.md %D%/howto/launching.md %D%/howto/low-latency.md \
	%D%/howto/measuring.md %D%/howto/modes.md %D%/howto/nodes.md %D%/howto/programming.md %D%/howto/python.md \
	%D%/reference/configuration.md \
	%D%/results/protocol-models.md %D%/explanation/security.md
