"""The whole: broker, sealer and landing run together, and SQL over what they make.

`supervisor` keeps the parts of `semel up` running, `parts` says what they are; `sql` asks the
tables of the lake, and the rows on their way there. Nothing is imported until it is needed.
"""
