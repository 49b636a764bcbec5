"""The pipeline: Spark's source and sink beside Spark's own, and the whole of `semel up` at work."""
