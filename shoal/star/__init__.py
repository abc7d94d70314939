"""A client's end of the star: a port to the batcher, the models it may ask, requests into memory, replies out of it."""
