"""The handlers that archives name, and that users derive theirs from."""
