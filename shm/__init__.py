"""The medium: segments, slabs, rings and doorbells between the processes. Imported by all of them, owned by none."""
