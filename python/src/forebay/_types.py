"""What Forebay answers, as plain values."""

from __future__ import annotations

import errno as numbers
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from ._errors import Failure

PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


@dataclass(frozen=True)
class Location:
    """Where one file is (`forebay where`)."""

    path: str
    tiers: tuple[str, ...]
    """Tiers that hold it, fastest first: ``dram``, ``ssd``, ``pfs``, or ``server-2:/local/nvme``."""
    state: str
    """``dirty`` (not on the PFS yet), ``demoting``, ``clean``, or ``pfs`` (only there)."""
    size_bytes: int
    application: str
    version: Optional[int]
    crc32c: Optional[str]
    """CRC-32C of the content, eight digits of base 16; None where it is not known yet."""
    error: Optional[str]
    """Why its last copy to the PFS failed."""
    unpublished: bool
    """It belongs to a version that the PFS does not show yet."""
    durability: Optional[str] = None
    """What fsync promises of it: memory, ssd, replica or pfs; None for a file that is only on the PFS."""
    stale_tiers: tuple[str, ...] = ()
    """Of `tiers`, those with an older copy of it."""

    @property
    def on_pfs(self) -> bool:
        """Whether all of it is on the PFS (under a hidden name, while unpublished)."""
        return self.state in ("clean", "pfs")


@dataclass(frozen=True)
class Progress:
    """How far a movement has come."""

    movement: str
    counting: bool
    """Files are still being listed: the totals may grow."""
    files_total: int
    files_done: int
    files_skipped: int
    """Files that needed nothing."""
    files_failed: int
    bytes_total: int
    bytes_done: int
    elapsed_s: float
    failures: tuple[Failure, ...]

    @property
    def fraction(self) -> float:
        """From 0 to 1, by bytes; by files where there are no bytes."""
        if self.bytes_total > 0:
            return min(1.0, self.bytes_done / self.bytes_total)
        return min(1.0, self.files_done / self.files_total) if self.files_total else 0.0

    @property
    def rate_bytes_per_s(self) -> float:
        """Mean rate since the beginning."""
        return self.bytes_done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> Optional[float]:
        """Seconds left at that rate; None while nothing has moved, or files are still being listed."""
        if self.counting or self.bytes_done <= 0:
            return None
        return max(0, self.bytes_total - self.bytes_done) / self.rate_bytes_per_s


@dataclass(frozen=True)
class Result(Progress):
    """How a movement ended."""

    outcome: str
    """``finished``, ``queued`` (nobody waited), ``timed-out``, ``interrupted`` or ``cancelled``."""
    left: tuple[str, ...]


@dataclass(frozen=True)
class Tier:
    """One tier, of `Status.tiers`."""

    name: str
    capacity_bytes: int
    used_bytes: int
    dirty_bytes: int
    reserved_bytes: int
    out_of_reach: bool


@dataclass(frozen=True)
class Drain:
    """What goes to the PFS by itself."""

    queued_files: int
    rate_bytes_per_s: float
    eta_s: Optional[float]
    """When all is on the PFS; None while nothing moves, or something fails."""
    failing_files: int


@dataclass(frozen=True)
class Application:
    """An application with files in the burst buffer."""

    name: str
    version: Optional[int]
    """Its newest checkpoint version."""
    mtbf_s: Optional[float]
    resident_bytes: int
    dirty_bytes: int
    files: int


@dataclass(frozen=True)
class Limit:
    """A user or group with a limit, of `Status.limits`."""

    kind: str
    """``user`` or ``group``."""
    id: int
    name: Optional[str]
    """None where the number has no name on the server's node."""
    used_bytes: int
    """What its files occupy or have set aside."""
    capacity_bytes: Optional[int]
    """The most that may be; None: no limit."""
    dirty_bytes: int
    """Of `used_bytes`, not on the PFS yet."""
    undrained_bytes: Optional[int]
    """The most that may be; None: no limit."""
    beyond: str
    """What writes do beyond: ``wait`` or ``direct``."""


@dataclass(frozen=True)
class Unpublished:
    """A checkpoint version that the PFS does not show yet."""

    path: str
    files: int
    written_files: int
    """Of its files, those open for writing."""
    undrained_files: int
    undrained_bytes: int
    committed: bool
    interrupted: bool
    lost_files: int
    error: Optional[str]


@dataclass(frozen=True)
class Status:
    """What `forebay status` says; all of it is in ``raw``."""

    version: str
    pid: int
    uptime_s: float
    pfs: str
    mount: str
    state: str
    durability: str
    """What fsync promises where no path rule says otherwise: memory, ssd, replica or pfs."""
    policy: str
    placement: str
    tiers: tuple[Tier, ...]
    dirty_bytes: int
    dirty_cap_bytes: Optional[int]
    drain: Drain
    applications: tuple[Application, ...]
    unpublished: tuple[Unpublished, ...]
    errors: tuple[Failure, ...]
    errors_total: int
    conflicts_total: int
    schema_version: int
    """Of docs/status.schema.json; it grows when a field goes or changes its meaning."""
    limits: tuple[Limit, ...]
    """Of who asks; of everybody, for root and the server's own user. The first ones only."""
    limits_total: int
    """How many there are."""
    raw: Mapping[str, Any] = field(repr=False, compare=False)
    """The whole answer; docs/operations.md has its fields."""


