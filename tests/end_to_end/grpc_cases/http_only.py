"""Why a case of HTTP's tables has no form in gRPC."""

NO_RPC = "no rpc is meant by this method and path"
ENCODING = "how bodies are encoded; gRPC's messages have an encoding of their own"
JSON = "what only JSON and its limits can get wrong"
FRAMING = "where the JSON ends and tensors begin"
ALLOWED = "what HTTP refuses and gRPC has a use for"
NO_FIELD = "a value that no field of the message can hold"


class HttpOnlyError(Exception):
    """A case has no form; its text is one of the above."""
