"""The page at `/`: what a person sees of the server in a browser, without installing anything. Runs on the road."""
