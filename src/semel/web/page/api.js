// Requests to the server. Every failure becomes a Failure with one sentence for the user.

export class Failure extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

let csrf = "";

async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server does not answer. Check that semel is running.", 0);
  }
  if (answer.ok) return answer;
  let sentence = `The server answered with status ${answer.status}.`;
  try {
    const body = await answer.json();
    if (typeof body.error === "string" && body.error) sentence = body.error;
  } catch {
    // A proxy's page is no JSON: the status says enough.
  }
  if (answer.status === 401) document.dispatchEvent(new CustomEvent("semel:login"));
  throw new Failure(sentence, answer.status);
}

async function parsed(answer) {
  try {
    return await answer.json();
  } catch {
    throw new Failure("The server's answer is not JSON.", answer.status);
  }
}

export async function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(parameters).toString();
  return parsed(await request(`api/${path}${query ? `?${query}` : ""}`, { signal }));
}

function posting(body, signal) {
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": csrf };
  return { method: "POST", headers, body: JSON.stringify(body), signal };
}

export async function post(path, body = {}, signal = undefined) {
  return parsed(await request(`api/${path}`, posting(body, signal)));
}

/** Post, and let the browser save the answer as a file. */
export async function download(path, body, name) {
  const answer = await request(`api/${path}`, posting(body));
  const address = URL.createObjectURL(await answer.blob());
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function accept(session) {
  csrf = session.csrf ?? csrf;
  return session;
}

export async function session() {
  return accept(await get("session"));
}

export async function login(user, password) {
  return accept(await post("login", { user, password }));
}

export async function logout() {
  await post("logout");
}
