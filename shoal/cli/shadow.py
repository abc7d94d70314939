"""The verb `shadow`: a running server mirrors requests of one version of a model to another, and compares."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.cli.colour import printable, printable_lines
from shoal.cli.operate import OperatingParser, operate
from shoal.cli.remote import RemoteServer
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import model_name

_DESCRIPTION = """\
Have a running server mirror requests to one version of a model to another version, which it also serves, and compare
the answers. Clients get the answers of the version that they asked and wait for nothing: the other one is asked only
while instances are idle. With a model alone the command shows the results, with the worst disagreements.

  --of <version>         the version whose requests are mirrored
  --share <share>        the share of its requests, as 0.1 or 10% (default: 1)
  --compare <tolerance>  what still agrees: atol=1e-5,rtol=1e-3, or top1, or cosine=0.999; scores:top1 for the output
                         scores alone (default: bits must be equal)
  --stop                 mirror requests to the version --of no longer"""

_EXAMPLES = """\
  shoal shadow digits 3 --of 2 --share 0.1 --compare top1
  shoal shadow digits                         # agreed, disagreed, dropped; the worst examples
  shoal shadow digits --of 2 --stop
  shoal shadow                                # all models
"""


def shadow(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Begin, end or show a shadow; returns the exit code."""
    parser = OperatingParser("shadow", "[<model> [<version>]] [options]", _DESCRIPTION, _EXAMPLES, timeout_s=60)
    parser.add_argument("model", nargs="?", type=model_name)
    parser.add_argument("version", nargs="?", type=int)
    parser.add_argument("--of", type=int)
    parser.add_argument("--share")
    parser.add_argument("--compare")
    parser.add_argument("--stop", action="store_true")
    return operate(parser, argv, environ, _shadow)


def _shadow(arguments: argparse.Namespace, server: RemoteServer) -> str:
    given = {name: getattr(arguments, name) for name in ("version", "of", "share", "compare")}
    asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if arguments.stop:
        asked["stop"] = True
    if asked and arguments.of is None:
        raise CommandLineError("Which version is mirrored? --of says so.")
    if asked and not arguments.stop and arguments.version is None:
        raise CommandLineError("To which version? As 'shoal shadow digits 3 --of 2'.")
    told = server.shadow(arguments.model or "", asked)
    if arguments.json:
        return json.dumps(told)
    return printable_lines("\n".join(_lines(told["shadows"]))) or "nothing is mirrored"


def _lines(shadows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for each in shadows:
        share = f"{100 * each['share']:g} % of the requests" if each["is_on"] else "ended"
        lines.append(f"{each['model']}: version {each['shadow_version']} shadows {each['version']}, {share}")
        compared = each["agreed"] + each["disagreed"]
        disagreed = "" if each["disagree_share"] is None else f" ({100 * each['disagree_share']:.3g} %)"
        lines.append(
            f"  {each['mirrored']} mirrored, {each['agreed']} agreed, {each['disagreed']} disagreed{disagreed}, "
            f"{each['failed']} of these failed; {each['dropped']} dropped"
            + "".join([f", {number} {why}" for why, number in sorted(each["drops"].items())])
        )
        if compared:
            times = [each[name] / compared / 1e6 for name in ("primary_ns", "shadow_ns")]
            lines.append(
                f"  computed in {times[0]:.3g} ms by version {each['version']}, {times[1]:.3g} ms by the shadow"
            )
        lines += [f"  {_example(example)}" for example in each["examples"]]
    return lines


def _example(example: Mapping[str, Any]) -> str:
    named = f"request '{example['id']}'" if example["id"] else "a request"
    return printable(f"{named}: {'; '.join(example['what'])}")
