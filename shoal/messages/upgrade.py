"""Messages of an upgrade: between a server and the new one that takes its place, and with the command that asks for it.

    shoal upgrade ── UpgradeWanted ─► server; UpgradeBegun, then UpgradeEnded ─► shoal upgrade
    new server ── NewServerConnected ─► old server; ModelsCarried ─► loads ── ModelsSettled ─► old server
        RegionRegistered of to_client.py, SettingsCarried ─► listens ── NewServerServes ─► old server
        RegionRegistered, CudaRegionRegistered, RegionUnregistered, in both directions
        TakeOver, MainProcessNamed ─► serves alone; the connection's end: the old server has ended
        NewServerFails ─► old server, in place of all that is to come: the new server ends

The supervisors of the old server (supervisor/upgrade/upgrade.py) and of the new one (supervisor/upgrade/predecessor.py)
receive them. The two may be of different versions: a message of a type, or with a field, that the receiver does not
know ends the upgrade, and the old server goes on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.messages.message import Kinds, Message
from shoal.messages.shared import LogSettings
from shoal.messages.to_client import CudaRegionRegistered, RegionRegistered, RegionUnregistered

#: Why a server that stops is not upgraded, as UpgradeEnded says it.
STOPPING = "this server is stopping"


class UpgradeWanted(Message):
    """Sent by the command: start the installed version in the server's place."""


class UpgradeBegun(Message):
    """Sent to the command: the new server has been started, and has `limit_s` seconds to be ready."""

    pid: int
    limit_s: float


class UpgradeEnded(Message):
    """Sent to the command: a new server has taken over, or `reason` says why not; the old one goes on then."""

    pid: int  # of the new server
    version: str
    reason: str  # "": it has taken over


class NewServerConnected(Message):
    """Sent by the new server, first: its command line is understood."""

    version: str


class ModelsCarried(Message):
    """Sent to the new server, first: what requests have changed of the models since the old server's start."""

    #: The names of the models that the old server serves, in control mode explicit; None in other modes.
    names: Sequence[str] | None
    #: The models among these whose configuration or files came with a request: name, configuration as JSON, directory.
    given: Sequence[tuple[str, str, str | None]]
    #: Repositories that were registered for one model each: name of the model, directory.
    repositories: Sequence[tuple[str, str]]
    #: Versions with another number of instances than their configuration says: model, version, number of instances.
    scaled: Sequence[tuple[str, int, int]]
    #: Versions of TorchServe's store: the fields of registrations.Registration; None where there is no store.
    registered: Sequence[Mapping[str, Any]] | None
    #: TorchServe's workflows: the request, where it came from, and the name of a download in the workflow store.
    workflows: Sequence[Mapping[str, Any]]
    #: Bytes of /dev/shm that the old server's segments may still take.
    promised_nbytes: int


class ModelsSettled(Message):
    """Sent by the new server: its models have loaded or failed, and it waits for SettingsCarried before it listens."""

    serving: Sequence[tuple[str, int]]  # model and version


class SettingsCarried(Message):
    """Sent to the new server: it may listen, with the settings that requests have changed."""

    log: LogSettings
    traces: Mapping[str, Mapping[str, Any]]  # layers of TraceSettings, by model


class NewServerServes(Message):
    """Sent by the new server: its front ends answer, and it waits for TakeOver."""


class NewServerFails(Message):
    """Sent by the new server: it ends, for this reason."""

    reason: str


class TakeOver(Message):
    """Sent to the new server: it is the server from now on. Once it has acknowledged this, it no longer dies with the
    old one, which accepts no more, and ends."""


class MainProcessNamed(Message):
    """Sent to the new server: the service manager knows it as the main process, so it reports to the manager
    from now on."""


#: The message that the new server receives first, and all messages that it receives later.
FIRST_TO_NEW_SERVER = Kinds(ModelsCarried)
TO_NEW_SERVER = Kinds[Message](
    RegionRegistered, CudaRegionRegistered, RegionUnregistered, SettingsCarried, TakeOver, MainProcessNamed
)
TO_COMMAND = Kinds[Message](UpgradeBegun, UpgradeEnded)
