"""The models in a Flask application, as most people serve their first one: gunicorn …flask_app:create_app().

No batches: every request runs the model in the thread that handles it.
"""

import os

import flask
import numpy as np

from bench.workloads import MLP_512, MODELS


def create_app() -> flask.Flask:
    """The application for the model named by the environment variable MODEL."""
    app = flask.Flask(__name__)
    model = MODELS[os.environ["MODEL"]]
    if model is MLP_512:
        from bench.served.session import open_session

        session = open_session()

    @app.post(f"/{model.name}/json")
    def json() -> flask.Response:
        values = np.array(flask.request.get_json(), np.float32)
        return flask.jsonify(values.tolist())

    @app.post(f"/{model.name}/binary")
    def binary() -> flask.Response:
        values = np.frombuffer(flask.request.get_data(), np.float32)
        if model is MLP_512:
            values = session.run(None, {model.input_names[0]: values.reshape(1, -1)})[0]
        return flask.Response(values.tobytes(), mimetype="application/octet-stream")

    return app
