// The log in form, shown instead of all views while the server wants to know who asks.

import { login } from "./api.js";
import { make } from "./dom.js";

export function openLogin(root, accepted) {
  const user = make("input", {
    id: "user",
    name: "user",
    autocomplete: "username",
    required: true,
    spellcheck: "false",
  });
  const password = make("input", {
    id: "password",
    name: "password",
    type: "password",
    autocomplete: "current-password",
    required: true,
  });
  const problem = make("p", { class: "problem", role: "alert" });
  const submit = make("button", { type: "submit", class: "primary", text: "Log in" });
  const form = make(
    "form",
    { class: "login panel", "aria-label": "Log in" },
    make("p", { class: "muted", text: "Use a user of the broker." }),
    make("div", { class: "field" }, make("label", { for: "user", text: "User" }), user),
    make("div", { class: "field" }, make("label", { for: "password", text: "Password" }), password),
    problem,
    submit,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    problem.textContent = "";
    try {
      accepted(await login(user.value, password.value));
    } catch (error) {
      problem.textContent = error.message;
      password.value = "";
      password.focus();
    } finally {
      submit.disabled = false;
    }
  });
  root.append(form);
  user.focus();
  return { close() {} };
}
