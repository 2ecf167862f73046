"""An output projection as the linear map that it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from diffscope.attention.precision import exactly
from diffscope.families.base import ForeignModule
from diffscope.families.offloaded import fetched


@exactly
def written(projection: ForeignModule, x: Tensor) -> tuple[Tensor, Tensor]:
    """W·x for x (row, width), in the precision of x, and the bias; both on the CPU, (row, hidden) and (hidden,).

    A projection that is more than its weights (adapted, quantised) is run itself, in its own precision.
    """
    with fetched(projection), torch.no_grad():
        if type(projection) not in (nn.Linear, Conv1D):
            dtype = next(weight.dtype for weight in projection.parameters() if weight.is_floating_point())
            with_zero = torch.cat([torch.zeros_like(x[:1]), x])
            out = projection.forward(with_zero.to(dtype)).to(x.dtype).cpu()
            return out[1:] - out[0], out[0]
        weight = projection.weight if isinstance(projection, Conv1D) else projection.weight.T  # (width, hidden)
        out = x @ weight.to(x)
        bias = torch.zeros_like(out[0]) if projection.bias is None else projection.bias.to(x)
        return out.cpu(), bias.detach().cpu()
