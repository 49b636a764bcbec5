// Clients: connected ones and sessions without a connection, in one table.

import { get, post } from "./api.js";
import {
  badge,
  button,
  confirm,
  copyButton,
  empty,
  foreign,
  icon,
  iconButton,
  make,
  notice,
  panel,
  setText,
} from "./dom.js";
import { plainTable } from "./plaintable.js";
import { shownOf, VirtualTable } from "./virtualtable.js";
import { bytes, count, counted, duration, isNumber, NONE, put } from "./text.js";

// Thousands of clients are some megabytes of JSON: not every second.
const INTERVAL = 5_000;

const COLUMNS = [
  { key: "client", title: "Client", isHeader: true, sortable: true },
  { key: "user", title: "User", width: "11%", sortable: true, priority: 2 },
  { key: "address", title: "Address", width: "13%", sortable: true, priority: 3 },
  { key: "version", title: "MQTT", width: "66px", sortable: true, priority: 3 },
  { key: "connected_seconds", title: "Connected", width: "104px", align: "right", sortable: true },
  {
    key: "silent_seconds",
    title: "Silent",
    width: "82px",
    align: "right",
    sortable: true,
    priority: 3,
  },
  {
    key: "messages_received",
    title: "In",
    width: "84px",
    align: "right",
    sortable: true,
    priority: 2,
  },
  {
    key: "messages_sent",
    title: "Out",
    width: "84px",
    align: "right",
    sortable: true,
    priority: 2,
  },
  {
    key: "bytes_received",
    title: "Bytes in",
    width: "88px",
    align: "right",
    sortable: true,
    priority: 4,
  },
  {
    key: "bytes_sent",
    title: "Bytes out",
    width: "92px",
    align: "right",
    sortable: true,
    priority: 4,
  },
  {
    key: "queued_messages",
    title: "Queued",
    width: "80px",
    align: "right",
    sortable: true,
    priority: 2,
  },
  {
    key: "inflight_messages",
    title: "In flight",
    width: "84px",
    align: "right",
    sortable: true,
    priority: 4,
  },
  {
    key: "subscriptions",
    title: "Subscr.",
    width: "80px",
    align: "right",
    sortable: true,
    priority: 3,
  },
];
const TEXTS = new Set(["client", "user", "address", "version"]);

const state = { filter: "", which: "all", sorted: "client", isDescending: false };

