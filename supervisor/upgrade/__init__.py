"""An upgrade: what is installed now is started beside the server, on its sockets, and takes its place once ready."""
