# SPDX-License-Identifier: BSD-3-Clause
# The programs of the documents: built by test/abi/examples.sh as users build them, run there and by python/run-tests.

EXTRA_DIST += %D%/attention.c %D%/failure.c %D%/hello.c %D%/moe.c %D%/moe.cpp %D%/nodes.c %D%/overlap.c \
	%D%/serve_experts.c \
	%D%/attention_numpy.py %D%/balanced_numpy.py %D%/dlopen.py %D%/hello.py %D%/moe_elastic.py %D%/moe_numpy.py \
	%D%/moe_torch.py \
	%D%/moe_transformers.py %D%/moe_vllm.py %D%/serve.py %D%/serve_experts_numpy.py
