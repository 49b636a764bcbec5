"""`semel web`: serve the page of a broker that runs already."""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from semel.broker.network.control_settings import ControlSettings
from semel.cli.flags import CONFIG, data_option, json_option, shared_option
from semel.cli.locations import LAKE, ROOT
from semel.cli.option_groups import SemelCommand
from semel.cli.sections import SECTIONS
from semel.extras import missing, need
from semel.pipeline.lake_address import local_folder
from semel.settings import load
from semel.store.settings import StoreSettings
from semel.up.plan import DATA, LAKE_FOLDER, UpLandSettings, sections
from semel.up.plan import LAKE as IN_DATA_FOLDER
from semel.web.settings import WebSettings


@click.command(
    cls=SemelCommand,
    examples=("semel web", "semel web --data /var/lib/semel --port 8081"),
)
@CONFIG
@data_option(
    "The data folder of the broker, which contains its control socket.  "
    "[or SEMEL_STORE_DATA; default: semel-data]"
)
@ROOT
@LAKE
@shared_option("--host", help="The address of the page.  [default: 127.0.0.1]")
@shared_option("--port", help="The port of the page.  [default: 8080]")
@json_option("Print events as JSON, one object per line.")
def command(
    config: Path | None,
    data: Path | None,
    root: str | None,
    lake: str | None,
    host: str | None,
    port: str | None,
    is_json: bool,
) -> None:
    """Serve the page of a running broker, until Ctrl-C.

    It shows what the broker, its record and its tables do: live numbers, topics, clients, tables
    with SQL, and the rules that clients broke. `semel up` serves it, too.
    """
    need("starlette", extra="web", by="semel web")
    need("uvicorn", extra="web", by="semel web")
    from semel.web.server import CannotServePage

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    given: dict[str, dict[str, Any]] = {
        "web": {"host": host, "port": port},
        "store": {"data": None if data is None else str(data)},
        "land": {"root": root, "lake": lake},
    }
    flags = {
        name: {key: value for key, value in keys.items() if value is not None}
        for name, keys in given.items()
    }
    settings = load(sections(SECTIONS), path=config, environ=os.environ, flags=flags)
    try:
        asyncio.run(_serve(settings, is_json=is_json))
    except CannotServePage as problem:
        if is_json:
            print(json.dumps({"event": "failed", "problem": str(problem)}), flush=True)
        raise click.ClickException(str(problem)) from None


async def _serve(settings: Any, *, is_json: bool) -> None:
    from semel.web.app import PageServer
    from semel.web.server import open_socket, page_url, serve
    from semel.web.sql_queries import LakeAddress

    web, store, land = (settings.of(each) for each in (WebSettings, StoreSettings, UpLandSettings))
    data = (Path(DATA) if store.data is None else store.data).absolute()
    root = _absolute(land.root or store.root)
    lacks = missing("sql")
    stream = None if "pyarrow" in lacks else land.stream
    lake = str(data / LAKE_FOLDER) if land.lake == IN_DATA_FOLDER else land.lake
    address = LakeAddress(_absolute(lake) or lake, root, data, land.stream, land.table)
    server = PageServer(
        web,
        control=settings.of(ControlSettings).socket_path(data),
        data=data,
        root=root,
        stream=stream,
        lake=None if lacks else address,
        without_record="topics of the record need pyarrow: pip install 'semel[sql]'",
        without_lake=f"tables need {', '.join(lacks)}: pip install 'semel[sql]'",
    )
    opened = open_socket(web.host, web.port)
    url = page_url(server, opened)

    def ready() -> None:
        if is_json:
            event = {"event": "ready", "text": f"the page is at {url}", "url": url}
            print(json.dumps(event), flush=True)
        else:
            print(f"the page is at {url}", file=sys.stderr, flush=True)

    await serve(server, opened, ready)


def _absolute(address: str | None) -> str | None:
    """The address, with an absolute path if it is a folder."""
    folder = None if address is None else local_folder(address)
    return address if folder is None else str(folder.absolute())