def path_of(value: Mapping[str, Any], key: str = "path") -> str:
    """A path of an answer, as `open` takes it."""
    exact = value.get(f"{key}_base16")
    if exact is not None:
        return os.fsdecode(bytes.fromhex(exact))
    # The answer is UTF-8, whatever the locale says.
    return os.fsdecode(str(value[key]).encode())


def number_of(errno: Union[str, int, None]) -> int:
    """A number of an answer, which has its name where there is one."""
    if isinstance(errno, int):
        return errno
    return getattr(numbers, errno or "", numbers.EIO)


def failure_of(value: Mapping[str, Any]) -> Failure:
    """From ``{"path", "errno", "error"}``."""
    return Failure(path_of(value), number_of(value["errno"]), value["error"])


def location_of(value: Mapping[str, Any]) -> Location:
    """From a line of `forebay where --json-lines`."""
    return Location(
        path=path_of(value),
        tiers=tuple(value["tiers"]),
        state=value["state"],
        size_bytes=value["size_bytes"],
        application=value["application"],
        version=value["version"],
        crc32c=value["crc32c"],
        error=value["error"],
        unpublished=value["unpublished"],
        durability=value.get("durability"),
        stale_tiers=tuple(value.get("stale_tiers", ())),
    )


def _figures(value: Mapping[str, Any]) -> dict[str, Any]:
    same = (
        "movement",
        "counting",
        "files_total",
        "files_done",
        "files_skipped",
        "files_failed",
        "bytes_total",
        "bytes_done",
        "elapsed_s",
    )
    figures = {key: value[key] for key in same}
    figures["failures"] = tuple(failure_of(one) for one in value["failures"])
    return figures


def progress_of(value: Mapping[str, Any]) -> Progress:
    """From a line of a movement that is under way."""
    return Progress(**_figures(value))


def result_of(value: Mapping[str, Any]) -> Result:
    """From the last line of a movement."""
    left = tuple(path_of(one) for one in value["left"])
    return Result(**_figures(value), outcome=value["outcome"], left=left)


def limit_of(value: Mapping[str, Any]) -> Limit:
    """From one of the `limits` of a status."""
    return Limit(
        kind=value["kind"],
        id=value["id"],
        name=value["name"],
        used_bytes=value["used_bytes"],
        capacity_bytes=value["capacity_bytes"],
        dirty_bytes=value["dirty_bytes"],
        undrained_bytes=value["undrained_bytes"],
        beyond=value["beyond"],
    )


def status_of(value: Mapping[str, Any]) -> Status:
    """From `forebay status --json`."""
    drain = value["drain"]
    return Status(
        **{key: value[key] for key in ("version", "pid", "uptime_s", "durability", "policy", "placement")},
        pfs=path_of(value, "pfs"),
        mount=path_of(value, "mount"),
        state=path_of(value, "state"),
        **{key: value[key] for key in ("dirty_bytes", "dirty_cap_bytes", "errors_total", "conflicts_total")},
        schema_version=value["schema_version"],
        limits=tuple(limit_of(limit) for limit in value["limits"]),
        limits_total=value["limits_total"],
        tiers=tuple(
            Tier(
                name=tier["name"],
                capacity_bytes=tier["capacity_bytes"],
                used_bytes=tier["used_bytes"],
                dirty_bytes=tier["dirty_bytes"],
                reserved_bytes=tier["reserved_bytes"],
                out_of_reach=tier["out_of_reach"],
            )
            for tier in value["tiers"]
        ),
        drain=Drain(
            queued_files=drain["queued_files"],
            rate_bytes_per_s=drain["rate_bytes_per_s"],
            eta_s=drain["eta_s"],
            failing_files=drain["failing_files"],
        ),
        applications=tuple(
            Application(
                name=app["name"],
                version=app["version"],
                mtbf_s=app["mtbf_s"],
                resident_bytes=app["resident_bytes"],
                dirty_bytes=app["dirty_bytes"],
                files=app["files"],
            )
            for app in value["applications"]
        ),
        unpublished=tuple(
            Unpublished(
                path=path_of(one),
                files=one["files"],
                written_files=one["written_files"],
                undrained_files=one["undrained_files"],
                undrained_bytes=one["undrained_bytes"],
                committed=one["committed"],
                interrupted=one["interrupted"],
                lost_files=one["lost_files"],
                error=one["error"],
            )
            for one in value["unpublished"]
        ),
        errors=tuple(failure_of(one) for one in value["errors"]),
        raw=value,
    )
