"""How a tensor's memory is named to NIXL. The devices are stand-ins: there is no GPU here."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from connectors.transports.nixl_agent import Place


@dataclass
class OnDevice:
    """What is looked at of a tensor on a GPU."""

    index: int

    def get_device(self) -> int:
        return self.index

    def data_ptr(self) -> int:
        return 4096

    def numel(self) -> int:
        return 512


def test_host_memory_is_dram_of_device_0() -> None:
    tensor = torch.zeros(64, dtype=torch.uint8)
    assert Place.of(tensor) == Place(tensor.data_ptr(), 64, "DRAM", 0)


@pytest.mark.parametrize("index", [0, 3])
def test_memory_of_a_gpu_is_vram_of_that_one(index: int) -> None:
    tensor: Any = OnDevice(index)
    assert Place.of(tensor) == Place(4096, 512, "VRAM", index)
