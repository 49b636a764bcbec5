// Messages: publish from the page, and watch what arrives at its own subscriptions.

import { badge, button, empty, foreign, iconButton, make, notice, panel, setText } from "./dom.js";
import { PayloadView, putSummary } from "./payload.js";
import { VirtualTable } from "./virtualtable.js";
import { count, counted, NONE, preciseTime, put } from "./text.js";

const MOST_MESSAGES = 500;

const COLUMNS = [
  { key: "at", title: "Received", width: "122px", priority: 2 },
  { key: "topic", title: "Topic", width: "36%", isHeader: true },
  { key: "value", title: "Payload" },
  { key: "qos", title: "QoS", width: "56px", align: "right" },
];

/** Subscriptions and messages of this page. They stay while other views are shown. */
export class Inbox {
  messages = [];
  filters = new Map();
  received = 0;
  skipped = 0;
  #next = 1;
  #waiting = new Map();
  changed = () => {};

  constructor(live) {
    this.live = live;
    live.on("message", (message) => {
      this.received += 1;
      this.messages.unshift({ ...message, number: this.received });
      if (this.messages.length > MOST_MESSAGES) this.messages.length = MOST_MESSAGES;
      this.changed();
    });
    live.on("skipped", (message) => {
      this.skipped += message.count ?? 0;
      this.changed();
    });
    live.on("subscribed", (message) => {
      this.filters.set(message.filter, { qos: message.qos, isConfirmed: true });
      this.changed();
    });
    live.on("unsubscribed", (message) => {
      this.filters.delete(message.filter);
      this.changed();
    });
    live.on("published", (message) => this.#published(message.id));
    live.on("error", (message) => this.#failed(message));
    live.on("state", (state) => {
      for (const each of this.filters.values()) each.isConfirmed = false;
      if (state === "lost") this.#losePublished();
      this.changed();
    });
  }

  #published(id) {
    this.#waiting.delete(id);
    notice("Published.", "ok");
  }

  #failed(message) {
    const { about } = message;
    if (about !== "publish" && about !== "subscribe") return;
    if (message.id !== undefined) this.#waiting.delete(message.id);
    if (about === "subscribe") {
      // The error does not name the filter: whatever was not confirmed was refused.
      for (const [filter, each] of this.filters) {
        if (message.filter !== undefined ? filter !== message.filter : each.isConfirmed) continue;
        this.filters.delete(filter);
        this.live.forget(filter);
      }
      this.changed();
    }
    notice(message.text ?? "The server refused the request.", "error");
  }

  #losePublished() {
    if (this.#waiting.size)
      notice("The connection was lost before the message was acknowledged.", "error");
    this.#waiting.clear();
  }

  subscribe(filter, qos) {
    if (this.filters.has(filter)) return;
    this.filters.set(filter, { qos, isConfirmed: false });
    this.live.subscribe(filter, qos);
    this.changed();
  }

  unsubscribe(filter) {
    this.live.unsubscribe(filter);
    this.filters.delete(filter);
    this.changed();
  }

  publish(message) {
    const id = this.#next;
    this.#next += 1;
    if (this.live.send({ publish: { id, ...message } })) this.#waiting.set(id, message);
    else notice("There is no connection to the server. Nothing was published.", "error");
  }

  clear() {
    this.messages = [];
    this.received = 0;
    this.skipped = 0;
    this.changed();
  }
}

function choice(name, label, options, value) {
  const select = make(
    "select",
    { id: name },
    ...options.map(([each, text]) => make("option", { value: each, text })),
  );
  select.value = value;
  return [
    make("div", { class: "field" }, make("label", { for: name, text: label }), select),
    select,
  ];
}

const QOS = [
  ["0", "0, at most once"],
  ["1", "1, at least once"],
  ["2", "2, exactly once"],
];
const draft = { topic: "", payload: "", encoding: "text", qos: "1", retain: false };