export function openClients(root, context) {
  let all = [];
  let selected = context.argument || null;
  let request = null;
  let timer = 0;
  let isFirst = true;

  const totals = make("span", { class: "muted", role: "status" });
  const filter = make("input", {
    type: "search",
    id: "client-filter",
    value: state.filter,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "client, user or address",
  });
  const which = make(
    "select",
    { id: "client-which", "aria-label": "Which clients" },
    make("option", { value: "all", text: "All" }),
    make("option", { value: "connected", text: "Connected" }),
    make("option", { value: "away", text: "Not connected" }),
    make("option", { value: "paused", text: "Paused or queued" }),
  );
  which.value = state.which;
  const table = new VirtualTable({
    label: "Clients",
    columns: COLUMNS,
    keyOf: (row) => row.client,
    fill: fillRow,
    rowHeight: 30,
    activate: (row) => select(row.client),
    sort(key) {
      const isSame = state.sorted === key;
      // Numbers are of interest from the largest down, names from A.
      state.isDescending = isSame ? !state.isDescending : !TEXTS.has(key);
      state.sorted = key;
      show();
    },
  });
  const detail = make("aside", { class: "detail panel", "aria-label": "Client" });
  detail.addEventListener("keydown", (event) => event.key === "Escape" && select(null));
  const tools = make(
    "div",
    { class: "tools" },
    make(
      "label",
      { class: "search", for: "client-filter" },
      icon("search"),
      make("span", { class: "for-screen-readers", text: "Filter clients" }),
      filter,
    ),
    which,
    totals,
  );
  const split = make(
    "div",
    { class: "split" },
    panel("Client list", { class: "fill", tools: [tools] }, table.element),
    detail,
  );
  root.append(split);
  filter.addEventListener("input", () => {
    state.filter = filter.value;
    show();
  });
  which.addEventListener("change", () => {
    state.which = which.value;
    show();
  });

  function fillRow(cells, row, line) {
    line.classList.toggle("selected", row.client === selected);
    line.classList.toggle("away", !row.isConnected);
    const [name] = cells;
    if (!name.parts) {
      name.parts = {
        lamp: make("i", { class: "lamp" }),
        text: make("bdi", { class: "foreign" }),
        state: make("span", { class: "for-screen-readers" }),
      };
      name.replaceChildren(name.parts.lamp, name.parts.text, name.parts.state);
    }
    name.parts.lamp.className = `lamp ${row.isConnected ? (row.paused ? "warn" : "ok") : "none"}`;
    put(name.parts.text, row.client, { limit: 200 });
    setText(name.parts.state, row.isConnected ? (row.paused ? ", paused" : "") : ", not connected");
    put(cells[1], row.user ?? NONE, { limit: 80 });
    put(cells[2], row.address ?? NONE, { limit: 80 });
    put(cells[3], row.version ?? NONE, { limit: 8 });
    setText(cells[4], row.isConnected ? duration(row.connected_seconds) : "away");
    setText(cells[5], row.isConnected ? duration(row.silent_seconds) : NONE);
    COLUMNS.slice(6).forEach(({ key }, index) => {
      const format = key.startsWith("bytes") ? bytes : count;
      setText(cells[index + 6], format(row[key]));
    });
  }

  function matches(row, needle) {
    if (state.which === "connected" && !row.isConnected) return false;
    if (state.which === "away" && row.isConnected) return false;
    if (state.which === "paused" && !row.paused && !(row.queued_messages > 0)) return false;
    if (!needle) return true;
    return [row.client, row.user, row.address].some((text) =>
      String(text ?? "")
        .toLowerCase()
        .includes(needle),
    );
  }

  function show() {
    const needle = state.filter.trim().toLowerCase();
    const rows = all.filter((row) => matches(row, needle));
    rows.sort(comparison(state.sorted, state.isDescending));
    table.markSorted(state.sorted, state.isDescending);
    table.update(rows);
    setText(totals, shownOf(rows.length, all.length, "clients"));
  }

  async function load() {
    clearTimeout(timer);
    request?.abort();
    request = new AbortController();
    if (!document.hidden && context.live.state === "live") {
      try {
        const answer = await get("clients", {}, request.signal);
        const connected = (answer.clients ?? []).map((row) => ({ ...row, isConnected: true }));
        all = [
          ...connected,
          ...(answer.sessions ?? []).map((row) => ({ ...row, isConnected: false })),
        ];
        show();
        if (isFirst && selected !== null) table.activateKey(selected);
        isFirst = false;
      } catch (error) {
        if (error.name === "AbortError") return;
        setText(totals, error.message);
      }
    }
    timer = setTimeout(load, INTERVAL);
  }

  async function select(client) {
    selected = client;
    context.setArgument(client);
    split.classList.toggle("with-detail", client !== null);
    table.refresh();
    if (client === null) {
      detail.replaceChildren();
      table.table.focus();
      return;
    }
    await loadDetail(client);
  }

  async function loadDetail(client) {
    const title = foreign(client, { tag: "h2", limit: 1000 });
    const head = make(
      "header",
      { class: "panel-head" },
      title,
      copyButton(() => client, "Copy the client identifier"),
      iconButton("close", "Close", () => select(null)),
    );
    detail.replaceChildren(head, empty("Loading…"));
    let answer;
    try {
      answer = await get("client", { client });
    } catch (error) {
      if (client === selected) detail.replaceChildren(head, empty(error.message));
      return;
    }
    if (client !== selected) return;
    detail.replaceChildren(
      head,
      ...detailOf(
        answer,
        all.find((row) => row.client === client),
      ),
    );
    const isConnected =
      answer.client &&
      answer.client.connected !== false &&
      isNumber(answer.client.connected_seconds);
    if (context.isAdmin && isConnected) {
      detail.append(
        make(
          "div",
          { class: "actions" },
          button("Disconnect…", () => disconnect(client), { class: "danger" }),
        ),
      );
    }
  }

  async function disconnect(client) {
    const question = [
      "The broker closes the connection of ",
      foreign(client, { tag: "b", limit: 80 }),
      ". Its session stays if it is durable. The client may connect again.",
    ];
    if (!(await confirm("Disconnect this client?", question, "Disconnect"))) return;
    try {
      await post("disconnect", { client });
      notice("The client was disconnected.");
      load();
      if (client === selected) loadDetail(client);
    } catch (error) {
      notice(error.message, "error");
    }
  }

  const ends = [
    context.live.on("visible", (isVisible) => isVisible && load()),
    context.live.on("state", (now) => now === "live" && load()),
  ];
  load();
  if (selected !== null) select(selected);
  return {
    close() {
      ends.forEach((end) => end());
      clearTimeout(timer);
      request?.abort();
      table.destroy();
    },
    setArgument(client) {
      if ((client || null) !== selected) select(client || null);
    },
  };
}

