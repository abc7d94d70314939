"""What a model's configuration says: `config.pbtxt` to a checked dict, exactly as `/v2/models/M/config` prints it.

`load` is the front door, used by the supervisor; `pbtxt` alone knows protobuf. Every other process sees the finished
dict through `signature`. Importing this package imports none of them.
"""
