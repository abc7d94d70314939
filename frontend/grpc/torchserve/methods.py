"""The paths of TorchServe's rpcs that infer."""

from shoal.frontend.grpc.torchserve.messages import INFERENCE

_SERVICE = f"/{INFERENCE}.InferenceAPIsService"
PREDICTIONS = f"{_SERVICE}/Predictions"
STREAM_PREDICTIONS = f"{_SERVICE}/StreamPredictions"
STREAM_PREDICTIONS_2 = f"{_SERVICE}/StreamPredictions2"
PING = f"{_SERVICE}/Ping"
