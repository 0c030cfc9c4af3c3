// One dead letter: why it is dead, its history, headers and body; redrive and drop.

import { get, path, query } from "../lib/api.js";
import { bodyView, bytesOfBase64, readBody } from "../lib/body.js";
import { failuresPanel, headersPanel, keyWords, positionWords, requestWords } from "../lib/content.js";
import { drop, redrive } from "../lib/dead_actions.js";
import { bytes, count } from "../lib/format.js";
import { h } from "../lib/dom.js";
import { badge } from "../lib/icons.js";
import { overview } from "../lib/live.js";
import { progressView } from "../lib/many.js";
import { address } from "../lib/router.js";
import { name, visible } from "../lib/text.js";
import { copyButton, facts, fullMoment, pageHead, problemBox, routeLink, section } from "../lib/widgets.js";
import { deadReason } from "../lib/words.js";

export function deadLetterPage(view) {
  const [, id] = view.segments;
  const state = { letter: null, problem: null, body: null, bodyMode: null, progress: {} };
  const load = async () => {
    state.problem = await view.run(async (signal) => {
      state.letter = await get(path("dead", id), signal);
    });
    if (state.problem?.status === 404) state.letter = null;
  };
  view.show(() => [
    pageHead(h("span", null, "Dead letter ", name(state.letter?.id ?? id)), copyButton(state.letter?.id ?? id, "id")),
    progressView(state.progress, () => view.redraw()),
    state.letter === null
      ? problemBox(state.problem, h("p", null, h("a", { href: "#/dead" }, "All dead letters"))) ?? h("p", { class: "muted" }, "Asking …")
      : letter(view, state, load),
  ]);
  view.redrawLive();
  load();
}

function letter(view, state, load) {
  const { letter: dead } = state;
  const { words, advice } = deadReason(dead.reason);
  const choice = { ids: [dead.dead_id], total: 1, words: "1 dead letter", routes: (overview()?.routes ?? []).filter(({ name }) => name === dead.route) };
  const run = (act) => () => act(view, choice, state.progress, load);
  return [
    h("div", { key: "status", class: "panel status-bar" },
      h("div", { class: "status-words" }, badge("bad", words), h("code", { class: "muted" }, dead.reason), h("span", null, "on ", routeLink(dead.route))),
      view.mayWrite && h("div", { class: "buttons" },
        h("button", { type: "button", onclick: run(redrive) }, "Redrive …"),
        h("button", { type: "button", class: "danger", onclick: run(drop) }, "Drop …"),
        !dead.left_out && h("a", { class: "button", href: address(["send"], { route: dead.route, dead: dead.dead_id }) }, "Send one like it …")),
      dead.error && h("p", { class: "error-words" }, visible(dead.error)),
      advice && h("p", { class: "muted" }, advice)),
    problemBox(state.problem),
    h("div", { class: "columns" },
      details(dead),
      h("div", { class: "stack" }, failuresPanel(dead.history), dead.headers && headersPanel(dead.headers))),
    content(view, state),
  ];
}

function details(dead) {
  return section("Details", { key: "details" }, facts([
    ["Dead since", fullMoment(dead.dead_at_ms)],
    ["Received", dead.received_ms !== undefined && fullMoment(dead.received_ms)],
    ["Asked", requestWords(dead)],
    ["Was due", dead.due_ms !== undefined && fullMoment(dead.due_ms)],
    ["Was wanted until", dead.expires_ms !== undefined && fullMoment(dead.expires_ms)],
    ["Attempts", dead.attempt !== undefined && count(dead.attempt)],
    ["Target", dead.target !== undefined && (dead.target === "" ? "the route's own" : name(dead.target))],
    ["Key", keyWords(dead)],
    ["Read at", positionWords(dead.position)],
    ["Body", dead.size !== undefined && `${bytes(dead.size)}${dead.left_out ? ", not kept" : ""}`],
    ["In the store", bytes(dead.stored_bytes)],
    ["Dead letter", name(dead.dead_id)],
  ]));
}

function content(view, state) {
  const { letter: dead } = state;
  if (dead.size === undefined || dead.left_out) return null;
  const choose = (mode) => {
    state.bodyMode = mode;
    view.redraw();
  };
  const show = async () => {
    state.problem = await view.run(async (signal) => {
      const { body, body_base64, size } = await get(path("dead", dead.dead_id) + query({ body: true }), signal);
      const all = body_base64 !== undefined ? bytesOfBase64(body_base64) : new TextEncoder().encode(body ?? "");
      state.body = readBody(all, size);
    });
  };
  return section("Body", { key: "body" }, state.body !== null
    ? bodyView(state.body, state.bodyMode, choose)
    : view.mayWrite ? h("p", null, h("button", { type: "button", onclick: show }, `Show the body (${bytes(dead.size)})`), h("span", { class: "hint" }, "Each look is noted in the audit."))
      : h("p", { class: "muted" }, "Bodies are shown to write tokens only."));
}
