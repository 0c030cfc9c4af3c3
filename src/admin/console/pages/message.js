// One message: its state, its moments, its failures, its content, and what can be done with it.

import { command, get, getTagged, path } from "../lib/api.js";
import { bodyView, bytesOfBase64, editableText, readBody } from "../lib/body.js";
import { nowMs } from "../lib/clock.js";
import { eventDetails, failuresPanel, headersPanel, keyWords, positionWords, requestWords } from "../lib/content.js";
import { bytes, count, counted, momentOfInput, sentence, span } from "../lib/format.js";
import { h } from "../lib/dom.js";
import { badge } from "../lib/icons.js";
import { unitSelect } from "../lib/message_actions.js";
import { address } from "../lib/router.js";
import { name } from "../lib/text.js";
import { ask, copyButton, facts, field, fullMoment, messageLink, pageHead, problemBox, routeLink, section, table, toast, when } from "../lib/widgets.js";
import { eventWord, messageState } from "../lib/words.js";

/** Time between two looks at the message. */
const REFRESH_MS = 3_000;

export function messagePage(view) {
  const [, route, id] = view.segments;
  const state = { message: null, tag: null, problem: null, body: null, isBodyOld: false, bodyMode: null, bodyProblem: null };
  const { refresh, load } = view.looks(async () => {
    state.problem = await view.run(async (signal) => {
      Object.assign(state, await getTagged(path("routes", route, "messages", id), signal));
    });
    if (state.problem?.status === 404) state.message = null;
    if (state.body !== null && state.body.tag !== state.tag) Object.assign(state, { body: null, isBodyOld: true });
  });
  view.show(() => [
    pageHead(h("span", null, "Message ", name(id)), copyButton(id, "id")),
    state.message === null ? missing(state.problem, route) : [
      problemBox(state.problem),
      status(view, state, load),
      trail(state.message),
      h("div", { class: "columns" },
        h("div", { class: "stack" },
          state.message.asked_ms !== undefined && moments(state.message),
          state.message.attempt !== undefined && details(state.message)),
        h("div", { class: "stack" }, failuresPanel(state.message.history), state.message.headers && headersPanel(state.message.headers))),
      isStored(state.message) && content(view, state),
    ],
  ]);
  view.redrawLive();
  view.every(REFRESH_MS, refresh);
  refresh();
}

/** Reports whether the store has the message. Of one that is gone only a trail is left. */
function isStored({ state }) {
  return state === "pending" || state === "in_flight" || state === "published";
}

function missing(problem, route) {
  if (problem === null) return h("p", { class: "muted" }, "Asking …");
  const near = problem.nearest && h("p", null, "Nearest that waits: ", messageLink(route, problem.nearest));
  return [
    problemBox(problem, near),
    problem.status === 404 && h("p", { class: "muted" },
      "What was cancelled or moved through the API is in the ", h("a", { href: "#/audit" }, "audit"),
      "; what failed for good is among the ", h("a", { href: address(["dead"], { route }) }, "dead letters"), "."),
  ];
}

function status(view, state, load) {
  const { message } = state;
  const { word, badge: kind } = messageState(message);
  const waits = message.state === "pending";
  const act = (run) => () => run(view, state, load);
  return h("div", { key: "status", class: "panel status-bar" },
    h("div", { class: "status-words" }, badge(kind, word), h("span", null, " on ", routeLink(message.route)),
      message.dead_id && h("a", { href: address(["dead", message.dead_id]) }, "Open the dead letter")),
    view.mayWrite && isStored(message) && h("div", { class: "buttons" },
      waits && [
        h("button", { type: "button", onclick: act(publishNow) }, "Publish now"),
        h("button", { type: "button", onclick: act(reschedule) }, "Reschedule …"),
        h("button", { type: "button", onclick: act(replaceBody) }, "Replace the body …"),
        h("button", { type: "button", class: "danger", onclick: act(cancel) }, "Cancel message …"),
      ],
      h("a", { class: "button", href: address(["send"], { route: message.route, like: message.id }) }, "Send one like it …")));
}

function moments(message) {
  const lateMs = nowMs() - message.asked_ms;
  const isMoved = message.due_ms !== message.asked_ms;
  return section("When", { key: "when" }, facts([
    ["Received", message.received_ms !== undefined && fullMoment(message.received_ms)],
    ["Asked", requestWords(message)],
    [isMoved ? "First due" : "Due", message.asked_ms !== undefined && fullMoment(message.asked_ms)],
    [message.failures > 0 ? "Next try" : "Due", isMoved && message.due_ms !== undefined && fullMoment(message.due_ms)],
    ["Wanted until", message.expires_ms !== undefined && fullMoment(message.expires_ms)],
    ["Late so far", isStored(message) && message.state !== "published" && lateMs >= 1_000 && h("span", { class: "alarm" }, span(lateMs))],
    ["Why", message.why && sentence(message.why)],
  ]));
}

function details(message) {
  return section("Details", { key: "details" }, facts([
    ["Given back", message.given_back !== undefined && counted(message.given_back, "time")],
    ["Attempt", message.attempt !== undefined && `${count(message.attempt)}${message.failures > 0 ? ` after ${counted(message.failures, "failure")}` : ""}`],
    ["Target", message.target && name(message.target)],
    ["Key", keyWords(message)],
    ["Body", message.size !== undefined && bytes(message.size)],
    ["Read at", positionWords(message.position)],
  ]));
}

