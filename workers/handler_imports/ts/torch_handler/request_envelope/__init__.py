"""Envelopes: the request and response formats of other servers, put around a handler."""
