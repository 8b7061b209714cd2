"""The Triton kernels without a GPU: in Triton's interpreter, beside PyTorch's operations."""

import pytest

from tests.support.interpreter import passes


def test_interpreted_kernels_equal_the_operations() -> None:
    """All in one process, which imports everything anew: attention, then the fused layers."""
    passes("interpreted_triton.py", "interpreted_fused.py")


@pytest.mark.slow
def test_more_combinations_equal_the_operations() -> None:
    passes("interpreted_triton.py", "interpreted_fused.py", marked="slow")
