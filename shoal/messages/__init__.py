"""Control messages: what the processes of a server say to each other beside requests and responses.

Each module has the messages from one kind of process to another, and says who sends them, in which order, and which are
acknowledged. `message.py` has their one encoding.
"""
