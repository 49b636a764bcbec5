// The tree of topics as far as it is open: which branches, their entries, and the rows they make.

const NATURAL = new Intl.Collator("en", { numeric: true });
// The server watches at most this many branches for one page.
const MOST_WATCHED = 50;

export class TopicTree {
  #branches = new Map();
  // In the order in which they were opened; the root is always open.
  #open = new Set([""]);
  #rows = null;

  /** Take a message of the server about one branch. Returns whether it was asked for. */
  accept(message) {
    const branch = message.branch ?? "";
    if (!this.#open.has(branch)) return false;
    const entries = Array.isArray(message.entries) ? message.entries : [];
    const before = this.#branches.get(branch);
    this.#branches.set(branch, {
      entries: inOrder(entries, before),
      more: message.more ?? 0,
      at: Date.now(),
    });
    this.#rows = null;
    return true;
  }

  /** What is below an entry: the prefix of all its topics. That of the root is "", that of an empty
   * first level is "/". */
  static branchOf(entry) {
    return entry.key ?? `${entry.topic}/`;
  }

  /** The branch that a topic is in. */
  static branchAbove(topic) {
    return topic.slice(0, topic.lastIndexOf("/") + 1);
  }

  isOpen(entry) {
    return this.#open.has(TopicTree.branchOf(entry));
  }

  open(branch) {
    this.#open.add(branch);
    this.#rows = null;
  }

  /** Whether nothing but the root was opened so far. */
  get isFresh() {
    return this.#open.size === 1;
  }

  /** Open the branches above a topic, so that it can be seen. */
  reveal(topic) {
    for (let at = topic.indexOf("/"); at >= 0; at = topic.indexOf("/", at + 1)) {
      this.open(topic.slice(0, at + 1));
    }
  }

  /** Close a branch and those below it, and forget what was in them. */
  close(branch) {
    for (const each of [...this.#open]) {
      if (each !== "" && each.startsWith(branch)) {
        this.#open.delete(each);
        this.#branches.delete(each);
      }
    }
    this.#rows = null;
  }

  closeAll() {
    const root = this.#branches.get("");
    this.#open = new Set([""]);
    this.#branches = new Map(root ? [["", root]] : []);
    this.#rows = null;
  }

  /** After a lost connection all that is known is old. */
  forget() {
    this.#branches.clear();
    this.#rows = null;
  }

  find(topic) {
    const branch = this.#branches.get(TopicTree.branchAbove(topic));
    return branch?.entries.find((entry) => entry.topic === topic);
  }

  /** Visible rows: {entry, depth, position, size} or {sentence, depth}. */
  rows() {
    if (!this.#rows) {
      this.#rows = [];
      this.#add("", 0);
    }
    return this.#rows;
  }

  #add(branch, depth) {
    const known = this.#branches.get(branch);
    if (!known) {
      this.#rows.push({ key: `wait ${branch}`, sentence: "Loading…", depth, branch });
      return;
    }
    known.entries.forEach((entry, index) => {
      const row = {
        key: `topic ${entry.topic}`,
        entry,
        depth,
        branch,
        position: index + 1,
        size: known.entries.length,
      };
      this.#rows.push(row);
      const below = TopicTree.branchOf(entry);
      if (entry.children > 0 && this.#open.has(below)) this.#add(below, depth + 1);
    });
    if (known.more > 0) {
      const sentence = `${known.more.toLocaleString("en-US")} more are not shown. Search for them.`;
      this.#rows.push({ key: `more ${branch}`, sentence, depth, branch });
    }
  }

  /** The branches to watch: those in sight, then the latest opened. */
  watched(first, last, also = null) {
    const wanted = new Set();
    if (also !== null) wanted.add(also);
    for (const row of this.rows().slice(first, last)) {
      wanted.add(row.branch);
      if (row.entry && this.isOpen(row.entry)) wanted.add(TopicTree.branchOf(row.entry));
    }
    for (const branch of [...this.#open].reverse()) wanted.add(branch);
    const list = [...wanted].slice(0, MOST_WATCHED).sort();
    this.lastWatched = new Set(list);
    return list;
  }

  /** Whether a row's figures are up to date. */
  isWatched(row) {
    return this.lastWatched?.has(row.branch) ?? true;
  }
}

/** Entries in natural order (press-2 before press-10). Sorted again only if levels have changed. */
function inOrder(entries, before) {
  if (before && before.entries.length === entries.length) {
    const places = new Map(before.entries.map((entry, index) => [entry.level, index]));
    if (entries.every((entry) => places.has(entry.level))) {
      const sorted = new Array(entries.length);
      for (const entry of entries) sorted[places.get(entry.level)] = entry;
      return sorted;
    }
  }
  return [...entries].sort((a, b) => NATURAL.compare(a.level, b.level));
}
