"""partlabel with kernels of our own where PyTorch is slow in bfloat16 on a CPU; for studies.

    python benchmarks/cpu_kernels.py --check
    python benchmarks/cpu_kernels.py compare FILE.toml --set train.precision=bf16 ...

Takes the arguments of partlabel. Gradients of depthwise convolutions are most of the time of a step
of EfficientNet there; batch normalisation and ReLU6 by themselves go over memory more than once.
What is computed is the same, up to the rounding of bfloat16: `--check` compares with PyTorch in
float64. Needs a processor with AVX-512 and bfloat16, and a C++ compiler; one thread a process
(`OMP_NUM_THREADS=1`), so run as many processes as there are cores (`benchmarks/study.py --cpu`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from partlabel.vision import load

SOURCE = Path(__file__).with_suffix(".cpp")
LAST = torch.channels_last
plain_convolution = functional.conv2d


def built() -> ctypes.CDLL:
    """The kernels, compiled where that was not done."""
    processor = Path("/proc/cpuinfo").read_bytes().partition(b"flags")[2].partition(b"\n")[0]
    name = f"{hashlib.sha256(SOURCE.read_bytes() + processor).hexdigest()[:16]}.so"
    path = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "partlabel" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / name
            command = ["c++", "-O3", "-march=native", "-shared", "-fPIC", "-o", made, SOURCE]
            subprocess.run(command, check=True)
            made.replace(path)
    return ctypes.CDLL(str(path))


def at(*tensors: Tensor) -> list[ctypes.c_void_p]:
    """Where tensors are; who calls keeps them alive."""
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


class Depthwise(torch.autograd.Function):
    """A depthwise convolution in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        (_, c, h, w), k = x.shape, weight.shape[-1]
        if few_channels(c, k, stride, padding):
            out, there = torch.empty_like(x), taps(weight)
            KERNELS.convolve(*at(out, x, there), len(x), h, w, c)
            return out
        found = plain_convolution(x, weight, None, stride, padding, 1, c)
        return found.contiguous(memory_format=LAST)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        (n, c, h, w), k = x.shape, weight.shape[-1]
        dy = dy.contiguous(memory_format=LAST)
        dx, dw, there = torch.empty_like(x), torch.empty(k, k, c), taps(weight)
        sizes = n, h, w, c, dy.shape[2], dy.shape[3], k, ctx.stride, ctx.padding
        if few_channels(c, k, ctx.stride, ctx.padding):
            turned = there.flip(0, 1).contiguous()
            KERNELS.convolve(*at(dx, dy, turned), n, h, w, c)
        else:
            KERNELS.grad_input(*at(dx, dy, there), *sizes)
        KERNELS.grad_weight(*at(dw, x, dy), *sizes)
        return dx, dw.permute(2, 0, 1).reshape(weight.shape).to(weight.dtype), None, None


def few_channels(channels: int, kernel: int, stride: int, padding: int) -> bool:
    return (channels, kernel, stride, padding) == (32, 3, 1, 1)


def taps(weight: Tensor) -> Tensor:
    """Weights (C, 1, K, K) as (K, K, C), float32."""
    return weight.detach()[:, 0].permute(1, 2, 0).float().contiguous()


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """torch.nn.functional.conv2d."""
    given = stride, padding, dilation
    steps, edges, gaps = (each if isinstance(each, tuple | list) else (each,) * 2 for each in given)
    ours = (
        torch.is_grad_enabled()
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and x.device.type == "cpu"
        and bias is None
        and groups == x.shape[1] == weight.shape[0]
        and groups % 16 == 0
        and weight.shape[-1] == weight.shape[-2]
        and weight.shape[-1] in (3, 5)
        and set(gaps) == {1}
        and len(set(steps)) == len(set(edges)) == 1
        and isinstance(edges[0], int)
    )
    if not ours:
        return plain_convolution(x, weight, bias, stride, padding, dilation, groups)
    half = x.to(torch.bfloat16).contiguous(memory_format=LAST)
    found: Tensor = Depthwise.apply(half, weight.to(torch.bfloat16), steps[0], edges[0])
    return found


