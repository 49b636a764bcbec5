// The WebSocket: one connection for all views, reopened with backoff when it is lost.
//
// What the page watches (branches, search, subscriptions) is kept here and repeated after each
// reconnect, so that no view has to know about connections. A hidden tab watches nothing.

const FIRST_DELAY = 500;
const LONGEST_DELAY = 15_000;
// One sample per second is promised. After this many milliseconds without one, the figures are old.
const SILENCE = 5_000;
const HISTORY = 300;

export class Live {
  #socket = null;
  #listeners = new Map();
  #delay = FIRST_DELAY;
  #timer = 0;
  #silence = 0;
  #branches = [];
  #search = "";
  #subscriptions = new Map();
  #isWanted = false;

  /** "connecting", "live" or "lost". */
  state = "connecting";
  /** The samples of the last five minutes, oldest first. */
  samples = [];
  /** When the next attempt is due, in milliseconds of Date.now(), or 0. */
  retryAt = 0;

  constructor() {
    document.addEventListener("visibilitychange", () => this.#sendWatched());
  }

  /** Call `f` for each message of a type. Returns a function that ends this. */
  on(type, f) {
    if (!this.#listeners.has(type)) this.#listeners.set(type, new Set());
    this.#listeners.get(type).add(f);
    return () => this.#listeners.get(type).delete(f);
  }

  #emit(type, message) {
    for (const f of this.#listeners.get(type) ?? []) f(message);
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    this.#emit("state", state);
  }

  open() {
    this.#isWanted = true;
    clearTimeout(this.#timer);
    this.retryAt = 0;
    if (this.#socket) return;
    const address = new URL("api/live", document.baseURI);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address);
    this.#socket = socket;
    socket.onopen = () => {
      this.#sendWatched();
      for (const [filter, qos] of this.#subscriptions) this.send({ subscribe: filter, qos });
    };
    socket.onmessage = (event) => this.#receive(event.data);
    socket.onclose = () => this.#lost(socket);
  }

  /** Close, and stay closed until `open` is called. */
  close() {
    this.#isWanted = false;
    clearTimeout(this.#timer);
    clearTimeout(this.#silence);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
    this.#become("connecting");
  }

  #lost(socket) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    clearTimeout(this.#silence);
    if (!this.#isWanted) return;
    // Half of the delay is random, so that many pages do not return in step.
    const delay = this.#delay * (0.5 + Math.random() / 2);
    this.#delay = Math.min(LONGEST_DELAY, this.#delay * 2);
    this.retryAt = Date.now() + delay;
    this.#timer = setTimeout(() => this.#emit("retry"), delay);
    this.#become("lost");
    this.#emit("lost");
  }

  #receive(data) {
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      return;
    }
    if (message === null || typeof message !== "object") return;
    if (message.type === "hello") {
      this.samples = Array.isArray(message.history) ? message.history.slice(-HISTORY) : [];
      this.#restartSilence();
    } else if (message.type === "now") {
      this.samples.push(message);
      if (this.samples.length > HISTORY) this.samples.shift();
      this.#restartSilence();
    }
    this.#emit(message.type, message);
  }

  #restartSilence() {
    this.#delay = FIRST_DELAY;
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => {
      // The connection may hang without an end: a new one finds out.
      const socket = this.#socket;
      if (!socket) return;
      this.#lost(socket);
      socket.close();
    }, SILENCE);
    this.#become("live");
  }

  /** Send, and return whether there was a connection to send on. */
  send(message) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  /** Replace the list of open branches. */
  watch(branches) {
    const list = branches.slice(0, 50);
    if (list.length === this.#branches.length && list.every((b, i) => b === this.#branches[i]))
      return;
    this.#branches = list;
    if (!document.hidden) this.send({ watch: "topics", branches: list });
  }

  search(text) {
    if (text === this.#search) return;
    this.#search = text;
    if (!document.hidden) this.send({ search: text });
  }

  #sendWatched() {
    const shown = !document.hidden;
    this.send({ watch: "topics", branches: shown ? this.#branches : [] });
    if (this.#search) this.send({ search: shown ? this.#search : "" });
    this.#emit("visible", shown);
  }

  subscribe(filter, qos) {
    this.#subscriptions.set(filter, qos);
    return this.send({ subscribe: filter, qos });
  }

  unsubscribe(filter) {
    this.#subscriptions.delete(filter);
    return this.send({ unsubscribe: filter });
  }

  /** Forget a subscription that the server refused, so that it is not repeated. */
  forget(filter) {
    this.#subscriptions.delete(filter);
  }
}
