"""The client library: `shoal.Client` and `shoal.AsyncClient`, through shared memory or over the network."""
