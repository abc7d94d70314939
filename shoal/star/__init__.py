"""A client's end of the star: a port to the batcher, the table of models, requests into memory, replies out of it."""
