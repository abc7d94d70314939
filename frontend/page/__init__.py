"""The page at `/`: a view of the server in a browser, without installing anything. Runs on the road."""
