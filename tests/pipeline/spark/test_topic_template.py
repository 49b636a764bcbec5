"""Templates beside Spark: both take the same topics."""

import random

from pyspark.sql import SparkSession, functions

from semel.mqtt.topics import topic_matches
from semel.pipeline.topic_template import parse_template


def test_spark_and_the_standards_own_function_take_the_same_topics(spark: SparkSession) -> None:
    chosen = random.Random(4)
    # Signs that mean something in a regular expression, a line break, and empty levels.
    levels = ["a", "b", "", "7", "-12", "a.b", "(x)", "[y]\\", "$", "$a", "é\n", "7" * 19]
    templates = ["#", "+", "+/#", "a/#", "{x}", "{x:int}", "a/{x:int}/+", "(x)/+/[y]\\", "a.b", "$"]
    for _ in range(30):
        parts = chosen.choices([*levels, "+", "+", "{x}"], k=chosen.randint(1, 4))
        if parts.count("{x}") > 1:
            parts = ["+" if each == "{x}" else each for each in parts]
        if chosen.random() < 0.3:
            parts.append("#")
        templates.append("/".join(parts) or "a")
    topics = ["/".join(chosen.choices(levels, k=chosen.randint(1, 4))) for _ in range(400)]
    topics = sorted({*filter(None, topics), "7", "-12", "a/7/x"})
    made = [parse_template(each) for each in templates]
    frame = spark.createDataFrame([(each,) for each in topics], "topic string")
    column = functions.col("topic")
    rows = frame.select(
        "topic",
        *(each.takes(column).alias(f"takes_{place}") for place, each in enumerate(made)),
        functions.when(made[5].takes(column), made[5].columns(column)["x"]).alias("x"),
    ).collect()
    assert len(rows) == len(topics)
    taken = 0
    for row in rows:
        for place, each in enumerate(made):
            expected = each.explain(row.topic) is None
            if not any(level.kind == "int" for level in each.named):
                assert expected == topic_matches(each.topic_filter, row.topic)
            assert row[f"takes_{place}"] is expected, (each.text, row.topic)
            taken += expected
    assert taken > 300
    assert {row.topic: row.x for row in rows if row.x is not None} == {"7": 7, "-12": -12}
