"""The medium between the processes: segments, slabs, rings and doorbells. Imported by every process."""
