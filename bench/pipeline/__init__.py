"""The pipeline: source and sink compared with Spark's own, and `semel up` as a whole."""
