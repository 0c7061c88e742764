"""Import torchvision, also if its build does not match the build of torch.

When torchvision is imported, it declares fake versions of its compiled operators `nms` and `qnms`. If its compiled
library cannot be loaded (for instance, a CUDA build of torchvision with a CPU build of torch), these operators are
missing and the import fails, although fedopt does not need them. Declaring both without an implementation fixes this.
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
    _operators = torch.library.Library("torchvision", "DEF")  # keep a reference: the operators live as long as it does
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

__all__ = ["torchvision"]
