"""A device that takes no hardware: tensors that say they are elsewhere. All operations work there, and misuse is an error.

As on a GPU, an operation may not mix tensors of the device and of the CPU, except for single numbers and indices. In `unread`
nothing may be read back, since the CPU would wait for the device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fedopt.running import assemble

FAR = torch.device("meta")  # torch takes it for tensors without numbers; here they have some
aten = torch.ops.aten
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)  # with indices that may be of the CPU
READING = (aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select)


class FarTensor(Tensor):
    """near: the numbers."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> "FarTensor":
        place: dict[str, Any] = {"strides": near.stride(), "storage_offset": near.storage_offset()}
        far = Tensor._make_wrapper_subclass(cls, near.size(), **place, dtype=near.dtype, device=FAR)
        far.near = near
        return far

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, function: Any, *given: Any) -> Any:
        raise AssertionError(f"{function} of a far tensor outside of FarDevice")


class FarDevice(TorchDispatchMode):
    """read: whether numbers may be read back."""

    def __init__(self) -> None:
        super().__init__()
        self.read = True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, packet = dict(kwargs or {}), function.overloadpacket
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        far = [tensor for tensor in tensors if isinstance(tensor, FarTensor)]
        there = bool(far)
        if kwargs.get("device") is not None:
            there, kwargs["device"] = kwargs["device"] == FAR, torch.device("cpu")
        elif packet is aten.copy_:
            there = isinstance(args[0], FarTensor)
        indices = tree_leaves(args[1]) if packet in INDEXING else []
        counts = any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices)  # how many are true
        if far and not self.read and (packet in READING or counts or not there):
            raise AssertionError(f"{function} reads from the device")
        if far and packet not in (aten._to_copy, aten.copy_):
            for tensor in tensors:
                if tensor.dim() and not isinstance(tensor, FarTensor) and all(tensor is not index for index in indices):
                    raise AssertionError(f"{function} mixes the device with the CPU's {list(tensor.shape)}")
        if torch.Tag.inplace_view in function.tags:  # as squeeze_, which changes what is said of the numbers
            with no_dispatch():
                function(*args, **kwargs)
        same = {id(tensor.near): tensor for tensor in far}
        args, kwargs = tree_map_only(FarTensor, lambda tensor: tensor.near, (args, kwargs))
        out = function(*args, **kwargs)
        return tree_map_only(Tensor, lambda t: same[id(t)] if id(t) in same else FarTensor(t), out) if there else out


class ListsAsIndices(TorchFunctionMode):
    """Makes them tensors. Torch itself makes those of lists on the device, where no mode sees their numbers."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[1], list | np.ndarray):
            args = (args[0], torch.as_tensor(args[1]), *args[2:])
        return function(*args, **(kwargs or {}))


@contextmanager
def far_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[FarDevice]:
    """Experiments that are assembled in it compute there."""
    configure = assemble.machine.configure
    monkeypatch.setattr(assemble.machine, "configure", lambda *given: (configure(*given), FAR)[1])
    with FarDevice() as device, ListsAsIndices():
        yield device


@contextmanager
def unread(device: FarDevice) -> Iterator[None]:
    """Nothing may be read back in it."""
    device.read = False
    try:
        yield
    finally:
        device.read = True