class Normalise(torch.autograd.Function):
    """Batch normalisation in training, and ReLU6 where it is wanted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: nn.BatchNorm2d, weight: Tensor, bias: Tensor,
                relu6: bool) -> Tensor:  # fmt: skip
        x = x.contiguous(memory_format=LAST)
        n, c, h, w = x.shape
        z, (mean, inverse, variance) = torch.empty_like(x), torch.empty(3, c).unbind()
        count = n * h * w
        sizes = ctypes.c_long(count), c, ctypes.c_float(norm.eps), int(relu6)
        KERNELS.norm_forward(*at(z, x, weight, bias, mean, inverse, variance), *sizes)
        if norm.running_mean is not None and norm.running_var is not None:
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        ctx.relu6 = relu6
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        n, c, h, w = x.shape
        dz = dz.to(torch.bfloat16).contiguous(memory_format=LAST)
        dx, (dw, db) = torch.empty_like(x), torch.empty(2, c).unbind()
        sizes = ctypes.c_long(n * h * w), c, int(ctx.relu6)
        KERNELS.norm_backward(*at(dx, dw, db, dz, x, weight, bias, mean, inverse), *sizes)
        return dx, None, dw, db, None


def normalisation(plain: Any) -> Any:
    """The method forward of timm's batch normalisation with an activation."""

    def forward(self: Any, x: Tensor) -> Tensor:
        ours = (
            self.training
            and torch.is_grad_enabled()
            and x.dtype == torch.bfloat16
            and x.device.type == "cpu"
            and x.shape[1] % 8 == 0
            and x.numel() > 0
            and isinstance(self.act, nn.Identity | nn.ReLU6)
            and isinstance(self.drop, nn.Identity)
            and self.momentum is not None
            and self.weight is not None
            and self.weight.dtype == torch.float32
        )
        if not ours:
            found: Tensor = plain(self, x)
            return found
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        relu6 = isinstance(self.act, nn.ReLU6)
        made: Tensor = Normalise.apply(x, self, self.weight, self.bias, relu6)
        return made

    return forward


def install() -> None:
    """Put the kernels in place of PyTorch's."""
    functional.conv2d = convolution
    load("timm")
    norm = load("timm.layers.norm_act").BatchNormAct2d
    norm.forward = normalisation(norm.forward)


def far(found: Tensor, right: Tensor) -> float:
    return float((found.detach().double() - right.detach()).norm() / right.detach().norm())


def check() -> None:
    """Print how far all results are from those of PyTorch in float64."""
    torch.manual_seed(0)
    norm_act = load("timm.layers.norm_act").BatchNormAct2d
    worst = 0.0
    for c, k, stride, padding, size in [(32, 3, 1, 1, 56), (96, 3, 2, 0, 57), (144, 5, 2, 0, 31),
                                        (240, 5, 1, 2, 14), (1152, 3, 1, 1, 4)]:  # fmt: skip
        x = torch.randn(4, c, size, size).bfloat16().to(memory_format=LAST).requires_grad_()
        weight = torch.randn(c, 1, k, k).bfloat16().requires_grad_()
        y = Depthwise.apply(x, weight, stride, padding)
        dy = torch.randn_like(y)
        exact = [each.detach().double().requires_grad_() for each in (x, weight)]
        right = plain_convolution(*exact, None, stride, padding, 1, c)
        rights = [right, *torch.autograd.grad(right, exact, dy.double())]
        found = [y, *torch.autograd.grad(y, (x, weight), dy)]
        errors = [far(*pair) for pair in zip(found, rights, strict=True)]
        worst = max(worst, *errors)
        print(f"depthwise {c:4} {k}x{k}/{stride}", *(f"{error:.1e}" for error in errors))
    for c, act in [(24, nn.Identity), (96, nn.ReLU6), (1152, nn.ReLU6)]:
        norm = norm_act(c, act_layer=act).train()
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.normal_(norm.bias, 0, 2)
        reference = norm_act(c, act_layer=act).double().train()
        reference.load_state_dict(norm.state_dict())
        x = 3 * torch.randn(8, c, 7, 9) + 5 * torch.randn(1, c, 1, 1)
        x = x.bfloat16().to(memory_format=LAST).requires_grad_()
        z = Normalise.apply(x, norm, norm.weight, norm.bias, act is nn.ReLU6)
        dz = torch.randn_like(z)
        exact_x = x.detach().double().requires_grad_()
        right = reference.act(nn.BatchNorm2d.forward(reference, exact_x))
        inputs = exact_x, reference.weight, reference.bias
        rights = [right, *torch.autograd.grad(right, inputs, dz.double()), reference.running_var]
        found = [z, *torch.autograd.grad(z, (x, norm.weight, norm.bias), dz), norm.running_var]
        errors = [far(*pair) for pair in zip(found, rights, strict=True)]
        worst = max(worst, *errors)
        print(f"normalise {c:4} {act.__name__:8}", *(f"{error:.1e}" for error in errors))
    check_model()
    if not worst < 4e-3:  # bfloat16 rounds by 2e-3 on average
        sys.exit(f"{worst:.1e} is too far")


def check_model() -> None:
    """Print how near a model's gradients in bfloat16 are to those in float32, both ways."""
    timm = load("timm")

    def gradient(half: bool) -> Tensor:
        torch.manual_seed(0)
        model = timm.create_model("tf_efficientnet_lite0", num_classes=9).train()
        images = torch.randn(32, 3, 64, 64).contiguous(memory_format=LAST)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            model(images).float().square().sum().backward()
        return torch.cat([each.grad.flatten() for each in model.parameters()])

    exact, plain = gradient(half=False), gradient(half=True)
    install()
    near = [functional.cosine_similarity(exact, each, dim=0) for each in (plain, gradient(True))]
    print(f"model     cosine by PyTorch {near[0]:.3f}, with these kernels {near[1]:.3f}")
    if not near[1] > near[0] - 0.1:
        sys.exit("a model trains otherwise")


KERNELS = built()
if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check()
    else:
        install()
        from partlabel.cli import run

        run()
