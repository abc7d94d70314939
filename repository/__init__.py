"""The model repository in the supervisor: which models and versions are on disk, and in which state each is."""
