"""The state folder of `write.format("mqtt")`: what it must not confuse, and what it keeps."""

from pathlib import Path

import pytest

from semel.lab.testing import TestBroker
from semel.pipeline.errors import PipelineError
from tests.pipeline.test_publish import commit, options_of, payloads


def test_a_batch_that_spark_cannot_be_repeating_is_refused(tmp_path: Path) -> None:
    """A new checkpoint begins at batch 0 again, with other rows: skipped, they would be lost."""
    with TestBroker() as broker:
        options = options_of(broker.url, tmp_path)
        for batch in range(3):
            commit(options, batch, topic=["t"], payload=[f"{batch}"])
        for batch in (0, 1):
            with pytest.raises(PipelineError) as caught:
                commit(options, batch, topic=["t"], payload=["new"])
            assert f"batch {batch} of query q follows batch 2, which was sent before" in str(
                caught.value
            )
            assert "give option appId with a new name" in str(caught.value)
        # The last batch is one that Spark repeats after a kill.
        commit(options, 2, topic=["t"], payload=["2"])
        assert payloads(broker) == ["0", "1", "2"]
        commit(options_of(broker.url, tmp_path, "again"), 0, topic=["t"], payload=["new"])
        assert payloads(broker) == ["0", "1", "2", "new"]
