// Topics: the live tree, the search, and the details of one topic beside it.

import { empty, foreign, icon, iconButton, make, panel, setText } from "./dom.js";
import { putSummary } from "./payload.js";
import { TopicDetail } from "./topicdetail.js";
import { TopicTree } from "./topictree.js";
import { VirtualTable } from "./virtualtable.js";
import { age, count, decimal, put } from "./text.js";

const COLUMNS = [
  { key: "topic", title: "Topic", width: "var(--topic-width)", isHeader: true },
  { key: "value", title: "Last value" },
  { key: "rate", title: "Per second", width: "100px", align: "right", priority: 2 },
  { key: "messages", title: "Messages", width: "92px", align: "right", priority: 3 },
  { key: "last", title: "Received", width: "96px", align: "right", priority: 2 },
];

// The tree stays as it was left when another view is opened and this one again.
const tree = new TopicTree();
let lastSearch = "";

export function openTopics(root, context) {
  const { live } = context;
  const hasRecord = context.session?.has_record !== false;
  let found = null;
  let selected = context.argument || null;
  let isFirst = true;
  // A topic that came with the URL is scrolled to as soon as its branch is there.
  let awaited = selected;

  const totals = make("span", { class: "muted" });
  const search = make("input", {
    type: "search",
    id: "topic-search",
    value: lastSearch,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "temp, or a filter: plant/+/temp",
    "aria-describedby": "topic-search-note",
  });
  const note = make("span", { id: "topic-search-note", class: "muted", role: "status" });
  const table = new VirtualTable({
    label: "Topics",
    role: "treegrid",
    columns: COLUMNS,
    keyOf: (row) => row.key,
    fill: fillRow,
    rowHeight: 28,
    activate: (row, event) => activate(row, event),
    press,
    moved: watch,
  });
  const detail = new TopicDetail(context, () => select(null));
  const collapse = iconButton("collapse", "Close all branches", () => {
    tree.closeAll();
    refresh();
  });
  const tools = make(
    "div",
    { class: "tools" },
    make(
      "label",
      { class: "search", for: "topic-search" },
      icon("search"),
      make("span", { class: "for-screen-readers", text: "Search topics" }),
      search,
    ),
    collapse,
    note,
    totals,
  );
  const split = make(
    "div",
    { class: "split" },
    hasRecord
      ? panel("Topic tree", { class: "fill", tools: [tools] }, table.element)
      : panel("Topic tree", {}, empty(context.session.without_record)),
    detail.element,
  );
  root.append(split);

  function fillRow(cells, row, line, index) {
    const { entry, depth } = row;
    const [name, value, speed, messages, last] = cells;
    line.classList.toggle("old", !found && !tree.isWatched(row));
    line.classList.toggle("selected", Boolean(entry) && entry.topic === selected);
    line.classList.toggle("sentence", !entry);
    line.setAttribute("aria-level", String(depth + 1));
    name.style.setProperty("--depth", depth);
    if (!entry) {
      line.removeAttribute("aria-expanded");
      setText(name, row.sentence);
      for (const cell of cells.slice(1)) setText(cell, "");
      delete value.dataset.kind;
      return;
    }
    const canOpen = !found && entry.children > 0;
    if (canOpen) line.setAttribute("aria-expanded", String(tree.isOpen(entry)));
    else line.removeAttribute("aria-expanded");
    line.setAttribute("aria-posinset", String(row.position ?? index + 1));
    line.setAttribute("aria-setsize", String(row.size ?? found?.length ?? 1));
    fillName(name, entry, canOpen);
    if (entry.last) putSummary(value, entry.last.payload);
    else {
      setText(value, "");
      delete value.dataset.kind;
    }
    setText(speed, entry.rate > 0 ? decimal(entry.rate) : "");
    setText(messages, count(entry.messages));
    setText(last, entry.last ? age(entry.last.at) : "");
  }

  function fillName(cell, entry, canOpen) {
    let parts = cell.parts;
    if (!parts || !cell.contains(parts.twisty)) {
      parts = {
        twisty: icon("open"),
        text: make("bdi", { class: "foreign" }),
        inside: make("span", { class: "inside" }),
      };
      parts.twisty.classList.add("twisty");
      cell.parts = parts;
      // The space and the word are for screen readers: "berlin 2,000 topics".
      parts.word = make("span", { class: "for-screen-readers", text: "" });
      cell.replaceChildren(parts.twisty, parts.text, " ", parts.inside, parts.word);
    }
    parts.twisty.classList.toggle("none", !canOpen);
    const name = found ? entry.topic : entry.level;
    put(parts.text, name === "" ? "(empty)" : name, { limit: 200 });
    setText(parts.inside, canOpen ? count(entry.topics) : "");
    setText(parts.word, canOpen ? (entry.topics === 1 ? " topic" : " topics") : "");
  }

  function activate(row, event) {
    if (!row.entry) return;
    const isTwisty = event?.target?.closest?.(".twisty");
    if (isTwisty || (row.entry.children > 0 && !row.entry.last && !found)) toggle(row);
    else select(row.entry.topic);
  }

  function toggle(row) {
    const branch = TopicTree.branchOf(row.entry);
    if (!(row.entry.children > 0)) return;
    if (tree.isOpen(row.entry)) tree.close(branch);
    else tree.open(branch);
    refresh();
  }

  function press(event, row) {
    if (found || !row.entry) return false;
    const isOpen = row.entry.children > 0 && tree.isOpen(row.entry);
    if (event.key === "ArrowRight" && row.entry.children > 0) {
      if (!isOpen) toggle(row);
      else {
        const rows = tree.rows();
        const next = rows[rows.indexOf(row) + 1];
        if (next) table.activateKey(next.key);
      }
      return true;
    }
    if (event.key === "ArrowLeft") {
      if (isOpen) toggle(row);
      else if (row.branch !== "") table.activateKey(`topic ${row.branch.slice(0, -1)}`);
      return true;
    }
    return false;
  }

  function refresh() {
    if (document.hidden) return;
    table.update(
      found
        ? found.map((entry) => ({ key: `topic ${entry.topic}`, entry, depth: 0, branch: "" }))
        : tree.rows(),
    );
  }

  function watch() {
    const parent = selected === null ? null : TopicTree.branchAbove(selected);
    live.watch(found ? (parent === null ? [] : [parent]) : tree.watched(...table.range, parent));
  }

  function select(topic) {
    selected = topic;
    context.setArgument(topic);
    split.classList.toggle("with-detail", topic !== null);
    detail.show(topic, topic === null ? null : entryOf(topic));
    table.refresh();
    watch();
    if (topic === null) table.table.focus();
  }

  function entryOf(topic) {
    return tree.find(topic) ?? found?.find((entry) => entry.topic === topic) ?? null;
  }

  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(startSearch, 200);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") {
      event.preventDefault();
      table.table.focus();
    }
  });

  function startSearch() {
    lastSearch = search.value;
    live.search(lastSearch);
    found = lastSearch ? (found ?? []) : null;
    setText(note, lastSearch ? "Searching…" : "");
    refresh();
    watch();
  }

  function accept(message) {
    if (!tree.accept(message)) {
      // A branch that is watched for the details only.
      if (selected !== null) {
        const entry = (message.entries ?? []).find((each) => each.topic === selected);
        if (entry) detail.update(entry);
      }
      return;
    }
    if (typeof message.total_topics === "number") {
      setText(totals, `${count(message.total_topics)} topics, ${count(message.messages)} messages`);
    }
    if (isFirst && message.branch === "") {
      isFirst = false;
      // A tree of a few closed branches says nothing: begin with the second level of a small one.
      const entries = message.entries ?? [];
      const small =
        entries.length <= 8
          ? entries.filter((each) => each.children > 0 && each.children <= 30)
          : [];
      if (tree.isFresh) small.forEach((each) => tree.open(TopicTree.branchOf(each)));
    }
    if (!found) refresh();
    const entry = selected === null ? undefined : tree.find(selected);
    if (!entry) return;
    detail.update(entry);
    if (awaited === selected && !found) table.activateKey(`topic ${selected}`);
    awaited = null;
  }

  const ends = [
    live.on("topics", accept),
    live.on("found", (message) => {
      if (message.search !== lastSearch || !lastSearch) return;
      found = message.entries ?? [];
      const more = message.more > 0 ? `, ${count(message.more)} more` : "";
      setText(note, `${count(found.length)} found${more}`);
      refresh();
      const entry = found.find((each) => each.topic === selected);
      if (entry) detail.update(entry);
    }),
    live.on("hello", () => {
      tree.forget();
      refresh();
    }),
    live.on("error", (message) => message.about === "topics" && setText(note, message.text ?? "")),
    live.on("visible", (isVisible) => isVisible && refresh()),
  ];
  // Ages grow although nothing arrives.
  const clock = setInterval(
    () => document.hidden || live.state !== "live" || table.refresh(),
    1000,
  );

  if (lastSearch) startSearch();
  if (selected !== null) {
    tree.reveal(selected);
    split.classList.add("with-detail");
    detail.show(selected, entryOf(selected));
  }
  refresh();
  watch();
  return {
    close() {
      ends.forEach((end) => end());
      clearInterval(clock);
      clearTimeout(typing);
      live.watch([]);
      live.search("");
      table.destroy();
      detail.destroy();
    },
    setArgument(topic) {
      if ((topic || null) !== selected) select(topic || null);
    },
  };
}
