"""All ops of the table; a new op is one file and one line here."""

from __future__ import annotations

from typing import Any

from kernels.attention import attention, rope
from kernels.attention_q8 import attention_q8
from kernels.conv1d import causal_conv1d
from kernels.delta_rule import delta_chunk, delta_gates, delta_recurrent
from kernels.moe import experts, route, swiglu
from kernels.norm import gated_rms_norm, rms_norm
from kernels.op import Op
from kernels.quant_matmul import embedding, quant_matmul

OPS: tuple[Op[Any, Any], ...] = (
    embedding,
    rms_norm,
    quant_matmul,
    causal_conv1d,
    delta_gates,
    delta_recurrent,
    delta_chunk,
    gated_rms_norm,
    rope,
    attention,
    attention_q8,
    swiglu,
    route,
    experts,
)
