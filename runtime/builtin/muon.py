"""Muon: momentum whose update is made orthogonal, for weight matrices (Jordan et al. 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration; they bring all singular values near 1


def orthogonalise(G: Tensor, steps: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """U Vᵀ of G = U Σ Vᵀ, nearly, for a stack of matrices [n, rows, columns], by Newton–Schulz iteration."""
    a, b, c = COEFFICIENTS
    wide = G.shape[-2] <= G.shape[-1]
    X = (G if wide else G.transpose(-1, -2)).to(dtype)
    X = X / (torch.linalg.matrix_norm(X.float(), keepdim=True) + 1e-7).to(dtype)
    for _ in range(steps):
        A = X @ X.transpose(-1, -2)
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return (X if wide else X.transpose(-1, -2)).to(G.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled by √(rows/columns) where a matrix is tall; decoupled weight decay.

    Matrices of one shape are orthogonalised together: alone they are too small to fill a core.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.dtype = dtype
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: defaultdict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append((p, p.grad))
            for shape, matrices in by_shape.items():
                directions = []
                for p, gradient in matrices:
                    state = self.state[p]
                    if not state:
                        state["momentum"] = torch.zeros_like(p)
                    state["momentum"].lerp_(gradient, 1 - group["momentum"])
                    directions.append(torch.lerp(gradient, state["momentum"], group["momentum"]))
                updates = orthogonalise(torch.stack(directions), dtype=self.dtype)
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                for (p, _), update in zip(matrices, updates, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)
