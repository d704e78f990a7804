"""The gated delta rule over whole sequences, in chunks, with its gradient.

Per value head, with decay g_t ≤ 0 and write strength β_t:

    S_t = e^{g_t} S_{t-1} + k_t β_t (v_t − e^{g_t} S_{t-1}ᵀ k_t)ᵀ,    o_t = S_tᵀ q_t

Inside a chunk of C tokens with c = cumsum(g) this is one triangular system (Yang et al., "Gated Delta Networks",
arXiv:2412.06464): with A_ij = β_i (k_i·k_j) e^{c_i − c_j} for j < i and T = (I + A)⁻¹,

    V' = T β v − (T β e^c k) S,    o = (q e^c) S + tril(q kᵀ e^{c_i − c_j}) V',    S ← e^{c_C} S + (k e^{c_C − c})ᵀ V'

Every exponent is ≤ 0. The two sequential pieces, the inverse and the scan over chunks, are custom operators with
hand-written gradients: autograd would keep every intermediate, and a compiler would unroll the loop.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LEAF = 8  # a Neumann series of strictly lower 8×8 blocks stays small in fp32; larger blocks are merged from these


def chunked_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int) -> Tensor:
    """Outputs [B, T, V, dv] from a zero state.

    q, k [B, T, K, dk], normalised and q scaled; v [B, T, V, dv]; g, beta [B, T, V]; fp32. T is a multiple of
    `chunk`, a power of two ≥ 8. Value head p reads key head p mod K.
    """
    B, T, K, dk = k.shape
    V, dv = v.shape[-2:]
    N, C, R = T // chunk, chunk, V // K
    q = q.view(B, N, C, K, dk).permute(0, 3, 1, 2, 4).unsqueeze(1)  # [B, 1, K, N, C, dk]
    k = k.view(B, N, C, K, dk).permute(0, 3, 1, 2, 4).unsqueeze(1)
    v = v.view(B, N, C, R, K, dv).permute(0, 3, 4, 1, 2, 5)  # [B, R, K, N, C, dv]: p = r·K + k
    c = g.view(B, N, C, R, K).permute(0, 3, 4, 1, 2).cumsum(-1)  # [B, R, K, N, C]
    beta = beta.view(B, N, C, R, K).permute(0, 3, 4, 1, 2)

    kt = k.transpose(-1, -2)
    lower = torch.ones(C, C, dtype=torch.bool, device=q.device).tril()
    decay = torch.where(lower, c.unsqueeze(-1) - c.unsqueeze(-2), -1e30).exp()  # [B, R, K, N, C, C]
    A = (k @ kt * decay).tril(-1) * beta.unsqueeze(-1)
    T_beta = unit_lower_inverse(A.contiguous()) * beta.unsqueeze(-2)
    e_c = c.exp()
    U = T_beta @ v
    W = (T_beta * e_c.unsqueeze(-2)) @ k
    k_end = k * (c[..., -1:] - c).exp().unsqueeze(-1)
    G = B * V
    written, states = scan_chunks(
        U.reshape(G, N, C, dv), W.reshape(G, N, C, dk), k_end.reshape(G, N, C, dk), e_c[..., -1].reshape(G, N)
    )
    inside = (q @ kt * decay).reshape(G * N, C, C)
    across = (q * e_c.unsqueeze(-1)).reshape(G * N, C, dk)
    out = torch.baddbmm(across @ states.view(G * N, dk, dv), inside, written.view(G * N, C, dv))
    return out.view(B, V, N, C, dv).permute(0, 2, 3, 1, 4).reshape(B, T, V, dv)


def delta_step(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token: S [B, V, dk, dv], q, k [B, K, dk], v [B, V, dv], g, beta [B, V] → (o [B, V, dv], new S)."""
    ratio = v.shape[1] // k.shape[1]
    q, k = q.repeat(1, ratio, 1), k.repeat(1, ratio, 1)
    S = S * g.exp()[..., None, None]
    error = (v - torch.einsum("bhkv,bhk->bhv", S, k)) * beta.unsqueeze(-1)
    S = S + k.unsqueeze(-1) * error.unsqueeze(-2)
    return torch.einsum("bhkv,bhk->bhv", S, q), S


