"""The fifteen control packets, one file for each group: constructor, checks, bytes both ways."""
