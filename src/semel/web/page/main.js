// The frame of the page: session, routes, theme, banner. Each view is a module of its own.
//
// A view is a function open(root, context) that fills `root` and returns {close(), setArgument?}.
// The route is the URL's hash, #/topics/plant%2F1, so that reload, back and links work.

import { logout, session as askSession } from "./api.js";
import { openClients } from "./clients.js";
import { make, notice, setText } from "./dom.js";
import { forgetColors } from "./drawing.js";
import { Live } from "./live.js";
import { openLogin } from "./login.js";
import { Inbox, openMessages } from "./messages.js";
import { openNow } from "./now.js";
import { openTables } from "./tables.js";
import { openTopics } from "./topics.js";
import { openViolations } from "./violations.js";
import { duration, time } from "./text.js";

const VIEWS = {
  now: ["Now", openNow],
  topics: ["Topics", openTopics],
  clients: ["Clients", openClients],
  tables: ["Tables", openTables],
  violations: ["Violations", openViolations],
  messages: ["Messages", openMessages],
};
// Longer identifiers are legal, and would make a URL that some browsers refuse.
const LONGEST_ARGUMENT = 4096;

const byId = (id) => document.getElementById(id);
const live = new Live();
const inbox = new Inbox(live);
let session = null;
let view = null;
let route = null;

// --- theme ---

function storedTheme() {
  try {
    return localStorage.getItem("semel-theme");
  } catch {
    return null;
  }
}

function applyTheme(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  byId("theme").setAttribute("aria-pressed", String(isDark));
  forgetColors();
}

byId("theme").addEventListener("click", () => {
  const next = byId("theme").getAttribute("aria-pressed") === "true" ? "light" : "dark";
  try {
    localStorage.setItem("semel-theme", next);
  } catch {
    // Without storage the choice holds until the page is closed.
  }
  applyTheme(next);
});

// --- routes ---

function parseRoute() {
  const [, name = "", argument = ""] = location.hash.match(/^#\/([a-z]*)\/?(.*)$/s) ?? [];
  if (!(name in VIEWS)) return { name: "now", argument: "" };
  try {
    return { name, argument: decodeURIComponent(argument) };
  } catch {
    return { name, argument: "" };
  }
}

function setArgument(argument) {
  const isShort = argument !== null && argument.length <= LONGEST_ARGUMENT;
  const tail = isShort ? `/${encodeURIComponent(argument.toWellFormed())}` : "";
  const hash = `#/${route.name}${tail}`;
  if (location.hash !== hash && (argument === null || isShort)) {
    route.argument = argument ?? "";
    history.pushState(null, "", hash);
  }
}

function showRoute({ isFirst = false } = {}) {
  const next = parseRoute();
  if (view && route?.name === next.name && view.setArgument) {
    route = next;
    view.setArgument(next.argument);
    return;
  }
  view?.close();
  route = next;
  const [title, open] = VIEWS[next.name];
  document.title = `${title} · semel`;
  document.body.dataset.view = next.name;
  for (const link of byId("views").querySelectorAll("a")) {
    const isHere = link.hash === `#/${next.name}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const root = byId("view");
  const heading = make("h1", { tabindex: "-1", text: title, class: "for-screen-readers" });
  root.replaceChildren(heading);
  const isAdmin = session.role === "admin";
  view = open(root, { live, inbox, session, isAdmin, argument: next.argument, setArgument });
  window.scrollTo(0, 0);
  if (!isFirst) heading.focus({ preventScroll: true });
}

// The fragment of a URL is the route here, so that the link cannot be a plain one.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("view").focus();
});
window.addEventListener("hashchange", () => session && !isLoginShown() && showRoute());
window.addEventListener("popstate", () => session && !isLoginShown() && showRoute());

// --- session ---

const isLoginShown = () => document.body.dataset.view === "login";

function showLogin() {
  if (isLoginShown()) return;
  live.close();
  view?.close();
  document.body.dataset.view = "login";
  document.title = "Log in · semel";
  byId("view").replaceChildren(make("h1", { text: "semel", class: "login-title" }));
  view = openLogin(byId("view"), (answer) => {
    delete document.body.dataset.view;
    view = null;
    begin(answer);
  });
}

function showUser() {
  const isKnown = Boolean(session.user);
  byId("user-box").hidden = !isKnown;
  setText(byId("user-name"), isKnown ? `${session.user} (${session.role ?? "no role"})` : "");
  setText(byId("version"), session.version ? String(session.version) : "");
}

function begin(answer) {
  const isUpdated = session !== null && session.version !== answer.version;
  const isSame = session !== null && session.role === answer.role && session.user === answer.user;
  session = answer;
  if (session.needs_login && !session.role) {
    showLogin();
    return;
  }
  if (isUpdated) notice("semel was updated. Reload the page.");
  showUser();
  live.open();
  if (!view || !isSame) {
    const isFirst = view === null;
    view?.close();
    view = null;
    showRoute({ isFirst });
  }
}

async function start() {
  try {
    begin(await askSession());
  } catch (error) {
    // Nothing works without a session: try again by the same backoff as the WebSocket's.
    showBanner(error.message);
    setTimeout(start, 3000);
  }
}

byId("log-out").addEventListener("click", async () => {
  try {
    await logout();
  } finally {
    session = { ...session, role: null, user: null };
    showUser();
    showLogin();
  }
});
document.addEventListener("semel:login", () => session?.needs_login && showLogin());

// --- connection ---

function showBanner(sentence) {
  byId("banner").hidden = sentence === null;
  if (sentence !== null) setText(byId("banner-text"), sentence);
}

let countdown = 0;

function showState() {
  const { state } = live;
  document.body.dataset.live = state;
  setText(byId("state-text"), { live: "Live", lost: "Not live", connecting: "Connecting" }[state]);
  clearInterval(countdown);
  if (state !== "lost") {
    if (state === "live") showBanner(null);
    return;
  }
  const last = live.samples.at(-1)?.at;
  const figures = last ? ` What you see is of ${time(last)}.` : "";
  showBanner(`The connection to semel is lost.${figures}`);
  // The seconds are outside the live region: a screen reader should not count along.
  const tick = () => {
    const left = Math.max(0, (live.retryAt - Date.now()) / 1000);
    setText(
      byId("banner-wait"),
      left > 0.5 ? `Next attempt in ${duration(Math.round(left))}.` : "Connecting…",
    );
  };
  tick();
  countdown = setInterval(tick, 1000);
}

async function retry() {
  try {
    const answer = await askSession();
    // The session may have ended with the server: then there is a form, and no endless attempts.
    begin(answer);
  } catch {
    live.open();
  }
}

live.on("state", showState);
live.on("retry", retry);
live.on("error", (message) => message.about === "now" && notice(message.text ?? "", "error"));
byId("retry").addEventListener("click", retry);

applyTheme(storedTheme());
showState();
start();
