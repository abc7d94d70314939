"""The module from which handlers for older TorchServe import the function that sends a part of a response."""

from ts.handler_utils.utils import send_intermediate_predict_response

__all__ = ["send_intermediate_predict_response"]
