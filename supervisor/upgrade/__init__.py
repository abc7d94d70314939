"""An upgrade: the installed version is started beside the server, on its sockets, and takes its place once ready."""
