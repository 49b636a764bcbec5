"""What the HTML pages share: signs of verdicts, styles, and the frame of a page without network."""

import base64
import hashlib
import html
from typing import Final

from semel.probe.report.safe_strings import visible_text
from semel.probe.verdicts import (
    ARGUABLE,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXAMINED,
    NOT_OBSERVABLE,
    PARTLY,
    SATISFIED,
    VIOLATED,
)

# A sign and a class of styles per verdict: colors alone do not tell them apart.
SIGNS: Final = {
    SATISFIED: ("✓", "good"),
    VIOLATED: ("✗", "bad"),
    PARTLY: ("◐", "bad"),
    ARGUABLE: ("≈", "warn"),
    INCONCLUSIVE: ("?", "warn"),
    NOT_APPLICABLE: ("–", "none"),
    NOT_OBSERVABLE: ("○", "none"),
    NOT_EXAMINED: ("·", "none"),
}

STYLE: Final = """
:root {
  color-scheme: light dark;
  --ground: light-dark(#f4f6f9, #0d1117);
  --surface: light-dark(#ffffff, #151b23);
  --border: light-dark(#d3d9e2, #2c3643);
  --text: light-dark(#18202b, #e3e8ef);
  --muted: light-dark(#535d6c, #9aa6b7);
  --accent: light-dark(#2457cf, #82aaff);
  --good: light-dark(#126138, #5fd09a);
  --good-ground: light-dark(#e2f5ea, #14301f);
  --warn: light-dark(#7a4d00, #f0b445);
  --warn-ground: light-dark(#fdf1d8, #33270f);
  --bad: light-dark(#a81d1d, #ff9090);
  --bad-ground: light-dark(#fdeaea, #3a1b1d);
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1rem clamp(0.75rem, 3vw, 2.5rem) 3rem; max-width: 100rem;
  background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2rem 0 0.5rem; }
h3 { font-size: 1rem; margin: 0 0 0.25rem; overflow-wrap: anywhere; }
a { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1rem 1rem; margin: 0.5rem 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; background: var(--surface); }
caption { text-align: left; color: var(--muted); padding: 0.25rem 0; }
th, td {
  border: 1px solid var(--border); padding: 0.3rem 0.55rem; text-align: left;
  vertical-align: top;
}
thead th { background: var(--ground); white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.summary { font-size: 14px; }
.summary th, .summary td { padding: 0.15rem 0.55rem; }
.summary thead th { white-space: normal; vertical-align: bottom; }
.summary tbody th { white-space: nowrap; font-weight: 400; }
.summary td { white-space: nowrap; }
.all { width: 100%; }
.all > tbody, article, details { scroll-margin-top: 3rem; }
.all .more td { border-top: 0; padding-top: 0; }
.all tr:has(+ .more) > * { border-bottom: 0; }
.all thead th { position: sticky; top: 0; z-index: 1; }
.all .id { white-space: nowrap; font-weight: 600; }
.id small { display: block; font-weight: 400; color: var(--muted); }
.verdict, .all td[data-label] { white-space: nowrap; }
.good { color: var(--good); } td.good, b.good { background: var(--good-ground); }
.warn { color: var(--warn); } td.warn, b.warn { background: var(--warn-ground); }
.bad { color: var(--bad); } td.bad, b.bad { background: var(--bad-ground); }
.none, .why { color: var(--muted); }
b { padding: 0.05rem 0.4rem; border-radius: 0.3rem; font-weight: 600; white-space: nowrap; }
p { margin: 0.25rem 0; overflow-wrap: anywhere; }
article {
  border: 1px solid var(--border); border-left: 4px solid var(--bad); border-radius: 0.4rem;
  background: var(--surface); padding: 0.75rem 1rem; margin: 0.75rem 0;
}
details { margin: 0.2rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
details details, .cases { margin-left: 1rem; }
.evidence { font-size: 13px; margin: 0.35rem 0; }
.evidence th, .evidence td { padding: 0.1rem 0.45rem; overflow-wrap: anywhere; }
.evidence td:nth-child(-n+4) { white-space: nowrap; }
.evidence code { font: 12px/1.45 ui-monospace, Menlo, Consolas, monospace; }
.evidence tr.control td { color: var(--muted); }
form {
  display: flex; flex-wrap: wrap; gap: 0.6rem 1rem; align-items: end; margin: 0.5rem 0;
}
label { display: grid; gap: 0.15rem; font-size: 0.85rem; color: var(--muted); }
label.check { display: flex; gap: 0.4rem; align-items: center; font-size: 1rem; }
input, select, button {
  font: inherit; color: var(--text); background: var(--surface); padding: 0.3rem 0.5rem;
  border: 1px solid var(--muted); border-radius: 0.35rem;
}
select { max-width: 18rem; }
input[type=search] { width: min(22rem, 80vw); }
button { cursor: pointer; }
output { color: var(--muted); padding: 0.3rem 0; }
/* Where there is no room for columns, a statement is a block. */
@media print, (max-width: 50rem) {
  .blocks, .blocks > caption, .blocks > tbody, .blocks > tbody > tr { display: block; }
  .blocks > tbody[hidden], .blocks > thead { display: none; }
  .blocks > tbody { border: 1px solid var(--border); margin: 0 0 0.4rem; padding: 0.3rem; }
  .blocks > tbody > tr > * { display: block; border: 0; padding: 0.1rem 0.3rem; }
  .blocks > tbody > tr > td:empty { display: none; }
  .blocks td[data-label]::before { content: attr(data-label) ": "; }
}
@media screen and (max-width: 50rem) {
  .evidence { display: block; overflow-x: auto; }
}
@media print {
  :root { color-scheme: light; }
  body { font-size: 10px; padding: 0; max-width: none; background: none; }
  form, .screen { display: none; }
  .all thead th { position: static; }
  .wide { overflow: visible; }
  details::details-content { content-visibility: visible; }
  h2, h3, summary { break-after: avoid; }
  .evidence, .evidence code { font-size: 8px; }
}
"""

