"""A table as other programs write it if they enable column mapping."""

import json
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake


def write_mapped_table(folder: Path, mode: str) -> None:
    """Write a table with one row and a column `a`, which is `col-1` in its file, unless `none`."""
    stored = "a" if mode == "none" else "col-1"
    write_deltalake(folder, pa.table({stored: [1]}))
    entry = folder / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            metadata = action["metaData"]
            metadata["configuration"] = {"delta.columnMapping.mode": mode}
            schema = json.loads(metadata["schemaString"])
            schema["fields"][0] |= {
                "name": "a",
                "metadata": {
                    "delta.columnMapping.id": 1,
                    "delta.columnMapping.physicalName": stored,
                },
            }
            metadata["schemaString"] = json.dumps(schema)
    entry.write_text("\n".join(map(json.dumps, actions)))
