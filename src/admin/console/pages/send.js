// Send: a test message through a route's own ingress, followed to its end if that is wanted. It may begin as a copy of
// another one: of the message `like`, or of the dead letter `dead`.

import { Problem, get, path, post, query } from "../lib/api.js";
import { bytesOfBase64, editableText, readBody } from "../lib/body.js";
import { counted, lateness, momentOfInput, relative } from "../lib/format.js";
import { h } from "../lib/dom.js";
import { badge } from "../lib/icons.js";
import { overview } from "../lib/live.js";
import { nowMs } from "../lib/clock.js";
import { visible } from "../lib/text.js";
import { endpoint, readsSeveral } from "../lib/words.js";
import { announce, empty, facts, field, fullMoment, messageLink, pageHead, problemBox, routeSelect, section } from "../lib/widgets.js";

export function sendPage(view) {
  const state = { route: view.params.route ?? null, how: "delay", copy: {}, sent: null, problem: null, waitsSince: null, call: null, isStopped: false };
  view.show(() => {
    if (!view.mayWrite) return [pageHead("Send"), empty("This token may only read.", h("p", null, "Sending a message needs a write token."))];
    return [
      pageHead("Send a test message"),
      h("div", { class: "columns" }, form(view, state), result(state)),
    ];
  });
  view.redrawLive();
  const { like, dead } = view.params;
  if (view.mayWrite && (like ?? dead) !== undefined) startFrom(view, state);
}

/** Fills the form as the message is that it shall be like. */
async function startFrom(view, state) {
  state.problem = await view.run(async (signal) => {
    state.copy = copyOf(await originalOf(view.params, signal));
  });
}

/** A message or a dead letter, with the `size` of its body, and as bytes what the API shows of it. */
async function originalOf({ route, like, dead }, signal) {
  if (dead !== undefined) {
    const letter = await get(path("dead", dead) + query({ body: true }), signal);
    return { ...letter, bytes: letter.body_base64 !== undefined ? bytesOfBase64(letter.body_base64) : new TextEncoder().encode(letter.body ?? "") };
  }
  const message = await get(path("routes", route, "messages", like), signal);
  const { size, base64 } = await get(path("routes", route, "messages", like, "body"), signal);
  return { ...message, size, bytes: bytesOfBase64(base64) };
}

/**
 * What the form can hold of it. A key or a header that cannot be written there is left out, and so is a body that was cut.
 * A whole body that cannot be edited there is sent as it is: `body` is `null`.
 */
function copyOf({ key, key_is_base64: isBytes, headers = [], size, bytes }) {
  const written = headers.filter(isWritable);
  const isKeyLeftOut = isBytes || /[\r\n]/.test(key ?? "");
  const isCut = bytes.length < size;
  return {
    key: isKeyLeftOut ? undefined : key,
    isKeyLeftOut,
    headers: written.map(lineOf).join("\n"),
    leftOut: headers.length - written.length,
    body: isCut ? "" : editableText(readBody(bytes, bytes.length)),
    cutSize: isCut ? size : undefined,
    bytes,
  };
}

/** Reports whether the form gives this header back from its line. It has one header of a name. */
function isWritable(header, i, headers) {
  const isFirst = headers.findIndex(({ name }) => name === header.name) === i;
  return isFirst && headersOf(lineOf(header))?.[header.name] === header.value;
}

function lineOf({ name, value }) {
  return `${name}: ${value}`;
}

function form(view, state) {
  const { copy } = state;
  const routes = overview()?.routes ?? [];
  const chosen = routes.find(({ name }) => name === state.route) ?? routes[0];
  const change = (key) => (event) => {
    state[key] = event.currentTarget.value;
    view.redraw();
  };
  const submit = (event) => {
    event.preventDefault();
    send(view, state, new FormData(event.currentTarget));
  };
  return section("Message", { key: "form" },
    h("form", { class: "send-form", onsubmit: submit },
      field("Route", routeSelect({ routes, value: chosen?.name ?? "", onchange: change("route") }), chosen && "It takes the way of any other message, from the route's topic or queue on."),
      readsSeveral(chosen?.from) && field("Topic", h("input", { name: "topic", required: true, maxlength: 249, autocomplete: "off", spellcheck: "false" }), `one of ${endpoint(chosen.from).place}`),
      h("div", { class: "row" },
        field("Due", h("select", { name: "how", value: state.how, onchange: change("how") }, h("option", { value: "delay" }, "after a delay"), h("option", { value: "at" }, "at a moment"))),
        state.how === "delay"
          ? field("Delay", h("input", { key: "delay", name: "delay", value: "10s", required: true, size: 12, spellcheck: "false" }), "10s, 2h30m, PT1.5S, or milliseconds")
          : field("Moment", h("input", { key: "at", type: "datetime-local", step: 1, name: "at", required: true }))),
      h("div", { class: "row" },
        field("Id", h("input", { name: "id", maxlength: 256, autocomplete: "off", spellcheck: "false", placeholder: "a fresh one" })),
        chosen?.from.kafka !== undefined && field("Key", h("input", { name: "key", value: copy.key ?? "", autocomplete: "off", spellcheck: "false" }),
          copy.isKeyLeftOut && "The key of the original cannot be written here")),
      field("Headers", h("textarea", { name: "headers", value: copy.headers ?? "", rows: 3, class: "short", spellcheck: "false", placeholder: "name: value, one a line" }),
        copy.leftOut > 0 && `${counted(copy.leftOut, "header")} of the original cannot be written here`),
      copy.body === null
        ? h("p", { class: "muted" }, `The body of the original, ${counted(copy.bytes.length, "byte")}, is sent as it is.`)
        : field("Body", h("textarea", { name: "body", value: copy.body ?? "", rows: 5, spellcheck: "false" }),
          copy.cutSize !== undefined && `The body of the original is too large to be copied here (${counted(copy.cutSize, "byte")})`),
      h("label", { class: "check-label" }, h("input", { type: "checkbox", name: "wait", checked: true }), " Follow it to its end"),
      h("div", { class: "buttons" },
        h("button", { type: "submit", class: "primary", disabled: state.call !== null || routes.length === 0 }, "Send"))));
}

