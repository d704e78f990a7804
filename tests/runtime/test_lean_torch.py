"""Torch without some of its parts, until somebody asks for them; in a process of its own, as it is imported once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from runtime import lean_torch
from runtime.machine import gpu_driver


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or gpu_driver() or not torch.__version__.startswith(lean_torch._TESTED),
    reason="torch is imported as it is",
)
def test_parts_of_torch_are_left_out_until_somebody_asks_for_them() -> None:
    code = """
import sys
from runtime import lean_torch

tested, lean_torch._TESTED = lean_torch._TESTED, "0.0."
lean_torch.load()
assert "torch" not in sys.modules, "of a version that nobody has tried"
lean_torch._TESTED = tested
lean_torch.load()

import torch
import runtime.loading

def empty():
    return [name for name in lean_torch._LATER if type(sys.modules[name]) is lean_torch._Later]

def knows_shapes():
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::_cdist_forward", "Meta")

assert empty() == list(lean_torch._LATER)
assert not knows_shapes()
assert torch.rand(1, generator=torch.Generator().manual_seed(1)).item() < 1
import torch._refs.fft
assert empty() == [], "what torch leaves out itself may rely on all that it does not"
assert knows_shapes()
assert torch._refs.fft.__spec__.name == "torch._refs.fft"
normal = torch.distributions.Normal(1.0, 2.0)
assert abs(normal.log_prob(torch.tensor(1.0)).item() + 1.6120857) < 1e-6  # ln 2 + ln √(2π)
from torch.export import Dim
assert Dim("d").__name__ == "d"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
