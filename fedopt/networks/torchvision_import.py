"""Imports torchvision, also beside a torch build of another kind.

torchvision declares fake versions of its compiled operators `nms` and `qnms` when it is imported. If its compiled library
does not load (a CUDA build of torchvision beside a CPU build of torch, say), these operators are missing and the import
fails, although nothing here needs them. Declaring both without an implementation cures it.
"""

import sys

import torch

try:
    import torchvision
except RuntimeError as error:
    if "operator torchvision::" not in str(error):
        raise
    for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[module]
    _operators = torch.library.Library("torchvision", "DEF")  # kept: the operators live as long as it does
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

__all__ = ["torchvision"]
