"""The recorder: writes finished requests out of shared memory into files, and the reader of these files."""
