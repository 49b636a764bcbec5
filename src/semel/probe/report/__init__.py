"""Writes what an examination found as files for people and for other programs.

`files` writes a folder: a page (`html`), `junit`, `sarif`, `pcapng` and a `badge`, and for each
violated case a reproducer and a bug report. `comparison` compares two reports, `matrix_page` shows
many side by side.
"""
