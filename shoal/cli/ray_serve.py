"""The verb `ray`: deploys, shows and deletes an application on a cluster of Ray whose replicas run whole servers."""

import argparse
import importlib
import importlib.util
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.cli.request_arguments import divided
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, FailedError, VerbParser, run_verb, show

EXIT_FAILED, EXIT_LATE = 2, 3

_HELP = """\
Run servers on a cluster of Ray, behind Ray Serve. Needs the extra shoal[ray], here and on every node.

Examples:
  RAY_SERVE_ENABLE_HA_PROXY=1 ray start --head           # Serve's HAProxy sends requests to the servers themselves
  shoal ray deploy /models --num-replicas 3 --num-gpus 1
  shoal ray deploy s3://bucket/models --autoscale 1:8 --num-cpus 4 -- --model-control-mode=poll
  shoal ray deploy /models --yaml > serve.yaml           # for `serve deploy serve.yaml`, and for KubeRay
  shoal ray status
  shoal ray delete

Options:
  --address <address>         of the cluster (default: auto, the one that this node belongs to)
  --name <name>               of the application (default: shoal)
  --timeout <seconds>         to wait until it runs, or is deleted (default: 600)
  --json                      print JSON: the applications in Serve's status, {"applications": {name: {"status", …}}};
                              with --yaml {"configuration": its text}

Options of deploy:
  --route-prefix <path>       where Serve has it (default: /). With another one, requests pass Serve's own Python
  --num-replicas <count>      servers (default: 1)
  --autoscale <few>:<most>    as many as queue age and utilisation of models ask for, in place of --num-replicas;
                              with 0:<most> the first request waits for a server
  --queue-age-ms <integer>    of --autoscale: how long requests should wait at most (default: 100)
  --num-cpus <count>          cores of each server, its own where they are whole (default: 1)
  --num-gpus <count>          GPUs of each server (default: 0)
  --yaml                      print a configuration of Serve, and deploy nothing
  --help                      print this and exit

Deploying again replaces the servers one by one: each answers what it has accepted.

Exit codes: 0 done; 1 the command is wrong; 2 a server does not start; 3 not done in time.
"""
_POLL_S = 0.5


