"""A client of the star, in any process: what may be asked, what a request must be, memory for it, its answers."""
