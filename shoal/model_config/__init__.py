"""A model's configuration: `config.pbtxt` as a checked dict, exactly as `/v2/models/M/config` prints it.

`load` is the entry point, used by the poller; `pbtxt` alone knows protobuf. All other processes read the finished dict
through `signature`. Importing this package imports none of these.
"""
