"""The Triton kernels without a GPU: in Triton's interpreter, beside PyTorch's operations."""

from tests.support.interpreter import passes


def test_interpreted_kernels_equal_the_operations() -> None:
    """All in one process, which imports everything anew: attention, then the fused layers."""
    passes("interpreted_triton.py", "interpreted_fused.py")
