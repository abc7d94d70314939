"""The shared memory of the server: which segments exist, which processes map each, when each is given back."""
