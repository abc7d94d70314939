"""Control messages: what the processes of a server send each other besides requests and responses.

Each module has the messages from one kind of process to another, and says which of them send, in which order, and which
are acknowledged. `message.py` has their encoding.
"""
