"""What the processor of this machine has."""

import pathlib

CPUINFO = pathlib.Path("/proc/cpuinfo")


def has_avx512():
    """Whether the processor has AVX-512; true where Linux does not say."""
    return not CPUINFO.exists() or "avx512bw" in CPUINFO.read_text()
