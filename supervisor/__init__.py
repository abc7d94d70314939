"""The supervisor's process: starts, watches, tells and stops all others; holds nothing that a request needs."""
