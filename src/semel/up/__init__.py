"""`semel up` and `semel sql`: broker, sealer and landing as one service, and SQL over their tables.

`supervisor` keeps the parts running, `plan` and `parts` say what they are, `status` is what is
known about them; `sql` queries the tables of the lake, and the rows that have not landed yet.
Importing this package imports nothing else.
"""
