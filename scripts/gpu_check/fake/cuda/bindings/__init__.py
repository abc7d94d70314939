"""CUDA's runtime and driver as Shoal and tritonclient ask them, for a machine without a GPU."""
