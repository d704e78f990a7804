"""The ops of the table as launches of Triton kernels.

Kernels are loaded with the first launch, so that the table can be made where Triton is missing.
"""

from kernels.triton.ops_attention import attention, attention_q8, rope, store_rows, store_rows_q8
from kernels.triton.ops_experts import add_shared_expert, experts, route
from kernels.triton.ops_products import embedding, projections, quant_matmul
from kernels.triton.ops_rows import (
    add,
    add_rms_norm,
    causal_conv1d,
    concat_rms_norm,
    conv_resume,
    delta_chunk,
    delta_gates,
    delta_recurrent,
    delta_resume,
    gated_rms_norm,
    rms_norm,
    shift_rows,
    spread_logits,
    swiglu,
)
from kernels.triton.ops_sample import sample

__all__ = [
    "add", "add_rms_norm", "add_shared_expert", "attention", "attention_q8", "causal_conv1d", "concat_rms_norm",
    "conv_resume", "delta_chunk", "delta_gates", "delta_recurrent", "delta_resume", "embedding", "experts",
    "gated_rms_norm", "projections", "quant_matmul", "rms_norm", "rope", "route", "sample", "shift_rows",
    "spread_logits", "store_rows", "store_rows_q8", "swiglu",
]  # fmt: skip
