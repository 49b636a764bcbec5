// Elements, icons and short-lived pieces of the page: notices and questions.
//
// There is no innerHTML anywhere. Strings become text nodes, so that no text of a device can
// become markup.

import { put } from "./text.js";

/** Make an element. `class`, `text`, `data` and `on` are ours; all else is an attribute. */
export function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "foreign") put(element, value);
    else if (name === "on")
      for (const [type, f] of Object.entries(value)) element.addEventListener(type, f);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** An element with foreign text: isolated, so that right-to-left letters move nothing else. */
export function foreign(text, options = {}) {
  const { tag = "bdi", limit = 300, ...rest } = options;
  const element = make(tag, { ...rest, class: `foreign ${rest.class ?? ""}`.trim() });
  return put(element, text, { limit });
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Drawn on a grid of 16, as strokes.
const ICONS = {
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  copy: "M5.5 5.5h8v8h-8zM3 10.5h-.5v-8h8V3",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3l3.7 3.7",
  play: "M4.5 2.8v10.4L13 8z",
  collapse: "M4 6.5 8 2.5l4 4M4 9.5l4 4 4-4M2 8h12",
  open: "M5.5 3.5 10.5 8l-5 4.5",
  download: "M8 2.5v7.5M4.8 7 8 10.2 11.2 7M3 13.5h10",
};

export function icon(name) {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: ICONS[name] }),
  );
}

export function button(label, onclick, options = {}) {
  const { icon: name, class: style = "", ...rest } = options;
  const children = name ? [icon(name), make("span", { text: label })] : [label];
  return make(
    "button",
    { type: "button", class: style, on: { click: onclick }, ...rest },
    ...children,
  );
}

export function iconButton(name, label, onclick, options = {}) {
  return make(
    "button",
    {
      type: "button",
      class: "icon-button",
      "aria-label": label,
      title: label,
      on: { click: onclick },
      ...options,
    },
    icon(name),
  );
}

/** A titled section: a landmark of its own, so that a screen reader can jump to it. */
export function panel(title, options = {}, ...children) {
  const { class: style = "", level = 2, tools = [] } = options;
  const id = `h-${(panel.next = (panel.next ?? 0) + 1)}`;
  const head = make(
    "header",
    { class: "panel-head" },
    make(`h${level}`, { id, text: title }),
    ...tools,
  );
  return make(
    "section",
    { class: `panel ${style}`.trim(), "aria-labelledby": id },
    head,
    ...children,
  );
}

export function badge(text, kind = "") {
  return make("span", { class: `badge ${kind}`.trim(), text });
}

export function empty(sentence) {
  return make("p", { class: "empty", text: sentence });
}

/** Show a sentence for some seconds. #notices is the page's only live region besides the banner. */
export function notice(sentence, kind = "info") {
  const item = make(
    "div",
    { class: `notice ${kind}` },
    foreign(sentence, { tag: "span", limit: 600 }),
  );
  item.append(iconButton("close", "Dismiss", () => item.remove()));
  const region = document.getElementById("notices");
  region.append(item);
  while (region.children.length > 4) region.firstChild.remove();
  setTimeout(() => item.remove(), kind === "error" ? 15_000 : 6_000);
}

/** Ask once. Resolves to true if the action was chosen; Escape and Cancel mean no. */
export function confirm(title, content, action) {
  const dialog = make("dialog", { class: "question", "aria-labelledby": "question-title" });
  return new Promise((resolve) => {
    const form = make(
      "div",
      {},
      make("h2", { id: "question-title", text: title }),
      make("p", {}, ...content),
      make(
        "div",
        { class: "actions" },
        button("Cancel", () => dialog.close(), { autofocus: true }),
        button(action, () => dialog.close("yes"), { class: "danger" }),
      ),
    );
    dialog.append(form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function copyButton(read, label = "Copy") {
  return iconButton("copy", label, async () => {
    try {
      await navigator.clipboard.writeText(read());
      notice("Copied.");
    } catch {
      notice("The browser did not permit copying.", "error");
    }
  });
}
