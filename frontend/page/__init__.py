"""The page at `/`: a view of the server in a browser. Runs on the road."""
