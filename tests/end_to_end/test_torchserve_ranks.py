"""TorchServe's handlers in several processes, as torchrun starts them: they load together, and share batches or not."""

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.end_to_end.server import descendants, title, wait_until
from tests.end_to_end.torchserve_listeners import TorchServe, torchserve_command
from tests.repository.torchserve.archives import mar

#: Ranks meet as by a collective operation: each leaves a file, and waits for those of all others.
RANKED = """
import os
import pathlib
import time


def meet(directory, what, number):
    (directory / f"{what}-{os.environ['RANK']}").touch()
    while len(list(directory.glob(f"{what}-*"))) < number:
        time.sleep(0.005)


class Ranked:
    def initialize(self, context):
        self.directory = pathlib.Path(context.system_properties["model_dir"])
        self.world = int(os.environ["WORLD_SIZE"])
        # By the port that all ranks have in common: a worker that is started again meets its own companions.
        meet(self.directory, f"loaded-{os.environ['MASTER_PORT']}", self.world)

    def handle(self, data, context):
        bodies = [bytes(row["body"]).decode() for row in data]
        if self.together:
            meet(self.directory, f"batch-{context.get_request_id(0)}", self.world)
        else:
            (self.directory / f"alone-{os.environ['RANK']}").touch()
        places = sorted({each.name.rpartition("-")[2] for each in self.directory.glob("alone-*")})
        names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS"
        said = {name: os.environ[name] for name in names}
        return [{"body": body, "pid": os.getpid(), "alone": places, **said} for body in bodies]
"""
FAILING = """
import os

if os.environ["RANK"] == "1":
    import nothing_of_this_name


def handle(data, context):
    return data
"""


def yaml(kind: str, more: str = "") -> str:
    return f"parallelType: {kind}\ntorchrun:\n  nproc-per-node: 3\n  OMP_NUMBER_THREADS: 2\n{more}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    store = tmp_path_factory.mktemp("store")
    for name, kind in (("together", "tp"), ("alone", "pp")):
        code = RANKED + f"\nRanked.together = {kind == 'tp'}\n"
        mar(store / f"{name}.mar", {"h.py": code, "c.yaml": yaml(kind)}, name=name, handler="h.py", configFile="c.yaml")
    mar(store / "failing.mar", {"h.py": FAILING, "c.yaml": yaml("tp")}, name="failing", handler="h.py",
        configFile="c.yaml")  # fmt: skip
    for name, text in REFUSED.items():
        mar(store / f"{name}.mar", {"c.yaml": text[0]}, name=name, configFile="c.yaml")
    properties = "default_workers_per_model=1\nload_models=together.mar,alone.mar\n"
    flags = "--enable-model-api", "--dt"
    with torchserve_command(tmp_path_factory.mktemp("server"), store, properties, *flags) as served:
        yield served


REFUSED = {
    "machines": (yaml("tp", "  nnodes: 2\n"), "'nnodes' of model 'machines' must be 1"),
    "crowd": ("parallelType: pp\ntorchrun: {nproc-per-node: 65}\n", "'nproc-per-node' of model 'crowd' must be from 1"),
    "async": (yaml("tp", "asyncCommunication: true\n"), "'torchrun' and 'asyncCommunication' of model 'async' do not"),
}


def test_every_rank_executes_each_batch_and_the_first_answers(served: TorchServe) -> None:
    for word in ("one", "two", "three"):
        reply = served.ask("POST", "/predictions/together", word.encode())
        assert reply.status == 200, reply.body
        answer = json.loads(reply.body)
        assert (answer["body"], answer["RANK"], answer["LOCAL_RANK"]) == (word, "0", "0")
        assert (answer["WORLD_SIZE"], answer["LOCAL_WORLD_SIZE"], answer["OMP_NUM_THREADS"]) == ("3", "3", "2")
    assert [name.rpartition(" ")[2] for name in ranks(served, "together").values()] == ["1", "2"]


def test_with_pipelines_only_the_first_rank_gets_batches(served: TorchServe) -> None:
    reply = served.ask("POST", "/predictions/alone", b"one")
    assert json.loads(reply.body)["alone"] == ["0"]


def test_a_rank_that_dies_takes_its_worker_along_and_all_come_back(served: TorchServe) -> None:
    before = ranks(served, "together")
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: len(new := ranks(served, "together")) == 2 and not before.keys() & new.keys())
    wait_until(lambda: served.ask("POST", "/predictions/together", b"again").status == 200)


def test_a_rank_that_cannot_load_fails_the_registration(served: TorchServe) -> None:
    reply = served.manage("POST", "/models?url=failing.mar&initial_workers=1")
    assert reply.status == 500
    assert "rank 1 of the handler cannot load it" in reply.json["message"]
    assert "nothing_of_this_name" in reply.json["message"]
    assert served.manage("GET", "/models/failing").status == 404


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_had_is_refused_at_registration(served: TorchServe, name: str) -> None:
    reply = served.manage("POST", f"/models?url={name}.mar")
    assert (reply.status, reply.json["type"]) == (400, "InvalidModelException")
    assert reply.json["message"].startswith(REFUSED[name][1])


def ranks(served: TorchServe, model: str) -> dict[int, str]:
    """The processes of a model's further ranks: pid → title."""
    titles = {pid: title(pid) for pid in descendants(served.server.process.pid)}
    found = {pid: name for pid, name in titles.items() if name.startswith(f"shoal worker {model}_0_0 rank")}
    return dict(sorted(found.items(), key=lambda each: each[1]))
