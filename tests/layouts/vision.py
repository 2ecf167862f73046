"""timm itself, wherever it is installed, and tiny vision transformers of its classes."""

import importlib
import sys
import warnings
from pathlib import Path

import torch

from tests.tiny import awake

APART = Path(sys.prefix) / "vision"
_KEPT = []  # a library of operators is forgotten with its last reference


def import_timm():
    """The module ``timm``, from the environment or from the folder beside it, where it lies if torchvision does not fit torch.

    What timm needs of such a torchvision works without its operators once their schemas are there, but others that find it
    fail, so it is found only while timm is imported.

    Raises
    ------
    ImportError
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("timm")
        except (ImportError, RuntimeError) as error:
            if not (APART / "timm").is_dir():
                raise ImportError(f"timm cannot be imported ({error}) and is not in {APART} either") from error
        sys.path.append(str(APART))
        try:
            _declare_operators()
            return importlib.import_module("timm")
        finally:
            sys.path.remove(str(APART))


def _declare_operators():
    """Give torchvision the schemas of its operators if it cannot load its own."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        _KEPT.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _KEPT[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def tiny(seed=0, parallel=False, fused=True, **more):
    """Two layers, 16 patches and one register; `parallel` has the attention inside its blocks."""
    timm = import_timm()
    torch.manual_seed(seed)
    chosen = {"block_fn": timm.models.vision_transformer.DiffParallelScalingBlock} if parallel else {"attn_layer": "diff"}
    shape = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, mlp_ratio=2, num_classes=10)
    tokens = dict(class_token=False, reg_tokens=1, no_embed_class=True, global_pool="avg")
    model = timm.models.VisionTransformer(**{**shape, **tokens, **chosen, **more})
    return disturb(awake(model, seed), fused, seed)


def disturb(model, fused=True, seed=0):
    """Norms, biases, positions and λ away from what they are initialised at."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            kind = name.rpartition(".")[2]
            if kind.startswith("lambda_"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
            elif parameter.dim() == 1 and kind == "weight":
                parameter.copy_(torch.rand(parameter.shape, generator=generator) * 1.5 + 0.5)
            elif parameter.dim() != 2 and kind != "weight":
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


def image(seed=0, height=32, width=32):
    return torch.randn(3, height, width, generator=torch.Generator().manual_seed(seed))
