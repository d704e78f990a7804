"""All ops of the table; a new op is one file and one line here."""

from __future__ import annotations

from typing import Any

from kernels.attention import attention, rope, store_rows
from kernels.attention_q8 import attention_q8, store_rows_q8
from kernels.conv1d import causal_conv1d, conv_resume
from kernels.delta_rule import delta_chunk, delta_gates, delta_recurrent, delta_resume
from kernels.fused import attention_rows, delta_step, norm_projections, norm_swiglu, project_add, routed_experts
from kernels.moe import add_shared_expert, experts, route, swiglu
from kernels.norm import add_rms_norm, concat_rms_norm, gated_rms_norm, rms_norm
from kernels.op import Op
from kernels.quant_matmul import embedding, projections, quant_matmul
from kernels.residual import add, shift_rows, spread_logits
from kernels.sample import sample

OPS: tuple[Op[Any, Any], ...] = (
    embedding,
    rms_norm,
    add_rms_norm,
    concat_rms_norm,
    add,
    shift_rows,
    spread_logits,
    quant_matmul,
    projections,
    causal_conv1d,
    conv_resume,
    delta_gates,
    delta_recurrent,
    delta_resume,
    delta_chunk,
    gated_rms_norm,
    rope,
    store_rows,
    attention,
    store_rows_q8,
    attention_q8,
    swiglu,
    route,
    experts,
    add_shared_expert,
    sample,
)

# What a model does in their place where the table has a card.
FUSED: tuple[Op[Any, Any], ...] = (
    norm_projections,
    norm_swiglu,
    project_add,
    attention_rows,
    delta_step,
    routed_experts,
)
