"""The processes of the server as the supervisor sees them: how each is started, watched, sent changes, and replaced."""
