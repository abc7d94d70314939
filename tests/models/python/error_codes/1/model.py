import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Fails as it is told to: with the code that the request names, with one that is not given, or by an exception."""

    def initialize(self, args):
        self.codes = {
            "UNKNOWN": pb_utils.TritonError.UNKNOWN,
            "INTERNAL": pb_utils.TritonError.INTERNAL,
            "NOT_FOUND": pb_utils.TritonError.NOT_FOUND,
            "INVALID_ARG": pb_utils.TritonError.INVALID_ARG,
            "UNAVAILABLE": pb_utils.TritonError.UNAVAILABLE,
            "UNSUPPORTED": pb_utils.TritonError.UNSUPPORTED,
            "ALREADY_EXISTS": pb_utils.TritonError.ALREADY_EXISTS,
            "CANCELLED": pb_utils.TritonError.CANCELLED,
        }

    def execute(self, requests):
        responses = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            if code == "EXCEPTION":
                raise ValueError("something the author did not think of")
            if code == "TOO_FEW":
                return []
            message = f"error code: {code}"
            error = pb_utils.TritonError(message, self.codes[code]) if code else pb_utils.TritonError("no code")
            responses.append(pb_utils.InferenceResponse(error=error))
        return responses
