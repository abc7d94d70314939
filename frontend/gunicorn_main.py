"""gunicorn as the supervisor starts it (python -m shoal.frontend.gunicorn_main); settings are in gunicorn_conf.py."""

from gunicorn.app.wsgiapp import WSGIApplication


class Application(WSGIApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's own, but for what it does to `sys.path`."""

    def chdir(self) -> None:
        """Stay, and keep the working directory out of the path: no file there may stand in for a module."""


if __name__ == "__main__":
    Application(prog="gunicorn").run()
