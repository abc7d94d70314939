"""TorchServe's registrations: which archives of the model store are models, and how many workers each version has.

    register ─► found and unpacked ─► registered ─workers > 0─► loaded      scale to 0 ─► registered, not loaded
    unregister ─► unloaded, its requests answered ─► what was unpacked or downloaded is removed

A model has one version for each archive of its name. TorchServe's versions are texts ("1.0"); each gets an integer for
as long as it is registered. Runs in the supervisor. Errors have TorchServe's sentences (shoal/torchserve_errors.py).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter
from shoal.model_config.scaling import MAX_INSTANCES
from shoal.repository.found import FoundModel
from shoal.repository.identifier import ModelIdentifier
from shoal.supervisor.event_loop import first, gather, shared, sleep
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.registration import (
    Registration,
    failed_start,
    merged,
    number_for,
    readable,
    said,
    with_default,
)
from shoal.supervisor.models.scaling import with_count
from shoal.supervisor.models.snapshots import Snapshots
from shoal.supervisor.processes.repository import RepositoryPoller
from shoal.supervisor.questions.questions import Verb
from shoal.torchserve_errors import torchserve_error

_log = logging.getLogger(__name__)

Arguments = dict[str, Any]
#: The fields of a Registration that an upgrade carries as they are.
CARRIED = ("text", "number", "archive", "workers", "most", "handler", "request")


class Registrations:
    """All registered versions, by the name of their model."""

    def __init__(self, repository: RepositoryPoller, models: Models, *, has_snapshots: bool = False) -> None:
        """With `has_snapshots`, each change is followed by a snapshot of the configuration."""
        self._loop = models.loop
        self._repository = repository
        self._models = models
        self.snapshots = Snapshots(models.loop, repository, self._snapshot, are_written=has_snapshots)
        self.verbs: dict[str, Verb] = {
            "ts_register": self._register,
            "ts_unregister": self._unregister,
            "ts_scale": self._scale,
            "ts_registered": self._list,
            "ts_set_default": self._set_default,
        }
        # Changed by registrations and scalings. By model and by the version's text, in the order of registration.
        self._rows: dict[str, dict[str, Registration]] = {}
        self._complaint = ""  # the last error that look_again has logged
        self._defaults: dict[str, str] = {}  # model → text of the version that requests without one mean

    def is_registered(self, identifier: ModelIdentifier) -> bool:
        """Whether a model came from the store, and not from a repository."""
        return not identifier.namespace and identifier.name in self._rows

    def find(self, name: str, text: str | None) -> Registration:
        """A registered version; without a text the default one. Raises TorchServe's errors 404."""
        rows = self._rows.get(name)
        if not rows:
            raise torchserve_error(404, "ModelNotFoundException", f"Model not found: {name}")
        row = rows.get(self._defaults[name] if text is None else text)
        if row is None:
            raise torchserve_error(
                404, "ModelVersionNotFoundException", f"Model version: {text} does not exist for model: {name}"
            )
        return row

    def _mark_default(self, name: str) -> None:
        """Announce the default version of a model, if it has changed, to clients. The mark is not written into
        a version's configuration: a version whose configuration changes is loaded again."""
        changed = []
        for row in self._rows.get(name, {}).values():
            served, is_default = self._serving(name, row), row.text == self._defaults[name]
            if served is not None and served.version.is_default is not is_default:
                served.version.is_default = is_default
                changed.append(served.version.message())
        if changed:
            self._models.send(changed)

    async def _set_default(self, arguments: Arguments) -> None:
        """Make a version the model's default; answered when clients know. Raises TorchServe's errors 404."""
        name, text = arguments["model"], arguments["version"]
        self.find(name, None)
        if text not in self._rows[name]:  # for this call TorchServe has a sentence other than `find`'s
            sentence = f"Model version {text} does not exist for model {name}"
            raise torchserve_error(404, "ModelVersionNotFoundException", sentence)
        self._defaults[name] = text
        self._mark_default(name)
        self.snapshots.save("snapshot")
        await shared(self._models.settle())

    # --- start ---

    async def load_at_start(self, carried: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Register and load the archives that the store's settings name or, at an upgrade, that the old server had
        registered; returns when each has loaded or failed, which is logged."""
        if carried is not None:
            await self._restore(carried)
            return
        try:
            found = await self._repository.load_store()
        except ShoalError as error:
            _log.error("%s", readable(error))
            return
        names: dict[str, None] = {}
        for each in found:
            if each.error is not None:
                self._models.add_problem(each.identifier, readable(each.error))
                continue
            try:
                row = self.add(each, is_start=True)
            except ShoalError as error:
                _log.warning("'%s' is not loaded: %s", said(each.config, "ts_model_url"), readable(error))
                self._repository.withdraw(each.directory, each.origin)
            else:
                row.request = {"is_startup": True}
                names |= {each.name: None} if row.workers else {}
        await gather(*[self._load(name) for name in names], return_exceptions=True)
        self.snapshots.save("startup")

    async def follow(self, period_s: float) -> None:
        """Look for changed archives in the store every `period_s`, and load them again."""
        while True:
            await sleep(period_s)
            await first(self._loop.start(self.look_again()))  # a task of its own: an error in it ends no later look

    async def look_again(self) -> None:
        """Load again, one after the other, versions whose archives in the store have changed. An old version serves
        until the new one does, and goes on where the new one fails, which is logged."""
        for name, rows in tuple(self._rows.items()):
            for row in tuple(rows.values()):
                request = {**row.request, "url": row.url, "model_name": name}
                if not (row.archive or row.workflow) and self._rows.get(name, {}).get(row.text) is row:
                    try:
                        found = await self._repository.look_again(request, row.modified_ns)
                        if found is not None:
                            await self._replace(name, row, found)
                    except ShoalError as error:
                        self._complain(f"the changed archive of model '{name}' is not loaded: {readable(error)}")

    def _complain(self, sentence: str) -> None:
        """Log an error, unless it is the last one again: an archive that cannot be read is read at each look."""
        if sentence != self._complaint:
            self._complaint = sentence
            _log.error("%s", sentence)

    async def _replace(self, name: str, row: Registration, found: FoundModel) -> None:
        """Load the changed archive of a registered version; its manifest may name another version now."""
        rows, text = self._rows.get(name, {}), said(found.config, "ts_version")
        (version,) = found.versions.values()
        if rows.get(row.text) is not row or (text != row.text and text in rows):
            self._repository.withdraw(found.directory, "")
            return
        before, old = replace(row), self._serving(name, row)
        config = with_default(found.config, is_default=self._defaults[name] == row.text)
        row.config = {**config, "instance_group": with_count(config, max(1, row.workers))}
        row.directory, row.modified_ns = version.directory, version.modified_ns
        try:
            await self._load(name)
        except ShoalError:
            # The load is tried again only when the archive changes again.
            row.config, row.directory = before.config, before.directory
            self._repository.withdraw(found.directory, "")
            raise
        if self._rows.get(name, {}).get(row.text) is row:  # otherwise it has been unregistered meanwhile
            if text != row.text:
                if self._defaults[name] == row.text:
                    self._defaults[name] = text
                self._rows[name] = {text if key == row.text else key: each for key, each in self._rows[name].items()}
                row.text = text
            _log.info("model '%s' version %s: its archive has changed, and is loaded again", name, text)
            self.snapshots.save("snapshot")
        if before.directory != row.directory:
            self._loop.start(self._withdraw_after(old, before.directory))

    async def _withdraw_after(self, served: Any, directory: Path) -> None:
        """Remove an unpacked archive once the version that was made of it has ended."""
        if served is not None:
            await shared(served.ended)
        self._repository.withdraw(directory, "")

    # --- upgrades ---

    def carried(self) -> list[dict[str, Any]]:
        """All registered versions as `_restore` takes them, but for the nodes of workflows: an upgrade carries these
        with their workflows."""
        rows = [(name, row) for name, versions in self._rows.items() for row in versions.values() if not row.workflow]
        return [
            {
                **{each: getattr(row, each) for each in CARRIED},
                "name": name,
                "url": row.archive or row.url,
                "config": self._config_of(name, row),
                "is_default": self._defaults[name] == row.text,
            }
            for name, row in rows
        ]

    def _config_of(self, name: str, row: Registration) -> Config:
        """A version's configuration with its present number of instances."""
        served = self._serving(name, row)
        groups = (row if served is None else served.version).config["instance_group"]
        return {**row.config, "instance_group": groups}

    async def _restore(self, carried: Sequence[Mapping[str, Any]]) -> None:
        """Register and load the old server's registrations: each archive is unpacked again."""
        for each in carried:
            name, config = each["name"], each["config"]
            request = {**each["request"], "url": each["url"], "model_name": name}
            try:
                found = await self._repository.register(request)
            except ShoalError as error:
                _log.error("model '%s' version %s is not registered any more: %s", name, each["text"], readable(error))
                continue
            (version,) = found.versions.values()
            row = Registration(
                url=said(config, "ts_model_url"), directory=version.directory, modified_ns=version.modified_ns,
                config=config, **{field: each[field] for field in CARRIED},
            )  # fmt: skip
            self._rows.setdefault(name, {})[row.text] = row
            if each["is_default"] or name not in self._defaults:
                self._defaults[name] = row.text
        names = [name for name, rows in self._rows.items() if any(row.workers for row in rows.values())]
        await gather(*[self._load(name) for name in names], return_exceptions=True)
        self.snapshots.save("startup")

    # --- what clients ask ---

    async def _register(self, arguments: Arguments) -> Mapping[str, Any]:
        """Register an archive; with `synchronous`, the default, answered once its workers are up or have failed, else
        at once."""
        is_synchronous = arguments.get("synchronous", True) in (None, True)
        request = {key: value for key, value in arguments.items() if key != "synchronous" and value is not None}
        found = await self._repository.register(request)
        try:
            row = self.add(found)
        except ShoalError:
            self._repository.withdraw(found.directory, found.origin)
            raise
        name, row.handler, row.request = found.name, request.get("handler") or "", request
        if not row.workers:
            self.snapshots.save("snapshot")
        else:
            load = self._loop.begin(self.bring_up(name, row))
            if is_synchronous:
                await shared(load)
        return {"model": name, "version": row.text, "workers": row.workers}

    async def bring_up(self, name: str, row: Registration) -> None:
        """Load a version that has just been registered; where that fails, it is registered no longer."""
        try:
            await self._load(name)
        except ShoalError as error:
            _log.error("model '%s' version %s is not registered: %s", name, row.text, error)
            await self.remove(name, row)
            raise failed_start(name, row.text, error) from error
        self.snapshots.save("snapshot")

    async def _unregister(self, arguments: Arguments) -> None:
        """Unregister a version; answered when it has ended. The default version can be
        unregistered only if the model has no other."""
        name, text = arguments["model"], arguments.get("version")
        row = self.find(name, text)
        if len(self._rows[name]) > 1 and self._defaults[name] == row.text:
            raise torchserve_error(
                403, "InvalidModelVersionException", f"Cannot remove default version for model {name}"
            )
        await self.remove(name, row)
        self.snapshots.save("snapshot")

    async def _scale(self, arguments: Arguments) -> Mapping[str, Any]:
        """Give a version `min_worker` workers; 0 unloads it, and leaves it registered."""
        name, least = arguments["model"], int(arguments.get("min_worker", 1))
        most = int(arguments.get("max_worker", least))
        row = self.find(name, arguments.get("version"))
        if most < least:
            raise torchserve_error(400, "BadRequestException", "max_worker cannot be less than min_worker.")
        if not 0 <= least <= MAX_INSTANCES:
            raise torchserve_error(
                400, "BadRequestException", f"min_worker must be from 0 to {MAX_INSTANCES}, got: {least}"
            )
        scaled = self._loop.begin(self._resize(name, row, least, most))
        if arguments.get("synchronous", False):
            try:
                await shared(scaled)
            except ShoalError as error:
                raise failed_start(name, row.text, error) from error
        return {"model": name, "version": row.text, "workers": row.workers}

    async def _resize(self, name: str, row: Registration, count: int, most: int) -> None:
        was, was_most = row.workers, row.most
        row.workers, row.most = count, most
        served = self._serving(name, row)
        try:
            if count and served is not None:
                await shared(served.resize(with_count(served.version.config, count)))
                await self._models.settle()
            else:
                if count:
                    row.config = {**row.config, "instance_group": with_count(row.config, count)}
                await self._load(name)
        except Exception:
            row.workers = was if served is not None or not count else 0
            row.most = was_most
            raise
        self.snapshots.save("snapshot")

    async def _list(self, arguments: Arguments) -> list[Mapping[str, Any]]:
        """Registered versions, loaded or not, of one model or of all, sorted by name."""
        wanted = arguments.get("model")
        names = sorted(self._rows) if wanted is None else [wanted] if wanted in self._rows else []
        return [self._described(name, row) for name in names for row in self._rows[name].values()]

    def _described(self, name: str, row: Registration) -> Mapping[str, Any]:
        return {
            "model": name,
            "version": row.text,
            "number": row.number,
            "url": row.url,
            "workers": row.workers,
            "is_default": self._defaults[name] == row.text,
            "is_loaded": self._serving(name, row) is not None,
            "parameters": {key: value["string_value"] for key, value in row.config["parameters"].items()}
            | {"ts_min_workers": str(row.workers), "ts_max_workers": str(row.most)},
        }

    def _snapshot(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The registered versions in the form of TorchServe's model_snapshot."""
        return {
            name: {text: _snapshot_of(row, is_default=self._defaults[name] == text) for text, row in rows.items()}
            for name, rows in sorted(self._rows.items())
            if rows and not any(row.workflow for row in rows.values())
        }

    # --- rows ---

    def add(self, found: FoundModel, *, is_start: bool = False) -> Registration:
        """Register a version that was found. Raises TorchServe's conflict where there is one, and changes nothing."""
        name, text = found.name, said(found.config, "ts_version")
        rows = self._rows.get(name, {})
        if text in rows:
            raise torchserve_error(
                409, "ConflictStatusException", f"Model version {text} is already registered for model {name}"
            )
        known = self._models.models.get(found.identifier)
        if not rows and known is not None and known.is_wanted:
            raise torchserve_error(
                409, "ConflictStatusException", f"Model {name} is already served from a model repository"
            )
        (version,) = found.versions.values()
        # A model's first version is its default one. At the start, before anything is loaded, a later one that is
        # marked as the default takes its place.
        is_default = not rows or (is_start and parameter(found.config, "ts_default") == "true")
        config = with_default(found.config, is_default=is_default)
        row = Registration(
            text,
            number_for(text, [each.number for each in rows.values()]),
            said(config, "ts_model_url"),
            version.directory,
            version.modified_ns,
            found.origin,
            config,
            int(said(config, "ts_min_workers")),
            int(said(config, "ts_max_workers")),
            workflow=parameter(config, "ts_workflow") or "",
        )
        if is_default:
            for other in rows.values():
                other.config = with_default(other.config, is_default=False)
        self._rows.setdefault(name, {})[text] = row
        if is_default:
            self._defaults[name] = text
        return row

    async def remove(self, name: str, row: Registration) -> None:
        """Unload a version and forget it; returns when it has ended."""
        rows = self._rows.get(name, {})
        if rows.get(row.text) is not row:
            return
        del rows[row.text]
        try:
            await self._load(name)
        except ShoalError as error:
            _log.error("model '%s': %s", name, error)  # other versions go on serving
        finally:
            if not rows and self._rows.get(name) is rows:
                del self._rows[name], self._defaults[name]
            elif rows and self._defaults.get(name) == row.text:
                self._defaults[name] = next(iter(rows))
        model = self._model(name)
        if model is not None:
            await model.ended()
        if parameter(row.config, "ts_workflow_function") is None:  # a node's directory is removed with its workflow
            self._repository.withdraw(row.directory, row.archive)

    # --- loading ---

    async def _load(self, name: str) -> None:
        """Serve the versions of a model that have workers, and no others; returns when each has loaded or failed."""
        wanted = [row for row in self._rows.get(name, {}).values() if row.workers]
        if wanted:
            await self._models.load(merged(name, wanted))
            self._mark_default(name)
        elif (model := self._model(name)) is not None:
            await model.unload()

    def _model(self, name: str) -> Model | None:
        return self._models.models.get(ModelIdentifier(name))

    def _serving(self, name: str, row: Registration) -> Any:
        model = self._model(name)
        return None if model is None else model.serving.get(row.number)


def _snapshot_of(row: Registration, *, is_default: bool) -> dict[str, Any]:
    numbers = {
        field: int(parameter(row.config, name) or 0)
        for field, name in (
            ("batchSize", "ts_batch_size"),
            ("maxBatchDelay", "ts_max_batch_delay_ms"),
            ("responseTimeout", "ts_response_timeout_s"),
            ("startupTimeout", "ts_startup_timeout_s"),
        )
    }
    return {
        "defaultVersion": is_default,
        "marName": row.archive or row.url,
        "minWorkers": row.workers,
        "maxWorkers": row.most,
        **numbers,
        "runtimeType": parameter(row.config, "ts_runtime") or "python",
        **({"handler": row.handler} if row.handler else {}),
    }
