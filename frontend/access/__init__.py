"""Authorisation: what each route and rpc is for, and the clients that it is open to."""
