// Login: asks for a token, which stays in this tab.

import { token } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { field, pageHead, problemBox } from "../lib/widgets.js";

export function loginPage(view, { problem, logIn }) {
  const wasRefused = token() !== null && problem?.status !== 0;
  const submit = (event) => {
    event.preventDefault();
    const given = new FormData(event.currentTarget).get("token").trim();
    if (given !== "") logIn(given);
  };
  view.show(() => h("div", { class: "login panel" },
    pageHead("Log in"),
    problem?.status !== 401 && problemBox(problem),
    wasRefused && h("p", { class: "problem", role: "alert" }, "This token is not valid, or not any more."),
    h("form", { onsubmit: submit },
      field("Token", h("input", { type: "password", name: "token", autocomplete: "current-password", required: true, ref: focusSoon })),
      h("p", { class: "muted" }, "One of admin.read_tokens or admin.write_tokens. It is kept in this tab only, until the tab is closed."),
      h("button", { type: "submit", class: "primary" }, "Log in"))));
}

function focusSoon(input) {
  requestAnimationFrame(() => input.focus());
}