async function send(view, state, given) {
  // A second click would send a second message.
  if (state.call !== null) return;
  const text = (name) => given.get(name) || undefined;
  const isDelay = given.get("how") === "delay";
  const delay = text("delay")?.trim();
  const request = {
    delay: isDelay ? (/^\d+$/.test(delay) ? Number(delay) : delay) : undefined,
    at: isDelay ? undefined : momentOfInput(given.get("at")) ?? undefined,
    id: text("id"), topic: text("topic"), key: text("key"), body: text("body"),
    body_base64: state.copy.body === null ? base64(state.copy.bytes) : undefined,
    headers: headersOf(given.get("headers")),
    wait: given.has("wait"),
  };
  state.call = new AbortController();
  Object.assign(state, { sent: null, problem: null, isStopped: false, waitsSince: request.wait ? nowMs() : null });
  view.redraw();
  state.problem = await view.run(async (signal) => {
    if (request.headers === null) throw new Problem({ title: "Headers", detail: "write each header as `name: value`, one a line" }, 0);
    state.sent = await post(path("routes", given.get("route"), "messages"), request, AbortSignal.any([signal, state.call.signal]));
    announce(state.sent.result ? `The message is ${state.sent.result}` : "The message is sent");
  });
  state.call = null;
  view.redraw();
}

function base64(bytes) {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

/** The headers of the lines `name: value`; `null` if a line is none. */
function headersOf(text) {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  const pairs = lines.map((line) => /^([^:]+):\s?(.*)$/.exec(line));
  return pairs.includes(null) ? null : Object.fromEntries(pairs.map(([, name, value]) => [name.trim(), value]));
}

function result(state) {
  const { sent, problem, call, waitsSince, isStopped } = state;
  const stop = () => {
    state.isStopped = true;
    call.abort();
  };
  const shown = call !== null ? [
    h("p", { role: "status" }, badge("busy", waitsSince === null ? "sending" : "sent, and followed until its target confirms it")),
    waitsSince !== null && h("p", { class: "muted" }, "begun ", relative(waitsSince)),
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: stop }, "Stop following")),
  ] : problem ? [
    problemBox(problem),
    problem.reason && h("p", { class: "muted" }, "Reason: ", h("code", null, problem.reason)),
    problem.id && h("p", null, "Its id: ", h("bdi", null, visible(problem.id))),
  ] : sent ? end(sent)
    : isStopped ? empty("It may have been sent; it is no longer followed.")
      : empty("Nothing is sent yet.", h("p", null, "A followed message shows when its target confirmed it, and how late. Messages due within an hour can be followed."));
  return section("Result", { key: "result" }, h("div", { class: "stack", "aria-live": "polite" }, shown));
}

function end(sent) {
  const states = { published: badge("ok", "published, and confirmed by its target"), dead: badge("bad", "dead letter, or dropped by the route's policy") };
  return [
    h("p", null, states[sent.result] ?? badge("idle", "confirmed by the broker in the route's ingress")),
    facts([
      ["Message", messageLink(sent.route, sent.id)],
      ["Late", sent.lateness_ms !== undefined && h("strong", null, lateness(sent.lateness_ms))],
      ["Was due", sent.due_ms !== undefined && fullMoment(sent.due_ms)],
      ["Published", sent.published_at_ms !== undefined && fullMoment(sent.published_at_ms)],
      ["Attempt", sent.attempt],
      ["Reason", sent.reason && h("code", null, sent.reason)],
    ]),
  ];
}