/** What happened to a message, newest first. */
function trail({ trail: events }) {
  if (!events?.length) return null;
  const columns = [{ title: "When", class: "time" }, { title: "Event" }, { title: "Details", class: "words" }];
  const rows = [...events].reverse().map((event, i) => ({
    key: `${event.at_ms} ${i}`,
    cells: [when(event.at_ms), eventWord(event.event), eventDetails(event)],
  }));
  return section("Trail", { key: "trail", aside: h("span", { class: "muted" }, "newest first") }, table({ caption: "What happened to the message, newest first", columns, rows, class: "cards" }));
}

function content(view, state) {
  const choose = (mode) => {
    state.bodyMode = mode;
    view.redraw();
  };
  const load = async () => {
    // Known before the body was asked for: the body is not older than this tag says.
    const { message: { route, id }, tag } = state;
    state.bodyProblem = await view.run(async (signal) => {
      const { size, base64 } = await get(path("routes", route, "messages", id, "body"), signal);
      Object.assign(state, { body: { ...readBody(bytesOfBase64(base64), size), tag }, isBodyOld: false });
    });
  };
  return section("Body", { key: "body" },
    problemBox(state.bodyProblem),
    state.isBodyOld && h("p", { class: "muted", role: "status" }, "The message has changed since its body was shown."),
    state.body !== null ? bodyView(state.body, state.bodyMode, choose)
      : view.mayWrite ? h("p", null, h("button", { type: "button", onclick: load }, `Show the body (${bytes(state.message.size)})`), h("span", { class: "hint" }, "Each look is noted in the audit."))
        : h("p", { class: "muted" }, "Bodies are shown to write tokens only."));
}

function target({ route, id }) {
  return path("routes", route, "messages", id);
}

async function publishNow(view, state, load) {
  const { message, tag } = state;
  const given = await ask({ title: "Publish it now?", draw: () => h("p", null, "It becomes due at once and leaves with the next round."), action: "Publish now" });
  if (given === null) return;
  const { because } = given;
  await finish(view, load, () => command("PATCH", target(message), tag, { body: { delay: 0 }, because }), "It is due now");
}

async function reschedule(view, state, load) {
  const { message, tag } = state;
  const given = await ask({ title: "Reschedule", draw: moveFields, action: "Reschedule" });
  if (given === null) return;
  const at = momentOfInput(given.at);
  const body = given.how === "at" ? { due_ms: at } : { delay: `${Number(given.amount)}${given.unit}` };
  if (given.how === "at" && at === null) return toast("bad", "Give a moment");
  await finish(view, load, () => command("PATCH", target(message), tag, { body, because: given.because }), "It has its new due time");
}

function moveFields() {
  const pick = (how) => (event) => {
    event.currentTarget.form.elements.how.value = how;
  };
  return [
    h("fieldset", { class: "choices" }, h("legend", null, "New due time"),
      h("label", null, h("input", { type: "radio", name: "how", value: "after", checked: true }), "from now, after"),
      h("div", { class: "row" },
        h("input", { type: "number", name: "amount", min: 0, step: 1, value: "5", "aria-label": "Amount", onfocus: pick("after") }),
        unitSelect("m", { onfocus: pick("after") })),
      h("label", null, h("input", { type: "radio", name: "how", value: "at" }), "at a moment"),
      h("input", { type: "datetime-local", name: "at", step: 1, "aria-label": "Moment", onfocus: pick("at") })),
  ];
}

/**
 * The body that is there is shown for editing where it is text that was loaded whole. What is made from it takes its place
 * alone: it is sent with the tag of that body, not with a later one.
 */
async function replaceBody(view, state, load) {
  const { message, body } = state;
  const { tag } = body ?? state;
  const text = body && editableText(body);
  const hint = body === null ? "To begin with the text that is there, show the body first." : "What is there cannot be edited here.";
  const draw = () => [
    h("p", null, "The message gets this body. Its headers, its key, its target and its due time stay."),
    field("Body", h("textarea", { name: "body", rows: 10, value: text ?? "", spellcheck: "false" }),
      text === null && message.size > 0 && hint),
  ];
  const given = await ask({ title: "Replace the body", draw, action: "Replace the body" });
  if (given === null) return;
  Object.assign(state, { body: null, isBodyOld: false });
  await finish(view, load, () => command("PUT", target(message), tag, { body: { body: given.body }, because: given.because }), "It has its new body");
}

async function cancel(view, state, load) {
  const { message, tag } = state;
  const draw = () => h("p", null, "The message ", name(message.id), " of ", message.route, " will not be published. This cannot be undone.");
  const given = await ask({ title: "Cancel this message?", draw, action: "Cancel message", isDangerous: true });
  if (given === null) return;
  const { because } = given;
  await finish(view, load, () => command("DELETE", target(message), tag, { because }), "It is cancelled and will not be published");
}

async function finish(view, load, run, done) {
  const problem = await view.run(run);
  // The next action must know the message as this one has left it.
  await load();
  if (problem) toast("bad", problem.message);
  else toast("ok", done);
}