export function openMessages(root, context) {
  const { inbox } = context;
  let isPaused = false;
  const filters = make("ul", { class: "filters", "aria-label": "Subscriptions of this page" });
  const status = make("span", { class: "muted" });
  const payload = new PayloadView();
  const shownTopic = make("h3", { class: "foreign" });
  const shownFacts = make("div", { class: "badges" });
  const opened = make(
    "div",
    { class: "opened-message", hidden: true },
    shownTopic,
    shownFacts,
    payload.element,
  );
  const table = new VirtualTable({
    label: "Messages",
    columns: COLUMNS,
    rowHeight: 28,
    keyOf: (message) => message.number,
    activate: open,
    fill(cells, message) {
      setText(cells[0], preciseTime(message.at));
      put(cells[1], message.topic, { limit: 200 });
      putSummary(cells[2], message.payload);
      setText(cells[3], `${message.qos ?? NONE}${message.retain ? " R" : ""}`);
    },
  });
  const pause = button(
    "Pause",
    () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      show();
    },
    { "aria-pressed": "false" },
  );

  const filter = make("input", {
    id: "filter",
    required: true,
    value: inbox.filters.size ? "" : "#",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "plant/+/temp",
  });
  const [qosField, qos] = choice("filter-qos", "QoS", QOS, "0");
  const form = make(
    "form",
    { class: "row-form" },
    make(
      "div",
      { class: "field grow" },
      make("label", { for: "filter", text: "Topic Filter" }),
      filter,
    ),
    qosField,
    make("button", { type: "submit", class: "primary", text: "Subscribe" }),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    inbox.subscribe(filter.value, Number(qos.value));
    filter.value = "";
  });

  const side = [];
  // Publishing changes what others receive: it is for administrators.
  if (context.isAdmin) side.push(publishPanel(inbox));
  root.append(
    make(
      "div",
      { class: `messages ${context.isAdmin ? "" : "single"}` },
      ...side,
      panel(
        "Subscribe",
        { class: "fill", tools: [status, pause, button("Clear", () => inbox.clear())] },
        form,
        filters,
        table.element,
        opened,
      ),
    ),
  );

  function open(message) {
    opened.hidden = false;
    put(shownTopic, message.topic, { limit: 1000 });
    const facts = [badge(preciseTime(message.at)), badge(`QoS ${message.qos ?? NONE}`)];
    if (message.retain) facts.push(badge("retain flag", "accent"));
    const by = badge("");
    facts.push(put(by, `filter ${message.filter ?? NONE}`, { limit: 80 }));
    for (const [name, value] of Object.entries(message.properties ?? {})) {
      const text = typeof value === "string" ? value : JSON.stringify(value);
      facts.push(put(badge(""), `${name}: ${text}`, { limit: 200 }));
    }
    shownFacts.replaceChildren(...facts);
    payload.update(message.payload);
  }

  function showFilters() {
    const key = JSON.stringify([...inbox.filters]);
    if (filters.dataset.key === key) return;
    filters.dataset.key = key;
    filters.replaceChildren(
      ...[...inbox.filters].map(([name, each]) => {
        const remove = iconButton("close", "Unsubscribe", () => inbox.unsubscribe(name));
        return make(
          "li",
          { class: each.isConfirmed ? "" : "waiting" },
          foreign(name, { limit: 120 }),
          make("span", {
            class: "muted",
            text: each.isConfirmed ? `\u00a0 QoS ${each.qos}` : "\u00a0 waiting…",
          }),
          remove,
        );
      }),
    );
    filters.hidden = inbox.filters.size === 0;
  }

  function show() {
    showFilters();
    const skipped = inbox.skipped
      ? `, ${count(inbox.skipped)} not shown (more than 100 per second)`
      : "";
    setText(status, `${counted(inbox.received, "message")}${skipped}${isPaused ? ", paused" : ""}`);
    if (!isPaused) table.update(inbox.messages.slice());
  }

  // Up to a hundred messages per second arrive: shown four times per second at most.
  let timer = 0;
  inbox.changed = () => {
    if (timer || document.hidden) return;
    timer = setTimeout(() => {
      timer = 0;
      show();
    }, 250);
  };
  const end = context.live.on("visible", (isVisible) => isVisible && show());
  show();
  return {
    close() {
      end();
      clearTimeout(timer);
      inbox.changed = () => {};
      table.destroy();
    },
  };
}

function publishPanel(inbox) {
  const topic = make("input", {
    id: "topic",
    required: true,
    value: draft.topic,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "plant/1/temp",
  });
  const payload = make("textarea", { id: "payload", rows: "7", spellcheck: "false" });
  payload.value = draft.payload;
  const [encodingField, encoding] = choice(
    "encoding",
    "Payload is",
    [
      ["text", "text"],
      ["hex", "hex"],
    ],
    draft.encoding,
  );
  const [qosField, qos] = choice("qos", "QoS", QOS, draft.qos);
  const retain = make("input", { type: "checkbox", id: "retain" });
  retain.checked = draft.retain;
  const form = make(
    "form",
    { class: "publish" },
    make("div", { class: "field" }, make("label", { for: "topic", text: "Topic Name" }), topic),
    make("div", { class: "field" }, make("label", { for: "payload", text: "Payload" }), payload),
    make(
      "div",
      { class: "row-form" },
      encodingField,
      qosField,
      make(
        "div",
        { class: "field check" },
        retain,
        make("label", { for: "retain", text: "Retain" }),
      ),
      make("button", { type: "submit", class: "primary", text: "Publish" }),
    ),
    make("p", {
      class: "muted note",
      text: "At QoS 1 and 2 the page reports success after the broker's acknowledgement.",
    }),
  );
  form.addEventListener("input", () => {
    Object.assign(draft, {
      topic: topic.value,
      payload: payload.value,
      encoding: encoding.value,
      qos: qos.value,
      retain: retain.checked,
    });
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (encoding.value === "hex" && !/^([0-9a-f]{2}\s*)*$/i.test(payload.value.trim())) {
      notice("The payload is not hex. Write two digits per byte, for example 0a ff.", "error");
      payload.focus();
      return;
    }
    const content = encoding.value === "hex" ? payload.value.replace(/\s/g, "") : payload.value;
    inbox.publish({
      topic: topic.value,
      payload: content,
      encoding: encoding.value,
      qos: Number(qos.value),
      retain: retain.checked,
    });
  });
  return panel("Publish", { class: "publish-panel" }, form);
}
