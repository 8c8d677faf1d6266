# SPDX-License-Identifier: BSD-3-Clause
# The documents, and what makes a site and manual pages of them.

EXTRA_DIST += %D%/index.md %D%/images/load.png %D%/images/sweep.svg \
	%D%/explanation/agreement.md %D%/explanation/limits.md %D%/explanation/paths.md %D%/explanation/security.md \
	%D%/explanation/sums.md \
	%D%/howto/deepep.md %D%/howto/devices.md %D%/howto/errors.md %D%/howto/failures.md %D%/howto/frameworks.md \
	%D%/howto/launching.md %D%/howto/low-latency.md %D%/howto/measuring.md %D%/howto/memory.md %D%/howto/modes.md \
	%D%/howto/nodes.md %D%/howto/programming.md %D%/howto/python.md %D%/howto/tuning.md \
	%D%/reference/c-api.md %D%/reference/configuration.md %D%/reference/formats.md %D%/reference/python-api.md \
	%D%/reference/tools.md \
	%D%/results/device-memory.md %D%/results/network-paths.md %D%/results/protocol-models.md \
	%D%/results/quantized-combines.md %D%/results/recovery.md %D%/results/shared-memory.md \
	%D%/tutorial/first-program.md %D%/tutorial/moe-layer.md
