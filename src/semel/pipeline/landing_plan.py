"""The plan of a landing: its settings, checked before anything starts."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from semel.pipeline.cluster_by import DEFAULT_CLUSTER_BY, check_cluster_by
from semel.pipeline.errors import OptionError, PipelineError
from semel.pipeline.lake_address import (
    checkpoint_folder,
    local_folder,
    split_address,
    table_address,
)
from semel.pipeline.landing_file import DEAD_LETTERS, LandingFile, read_landing_file
from semel.pipeline.maintenance_process import Policy
from semel.pipeline.settings import LandSettings
from semel.pipeline.source_columns import COLUMNS, DATE
from semel.store.roots import LocalRoot, Root, RootError, open_root, without_secrets

CHECKPOINTS: Final = "_checkpoints"
# The checkpoint of a landing file, which no table can be called.
LANDING_FILE: Final = "_landing"
SPARKPLUG: Final = "sparkplug"


@dataclass(frozen=True)
class SparkplugTables:
    """The tables of a landing of Sparkplug messages."""

    # The first part of their names.
    prefix: str = SPARKPLUG
    dead_letters: str = DEAD_LETTERS

    @property
    def metrics(self) -> str:
        return f"{self.prefix}_metrics"

    @property
    def nodes(self) -> str:
        return f"{self.prefix}_nodes"

    @property
    def gaps(self) -> str:
        return f"{self.prefix}_gaps"

    @property
    def state(self) -> str:
        return f"{self.prefix}_state"

    def cluster_by(self, table: str) -> tuple[str, ...]:
        """The columns by which rows of a table are sorted when its files are compacted."""
        if table == self.metrics:
            return ("group_id", "edge_node_id", "device_id", "name")
        return ("group_id", "edge_node_id") if table in (self.nodes, self.gaps) else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The tables that have positions, in the order of their commits."""
        return (self.metrics, self.nodes, self.gaps, self.state)


@dataclass(frozen=True)
class LandingPlan:
    """Checked settings of a landing."""

    root: Root
    # As the user gave it; it may contain secrets, which Spark's workers need.
    root_address: str = field(repr=False)
    stream: str
    table: str = field(repr=False)
    checkpoint: Path
    interval: float
    max_rows: int
    master: str | None
    fail_on_data_loss: bool
    # None: the table is not maintained.
    maintenance: Policy | None = None
    lake: str = field(default="", repr=False)
    # The tables to land, instead of `table`, which is the lake then.
    file: LandingFile | None = None
    # Where new tables begin: option `start` of format("mqtt"); None: with the first message.
    begin_at: str | None = None
    # The tables of Sparkplug messages, instead of `table`, which is the lake then.
    sparkplug: SparkplugTables | None = None

    @property
    def shown(self) -> str:
        """The address of the table, or of the lake of several tables, without secrets."""
        return without_secrets(self.table)


def make_plan(settings: LandSettings) -> LandingPlan:
    """Check the settings of a landing. Raises PipelineError."""
    if settings.root is None:
        raise PipelineError("--root is missing: give the folder or object store of the segments")
    try:
        root = open_root(settings.root)
    except RootError as problem:
        raise PipelineError(f"--root: {problem}") from None
    address = settings.root
    if isinstance(root, LocalRoot):
        # Spark's workers may have another working directory.
        address = str(Path(root.address).absolute())
    _check_table_settings(settings)
    lake = local_folder(settings.lake)
    file = None
    if settings.landing is None:
        table = landing_table(settings.lake, settings.table)
    else:
        file = read_landing_file(settings.landing)
        table = settings.lake if lake is None else str(lake)
    checkpoint = settings.checkpoint
    if checkpoint is None:
        if lake is None:
            raise PipelineError(
                f"{without_secrets(settings.lake)} is not a local folder: give --checkpoint, a"
                " folder for Spark's checkpoint"
            )
        name = settings.table if file is None else f"{LANDING_FILE}-{settings.stream}"
        checkpoint = lake / CHECKPOINTS / name
    folder = checkpoint_folder(str(checkpoint))
    if folder is None:
        raise PipelineError(f"--checkpoint {checkpoint} is not a local folder: give one")
    return LandingPlan(
        root=root,
        root_address=address,
        stream=settings.stream,
        table=table,
        checkpoint=folder.absolute(),
        interval=settings.interval,
        max_rows=settings.max_rows,
        master=settings.master,
        fail_on_data_loss=settings.fail_on_data_loss,
        maintenance=policy_of(settings),
        lake=settings.lake,
        file=file,
    )


def sparkplug_plan(plan: LandingPlan, tables: SparkplugTables) -> LandingPlan:
    """The plan of a landing of Sparkplug messages, from that of one table. Raises PipelineError."""
    for name in tables.names:
        landing_table(plan.lake, name)
    lake = local_folder(plan.lake)
    checkpoint = plan.checkpoint
    if lake is not None and checkpoint == (lake / CHECKPOINTS / Path(plan.table).name).absolute():
        # The default, which is named after the one table.
        checkpoint = checkpoint.with_name(f"_{tables.prefix}-{plan.stream}")
    return replace(
        plan,
        sparkplug=tables,
        table=plan.lake if lake is None else str(lake),
        checkpoint=checkpoint,
    )


def policy_of(settings: LandSettings) -> Policy | None:
    """How the table is maintained, or None if it is not."""
    if not settings.maintenance:
        return None
    return Policy(
        target_file_size=settings.target_file_size,
        small_files=settings.small_files,
        file_retention=settings.file_retention,
        log_entries=settings.log_entries,
        cluster_by=settings.cluster_by,
        retention=settings.retention,
    )


def _check_table_settings(settings: LandSettings) -> None:
    """Check the settings of one table, which those of a landing file have as keys.

    Raises OptionError.
    """
    if settings.landing is None:
        check_cluster_by(settings.cluster_by, {**COLUMNS, DATE: "date"}, (DATE,))
        return
    # They would be ignored otherwise, and rows kept that should be removed.
    for name, is_default in (
        ("cluster_by", settings.cluster_by == DEFAULT_CLUSTER_BY),
        ("retention", settings.retention is None),
    ):
        if not is_default:
            raise OptionError(
                f"[land] {name} is for landing without a landing file: set {name} of the tables in"
                f" {settings.landing} instead"
            )


def landing_table(lake: str, table: str) -> str:
    """The address of the table of a landing. Raises PipelineError."""
    address = table_address(lake, table)
    split_address(address)
    folder = local_folder(lake)
    return address if folder is None else str(folder / table)


def check_can_be_created(folder: Path) -> None:
    """Raise PipelineError unless the folder is writable, or can be created."""
    at = folder
    try:
        while not at.exists() and at != at.parent:
            at = at.parent
        is_folder = at.is_dir()
    except OSError as problem:
        raise PipelineError(f"{folder} cannot be accessed: {problem.strerror}") from None
    if not is_folder:
        raise PipelineError(f"{folder}: {at} is not a folder but a file")
    if not os.access(at, os.W_OK | os.X_OK):
        raise PipelineError(f"{folder} cannot be written: no permission to write in {at}")
