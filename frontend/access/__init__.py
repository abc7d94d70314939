"""Authorisation: what each route and rpc is for, and the callers that it is open to."""
