"""The shared memory of the server: which segments there are, which processes map each, when each is given back."""