# Filters the table bodies of .all by the attributes that selects and the search field name.
SCRIPT: Final = """
"use strict";
const form = document.querySelector("form");
const count = document.querySelector("output");
const entries = Array.from(document.querySelectorAll(".all > tbody"), body => ({ body, text: "" }));
const texts = () => {
  for (const entry of entries) entry.text ||= entry.body.textContent.toLowerCase();
};
const matches = (body, select) => {
  const has = (body.getAttribute("data-" + select.name) || "").split("|");
  return !select.value || has.includes(select.value);
};
function filter() {
  const words = form.elements.text.value.toLowerCase().split(/\\s+/).filter(Boolean);
  const selects = Array.from(form.querySelectorAll("select"));
  const boxes = Array.from(form.querySelectorAll("input[type=checkbox]:checked"));
  if (words.length) texts();
  let shown = 0;
  for (const { body, text } of entries) {
    const visible = selects.every(select => matches(body, select))
      && boxes.every(box => body.hasAttribute("data-" + box.name))
      && words.every(word => text.includes(word));
    body.hidden = !visible;
    shown += visible;
  }
  count.value = shown.toLocaleString("en") + " of " + entries.length.toLocaleString("en")
    + " statements";
}
let waiting = 0;
form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 120); });
form.addEventListener("reset", () => setTimeout(filter));
form.addEventListener("submit", event => { event.preventDefault(); filter(); });
document.addEventListener("keydown", event => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  form.elements.text.focus();
});
function reveal() {
  const id = decodeURIComponent(location.hash.slice(1));
  const target = id && document.getElementById(id);
  if (!target) return;
  if (target.closest("tbody[hidden]")) { form.reset(); filter(); }
  for (let each = target; each; each = each.parentElement) {
    if (each.tagName === "DETAILS") each.open = true;
  }
  const own = target.querySelector("details");
  if (own) own.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);
let opened = [];
addEventListener("beforeprint", () => {
  opened = Array.from(document.querySelectorAll("details:not([open])"));
  for (const each of opened) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of opened) each.open = false;
  opened = [];
});
filter();
reveal();
"""


def escaped(text: str) -> str:
    """Text of a subject as text of a page, in elements and in quoted attributes."""
    return html.escape(visible_text(text), quote=True)


def verdict_label(verdict: str) -> str:
    """The sign and the word of a verdict."""
    sign, style = SIGNS[verdict]
    return f'<b class="{style}">{sign} {verdict}</b>'


def select_field(name: str, label: str, every: str, options: list[tuple[str, str]]) -> str:
    """A field of the filter: pairs of value and text. Nothing if there is no choice."""
    if len(options) < 2:
        return ""
    items = "".join(f'<option value="{escaped(v)}">{escaped(text)}</option>' for v, text in options)
    return (
        f'<label>{label}<select name="{name}"><option value="">{every}</option>{items}'
        "</select></label>\n"
    )


def page(title: str, body: str) -> str:
    """A page that loads nothing and runs no script but ours."""
    policy = (
        f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
