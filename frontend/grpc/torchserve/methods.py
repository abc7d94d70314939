"""The paths of TorchServe's rpcs that infer. This module does not import the rpcs' messages, which few servers need."""

INFERENCE = "org.pytorch.serve.grpc.inference"
_SERVICE = f"/{INFERENCE}.InferenceAPIsService"
PREDICTIONS = f"{_SERVICE}/Predictions"
STREAM_PREDICTIONS = f"{_SERVICE}/StreamPredictions"
STREAM_PREDICTIONS_2 = f"{_SERVICE}/StreamPredictions2"
PING = f"{_SERVICE}/Ping"
