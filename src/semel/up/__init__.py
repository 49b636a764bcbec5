"""`semel up` and `semel sql`: broker, sealer and landing as one service, and SQL over their tables.

`plan` and `parts` define the parts, `supervisor` keeps them running, and `status` holds their
current numbers. `sql` queries the tables of the lake, and the rows that have not landed yet.
Importing this package imports nothing else.
"""