function comparison(key, isDescending) {
  const sign = isDescending ? -1 : 1;
  const order = new Intl.Collator("en", { numeric: true });
  return (a, b) => {
    const [x, y] = [a[key], b[key]];
    // What is not known comes last in either direction.
    if ((x ?? null) === null || (y ?? null) === null)
      return ((x ?? null) === null) - ((y ?? null) === null);
    if (TEXTS.has(key)) return sign * order.compare(x, y);
    return sign * (x - y) || order.compare(a.client, b.client);
  };
}

function fact(name, value, note = null) {
  const shown = make("dd", {}, value instanceof Node ? value : String(value));
  if (note) shown.append(" ", make("span", { class: "muted", text: note }));
  return [make("dt", { text: name }), shown];
}

function detailOf({ client, subscriptions }, row) {
  const known = { ...(row ?? {}), ...(client ?? {}) };
  const session = known.session ?? {};
  const isConnected = isNumber(known.connected_seconds);
  const states = [isConnected ? badge("connected", "ok") : badge("not connected")];
  const isDurable = session.durable ?? known.durable;
  if (isDurable !== undefined)
    states.push(badge(isDurable ? "durable session" : "session ends with the connection"));
  if (known.version) states.push(badge(`MQTT ${known.version}`));
  const groups = Array.isArray(known.groups) ? known.groups.join(", ") : known.groups;
  const expires = session.expires_seconds ?? known.expires_seconds;
  const facts = make(
    "dl",
    { class: "facts" },
    ...fact("User", foreign(known.user ?? NONE), known.proof ? `by ${known.proof}` : null),
    ...(groups ? fact("Groups", foreign(groups)) : []),
    ...fact(
      "Address",
      foreign(known.address ?? NONE),
      known.listener ? `listener ${known.listener}` : null,
    ),
    ...(known.certificate ? fact("Certificate", foreign(known.certificate)) : []),
    ...fact("Connected for", duration(known.connected_seconds)),
    ...fact(
      "Last packet",
      isNumber(known.silent_seconds) ? `${duration(known.silent_seconds)} ago` : NONE,
      isNumber(known.keep_alive) ? `keep alive ${duration(known.keep_alive)}` : null,
    ),
    ...fact("Received", counted(known.messages_received, "message"), bytes(known.bytes_received)),
    ...fact("Sent", counted(known.messages_sent, "message"), bytes(known.bytes_sent)),
    ...fact("Unsent", bytes(known.unsent_bytes)),
    ...fact(
      "Queued",
      counted(session.queued_messages ?? known.queued_messages, "message"),
      isNumber(session.queued_bytes ?? known.queued_bytes)
        ? bytes(session.queued_bytes ?? known.queued_bytes)
        : null,
    ),
    ...fact("In flight", counted(session.inflight_messages ?? known.inflight_messages, "message")),
    ...(isNumber(expires) ? fact("Session expires", `in ${duration(expires)}`) : []),
  );
  const parts = [make("div", { class: "badges" }, ...states)];
  if (known.paused) parts.push(make("p", { class: "problem" }, foreign(known.paused)));
  parts.push(facts, make("h3", { text: "Subscriptions" }), subscriptionTable(subscriptions ?? []));
  return parts;
}

function subscriptionTable(list) {
  if (!list.length) return empty("It has no subscriptions.");
  const rows = list.slice(0, 500).map((each) => {
    const options = [];
    if (each.no_local) options.push("no local");
    if (each.retain_as_published) options.push("retain as published");
    if ((each.identifier ?? null) !== null) options.push(`identifier ${each.identifier}`);
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, foreign(each.filter)),
      make("td", { text: String(each.qos ?? NONE) }),
      make("td", { class: "muted", text: options.join(", ") || NONE }),
    );
  });
  const more = list.length > 500 ? [empty(`${count(list.length - 500)} more are not shown.`)] : [];
  return make(
    "div",
    { class: "plain-box" },
    plainTable("Subscriptions", [["Filter"], ["QoS"], ["Options"]], rows),
    ...more,
  );
}
