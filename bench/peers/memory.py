"""How peers get memory, in their environment."""

PEER_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "2147483647", "MALLOC_TOP_PAD_": "67108864",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""No fresh pages for each message, and huge pages for tables of gigabytes: without, TensorFlow needs twice the time."""
