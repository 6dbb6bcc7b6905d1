"""Two launches of the fused forward kernel at 1024 x 9600 in each dtype, for a profiler to look at.

ncu --section SpeedOfLight --section InstructionStats -k regex:forward_kernel \
    python benchmarks/profile_losses.py

The first launch gives the value alone, the second the gradient too. Without a GPU it tries itself
out on a few rows, with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import torch
from contenders import settings
from timing import batches

from partlabel.losses import _fused, build_loss


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for dtype in (torch.float32, torch.bfloat16):
        [(logits, states)] = batches("1024x9600" if device == "cuda" else "2x80", dtype, device, 1)
        logits = logits.detach()
        loss = build_loss("selective", **settings("selective", logits, "fused")).to(device)
        recipe, table = loss.recipe(), loss.class_table(logits.shape[1])
        for slopes in (None, torch.empty_like(logits)):
            value, _ = _fused.forward(logits, states, table, recipe, 1.0, slopes)
            print(f"{dtype}: {value.item():.6g}")


if __name__ == "__main__":
    main()
