"""The shapes of a server's answers, as far as verbs read them: `RemoteServer` checks each answer once, when it comes.

A shape is a type for all values of the type, a range for the integers in the range, a frozenset for its elements, None
for null, a tuple of shapes for a value of any of them, or a list of one shape for a list of such values. A dict has the
shapes of an object's members by name, which may be missing in the answer; the member `str` has the shape of all others.
"""

from typing import Any, TypeAlias

from shoal.datatypes import BY_CONFIG_NAME

_Shape: TypeAlias = dict[Any, Any]

COUNT = range(1 << 64)
_AT_LEAST_ONE = range(1, 1 << 64)
_INTEGER = range(-(1 << 63), 1 << 63)
NUMBER = (_INTEGER, float)

INDEX: list[dict[str, Any]] = [{"name": str, "version": str, "state": str, "reason": (str, None)}]
INSTANCES: _Shape = {
    "model": str,
    "versions": [
        {
            "version": str,
            "state": str,
            "min_instances": COUNT,
            "max_instances": COUNT,
            "memory_bytes": (COUNT, None),
            "gpu_memory_bytes": {str: COUNT},
            "instances": [
                {
                    "name": str,
                    "state": str,
                    "pid": (COUNT, None),
                    "device": str,
                    "cores": [range(1 << 20)],
                    "busy_share": (NUMBER, None),
                    "rss_bytes": (COUNT, None),
                    "batches": COUNT,
                    "restarts": COUNT,
                }
            ],
        }
    ],
}
EXPLANATION: _Shape = {
    "model": str,
    "versions": [
        {
            "version": str,
            "scheduler": frozenset({"default", "dynamic", "ensemble", "goal", "lengths", "other"}),
            "strategy": frozenset({"pad", "bucket", "pack"}),
            "latency_target_ms": NUMBER,
            "arrivals_per_s": NUMBER,
            "fixed_elements": (NUMBER, None),
            "padding_share": NUMBER,
            "reasons": [{"batches": _AT_LEAST_ONE, "meaning": str}],
            "last_batches": [{"rows": COUNT}],
            "measured": [{"rows": _AT_LEAST_ONE, "batches": COUNT, "ns": NUMBER}],
            "learned": [{"rows": COUNT, "ns": NUMBER}],
        }
    ],
}
_FINISHED = {
    "model": str,
    "version": str,
    "id": str,
    "error": (str, None),
    "total_ns": COUNT,
    "phases": {str: COUNT},
    "queue": {str: COUNT},
    "ahead_requests": COUNT,
    "ahead_rows": COUNT,
    "ahead_ns": COUNT,
    "batch_requests": COUNT,
}
FINISHED_REQUESTS: _Shape = {"slowest": [_FINISHED], "failed": [_FINISHED], "num_others_failed": COUNT}
RECORDING: _Shape = {
    "folder": str,
    "max_bytes": COUNT,
    "recording": [{"models": [str], "sample": NUMBER, "left_s": (NUMBER, None)}],
}
SHADOWS: _Shape = {
    "shadows": [
        {
            "model": str,
            "share": NUMBER,
            "agreed": COUNT,
            "disagreed": COUNT,
            "disagree_share": (NUMBER, None),
            "drops": {str: COUNT},
            "primary_ns": COUNT,
            "shadow_ns": COUNT,
            "examples": [{"id": str, "what": [str]}],
        }
    ]
}
ROLLOUT: _Shape = {
    "phase": str,
    "step": COUNT,
    "steps": str,
    "weights": {str: NUMBER},
    "figures": {str: {"p50_ms": NUMBER, "p99_ms": NUMBER}},
}
STATISTICS: _Shape = {
    "model_stats": [
        {
            "name": str,
            "version": str,
            "inference_count": COUNT,
            "execution_count": COUNT,
            "inference_stats": {str: {"count": COUNT, "ns": COUNT}},
        }
    ]
}
LOG_SETTINGS: _Shape = {"log_file": (str, None)}
LOG_LINES: _Shape = {"log_file": (str, None), "lines": [str], "position": COUNT}
_TENSOR = {
    "name": str,
    "data_type": frozenset(BY_CONFIG_NAME),
    "dims": [_INTEGER],
    "reshape": ({"shape": [_INTEGER]}, None),
    "label_filename": str,
}
CONFIG: _Shape = {
    "name": str,
    "max_batch_size": range(1 << 31),
    "input": [_TENSOR],
    "output": [_TENSOR],
    "parameters": {str: {"string_value": str}},
    "model_transaction_policy": dict,
    "instance_group": [{"count": COUNT}],
}
