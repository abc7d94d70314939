"""What handlers import beside the handlers' classes."""
