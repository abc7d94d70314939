"""The road: gunicorn's threads and the Flask app, for requests that a lane hands over."""
