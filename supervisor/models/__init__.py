"""The models of the server: their versions and instances, from a load to the end of the last instance."""