@torch.library.custom_op("qwenchat_builtin::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(A: Tensor) -> Tensor:
    """(I + A)⁻¹ for strictly lower triangular A [..., C, C]: leaves by a Neumann series, then block by block."""
    C = A.shape[-1]
    size = min(LEAF, C)
    leaves = _diagonal(A, size)
    inverse = torch.eye(size, dtype=A.dtype, device=A.device) - leaves
    power = leaves
    for _ in range(size.bit_length() - 2):
        power = power @ power
        inverse = inverse + inverse @ power
    while size < C:  # [[a, 0], [b, d]]⁻¹ = [[a⁻¹, 0], [−d⁻¹ b a⁻¹, d⁻¹]]
        pairs = inverse.unflatten(-3, (-1, 2))
        top, bottom = pairs[..., 0, :, :], pairs[..., 1, :, :]
        below = _diagonal(A, 2 * size)[..., size:, :size]
        inverse = A.new_zeros(*top.shape[:-2], 2 * size, 2 * size)
        inverse[..., :size, :size] = top
        inverse[..., size:, size:] = bottom
        inverse[..., size:, :size] = -(bottom @ (below @ top))
        size *= 2
    return inverse.squeeze(-3).contiguous()


def _diagonal(A: Tensor, size: int) -> Tensor:
    """Diagonal blocks [..., C/size, size, size] of A [..., C, C]."""
    n = A.shape[-1] // size
    return torch.stack([A[..., i * size : (i + 1) * size, i * size : (i + 1) * size] for i in range(n)], -3)


@unit_lower_inverse.register_fake
def _(A: Tensor) -> Tensor:
    return torch.empty_like(A, memory_format=torch.contiguous_format)


@torch.library.custom_op("qwenchat_builtin::unit_lower_inverse_backward", mutates_args=())
def _inverse_backward(X: Tensor, dX: Tensor) -> Tensor:
    Xt = X.transpose(-1, -2)
    return (Xt @ dX @ Xt).neg_()


@_inverse_backward.register_fake
def _(X: Tensor, dX: Tensor) -> Tensor:
    return torch.empty_like(X, memory_format=torch.contiguous_format)


def _save_inverse(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _inverse_gradient(ctx: Any, dX: Tensor) -> Tensor:
    gradient: Tensor = _inverse_backward(ctx.saved_tensors[0], dX.contiguous())
    return gradient


unit_lower_inverse.register_autograd(_inverse_gradient, setup_context=_save_inverse)


@torch.library.custom_op("qwenchat_builtin::scan_chunks", mutates_args=())
def scan_chunks(U: Tensor, W: Tensor, K: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """V'_n = U_n − W_n S_n and S_{n+1} = d_n S_n + K_nᵀ V'_n from S_0 = 0.

    U [G, N, C, dv], W and K [G, N, C, dk], d [G, N] → V' [G, N, C, dv] and the states S_n [G, N, dk, dv].
    """
    G, N, _, dv = U.shape
    written = torch.empty_like(U, memory_format=torch.contiguous_format)
    states = U.new_empty(G, N, K.shape[-1], dv)
    S = U.new_zeros(G, K.shape[-1], dv)
    for n in range(N):
        states[:, n] = S
        written[:, n] = torch.baddbmm(U[:, n], W[:, n], S, alpha=-1)
        S = torch.baddbmm(S * d[:, n, None, None], K[:, n].transpose(1, 2), written[:, n])
    return written, states


@scan_chunks.register_fake
def _(U: Tensor, W: Tensor, K: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    written = torch.empty_like(U, memory_format=torch.contiguous_format)
    return written, U.new_empty(U.shape[0], U.shape[1], K.shape[-1], U.shape[-1])


@torch.library.custom_op("qwenchat_builtin::scan_chunks_backward", mutates_args=())
def _scan_backward(
    W: Tensor, K: Tensor, d: Tensor, written: Tensor, states: Tensor, dwritten: Tensor, dstates: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dU = torch.empty_like(written)
    dW, dK, dd = torch.empty_like(W), torch.empty_like(K), torch.empty_like(d)
    dS = torch.zeros_like(states[:, 0])  # of the state after chunk n
    for n in reversed(range(written.shape[1])):
        dU[:, n] = torch.baddbmm(dwritten[:, n], K[:, n], dS)
        dK[:, n] = torch.bmm(written[:, n], dS.transpose(1, 2))
        dd[:, n] = (dS * states[:, n]).sum((-1, -2))
        dW[:, n] = torch.bmm(dU[:, n], states[:, n].transpose(1, 2)).neg_()
        dS = torch.baddbmm(dS * d[:, n, None, None], W[:, n].transpose(1, 2), dU[:, n], alpha=-1) + dstates[:, n]
    return dU, dW, dK, dd


@_scan_backward.register_fake
def _(
    W: Tensor, K: Tensor, d: Tensor, written: Tensor, states: Tensor, dwritten: Tensor, dstates: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(written), torch.empty_like(W), torch.empty_like(K), torch.empty_like(d)


def _save_scan(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[1:], *output)


def _scan_gradient(ctx: Any, dwritten: Tensor, dstates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor, Tensor] = _scan_backward(
        *ctx.saved_tensors, dwritten.contiguous(), dstates.contiguous()
    )
    return gradients


scan_chunks.register_autograd(_scan_gradient, setup_context=_save_scan)
