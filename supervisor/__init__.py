"""The supervisor's process: starts, watches and stops all other processes; no request passes through it."""