def ray(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Deploy, show or delete an application; returns the exit code."""
    words, flags = divided(argv)
    parser = VerbParser(
        "ray", "deploy <repository> [options] [-- <flags of shoal serve>]  |  shoal ray status|delete [options]", _HELP
    )
    parser.add_argument("verb", nargs="?")
    parser.add_argument("repository", nargs="*")
    parser.add_argument("--address", default="auto")
    parser.add_argument("--name", default="shoal")
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--route-prefix", default="/")
    parser.add_argument("--num-replicas", type=int)
    parser.add_argument("--autoscale")
    parser.add_argument("--queue-age-ms", type=int, default=100)
    parser.add_argument("--num-cpus", type=float, default=1.0)
    parser.add_argument("--num-gpus", type=float, default=0.0)
    parser.add_argument("--yaml", action="store_true")
    return run_verb(parser, words, lambda arguments: _run(arguments, flags))


def _run(arguments: argparse.Namespace, flags: Sequence[str]) -> int:
    if arguments.verb == "deploy":
        return _deploy(arguments, flags)
    if arguments.verb not in ("status", "delete"):
        raise CommandLineError(f"Which verb? deploy, status and delete are known, got '{arguments.verb or ''}'.")
    if arguments.repository or flags:
        raise CommandLineError(f"'{arguments.verb}' takes options alone, got '{[*arguments.repository, *flags][0]}'.")
    return _status(arguments) if arguments.verb == "status" else _delete(arguments)


def _deploy(arguments: argparse.Namespace, flags: Sequence[str]) -> int:
    args = application_arguments(arguments, flags)
    if arguments.yaml:
        text = configuration(arguments.name, arguments.route_prefix, args)
        show({"configuration": text}, text.removesuffix("\n"), as_json=arguments.json)
        return EXIT_DONE
    serve = _connect(arguments.address)
    from shoal.errors import InvalidArgumentError
    from shoal.ray.deployment import build

    try:
        target = serve.RunTarget(target=build(args), name=arguments.name, route_prefix=arguments.route_prefix)
    except InvalidArgumentError as error:
        raise CommandLineError(str(error)) from error
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    end_s = time.monotonic() + arguments.timeout
    while True:
        found = serve.status().applications.get(arguments.name)
        rows = described({} if found is None else {arguments.name: found})
        if found is not None and found.status == "RUNNING":
            show({"applications": rows}, f"Application '{arguments.name}' runs.", as_json=arguments.json)
            return EXIT_DONE
        if found is not None and found.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            show({"applications": rows}, "\n".join(status_lines(rows)), as_json=arguments.json)
            return EXIT_FAILED
        if time.monotonic() > end_s:
            late = f"Application '{arguments.name}' does not run after {arguments.timeout:g} s:"
            show({"applications": rows}, "\n".join([late, *status_lines(rows)]), as_json=arguments.json)
            return EXIT_LATE
        time.sleep(_POLL_S)


def _status(arguments: argparse.Namespace) -> int:
    rows = described(_connect(arguments.address).status().applications)
    text = "\n".join(status_lines(rows)) or "No application runs."
    show({"applications": rows}, text, as_json=arguments.json)
    return EXIT_DONE


def _delete(arguments: argparse.Namespace) -> int:
    serve = _connect(arguments.address)
    if arguments.name not in serve.status().applications:
        raise CommandLineError(f"There is no application '{arguments.name}'.")
    serve.delete(arguments.name, _blocking=False)
    end_s = time.monotonic() + arguments.timeout
    while arguments.name in serve.status().applications:
        if time.monotonic() > end_s:
            late = f"Application '{arguments.name}' is not deleted after {arguments.timeout:g} s."
            raise FailedError(late, code=EXIT_LATE)
        time.sleep(_POLL_S)
    show({"applications": {}}, f"Application '{arguments.name}' is deleted.", as_json=arguments.json)
    return EXIT_DONE


def application_arguments(arguments: argparse.Namespace, flags: Sequence[str]) -> dict[str, Any]:
    """The arguments of `shoal.ray.deployment` that the command line names. Raises CommandLineError."""
    if "" in (arguments.repository or [""]):
        raise CommandLineError("Which model repository? Name a path that every node has, or a URL.")
    if not arguments.route_prefix.startswith("/"):
        raise CommandLineError(f"--route-prefix must begin with '/', got '{arguments.route_prefix}'.")
    found: dict[str, Any] = {
        "model_repository": arguments.repository,
        "num_cpus": arguments.num_cpus,
        "num_gpus": arguments.num_gpus,
    }
    if flags:
        found["flags"] = list(flags)
    if arguments.autoscale is None:
        return {**found, "num_replicas": 1 if arguments.num_replicas is None else arguments.num_replicas}
    fewest, colon, most = arguments.autoscale.partition(":")
    if arguments.num_replicas is not None or not (colon and fewest.isdecimal() and most.isdecimal()):
        raise CommandLineError("--autoscale takes the fewest and the most servers, as in 1:4, and no --num-replicas.")
    bounds = {"min_replicas": int(fewest), "max_replicas": int(most), "queue_age_s": arguments.queue_age_ms / 1000}
    return {**found, "autoscaling": bounds}


def configuration(name: str, route_prefix: str, args: Mapping[str, Any]) -> str:
    """A configuration of Serve, in YAML, whose scalars and lists are written as JSON."""
    rows = "\n".join(f"      {key}: {json.dumps(value)}" for key, value in args.items())
    return f"""\
# Written by `shoal ray deploy --yaml`; deploy it with `serve deploy FILE`.
applications:
  - name: {json.dumps(name)}
    route_prefix: {json.dumps(route_prefix)}
    import_path: shoal.ray:build
    args:
{rows}
"""


def described(applications: Mapping[str, Any]) -> dict[str, Any]:
    """By name, the applications in Serve's status: state, each deployment's replicas, and why one is unhealthy."""
    return {
        name: {
            "status": _word(application.status),
            "message": application.message,
            "deployments": {
                deployment_name: {
                    "status": _word(deployment.status),
                    "message": deployment.message,
                    "replicas": {_word(state): count for state, count in deployment.replica_states.items()},
                }
                for deployment_name, deployment in application.deployments.items()
            },
        }
        for name, application in applications.items()
    }


def status_lines(rows: Mapping[str, Any]) -> list[str]:
    """Applications, as `described` returns them, in lines for a person."""
    lines = []
    for name, application in rows.items():
        lines.append(f"{name}  {application['status']}")
        reasons = [application["message"]]
        for deployment_name, deployment in application["deployments"].items():
            replicas = ", ".join(f"{count} {state}" for state, count in deployment["replicas"].items())
            lines.append(f"  {deployment_name}  {deployment['status']}  {replicas or 'no replicas'}")
            reasons.append(deployment["message"])
        lines += [f"  {line}" for reason in reasons for line in reason.splitlines()]
    return lines


def _word(state: Any) -> str:
    return str(getattr(state, "value", state)).lower()


def _connect(address: str) -> Any:
    """Ray Serve's module, connected to the cluster. Raises CommandLineError if there is no Ray, or no cluster."""
    if importlib.util.find_spec("ray") is None:
        raise CommandLineError("Ray is not installed here: pip install 'shoal[ray]'")
    ray_module: Any = importlib.import_module("ray")
    serve = importlib.import_module("ray.serve")
    try:
        ray_module.init(address=address, log_to_driver=False, logging_level="error", ignore_reinit_error=True)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise CommandLineError(f"No cluster of Ray at '{address}': {error}") from error
    return serve
