// Pieces that several pages use.

import { bothZones, counted, moment, relative, sentence, timeOfDay, utc } from "./format.js";
import { h, render } from "./dom.js";
import { badge, mark } from "./icons.js";
import { name, visible } from "./text.js";
import { address } from "./router.js";
import { endpoint } from "./words.js";

/** A heading of the page, which gets the focus when the page opens. */
export function pageHead(title, ...beside) {
  return h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, title), beside);
}

/** A part of the page with a heading. */
export function section(title, { key, aside, class: extra = "" }, ...children) {
  const id = `section-${key}`;
  return h("section", { key, class: `panel ${extra}`, "aria-labelledby": id },
    h("div", { class: "panel-head" }, h("h2", { id }, title), aside),
    children);
}

/** A moment as a distance from now, with the exact one as its title. */
export function ago(ms) {
  return h("time", { datetime: utc(ms), title: bothZones(ms) }, relative(ms));
}

/** A moment: the time of day, and how far it is from now. */
export function when(ms) {
  return h("time", { class: "when", datetime: utc(ms), title: bothZones(ms) },
    h("span", null, timeOfDay(ms)), " ", h("small", null, relative(ms)));
}

/** A moment in full, with UTC beside it. */
export function fullMoment(ms) {
  const inUtc = utc(ms);
  const here = moment(ms);
  const differs = !inUtc.startsWith(here.replace(" ", "T"));
  return h("time", { class: "full-moment", datetime: inUtc },
    h("span", null, here), differs && [" ", h("small", null, inUtc)], " ", h("strong", null, relative(ms)));
}

/**
 * A table. `columns` have `title`, and if need be `class`, `hidden` (the title is for screen readers only). `rows` have
 * `key` and `cells`; the cell of the column `head` heads the row.
 */
export function table({ caption, columns, rows, head = 0, class: extra = "" }) {
  return h("div", { class: "table-frame", tabindex: "0", role: "group", "aria-label": caption },
    h("table", { class: extra, role: "table" },
      h("caption", { class: "for-readers" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(({ title, class: c, hidden }) =>
        h("th", { scope: "col", role: "columnheader", class: c }, hidden ? h("span", { class: "for-readers" }, title) : title)))),
      h("tbody", { role: "rowgroup" }, rows.map(({ key, cells, class: c }) =>
        h("tr", { key, class: c, role: "row" }, cells.map((cell, i) => tableCell(columns[i], cell, i === head)))))));
}

/** A cell. On narrow pages, where rows are cards, it shows the title of its column too. */
function tableCell({ title, hidden, class: c }, cell, isHead) {
  return isHead
    ? h("th", { scope: "row", role: "rowheader", class: c }, cell)
    : h("td", { role: "cell", class: c, "data-title": hidden || typeof title !== "string" ? null : title }, cell);
}

/** Pairs of a name and a value. Pairs without a value are left out. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== false);
  return h("dl", { class: "facts" }, shown.map(([title, value]) =>
    h("div", { key: title }, h("dt", null, title), h("dd", null, value))));
}

/** An input with its label. */
export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", { class: "field-label" }, label), input, hint && h("small", null, hint));
}

/** What a message can be looked for by, beside its route and its moments. */
export const CONDITIONS = ["id_prefix", "key", "header", "contains"];

/** Fields of these conditions. Only who may see bodies may search in them. */
export function conditionFields(params, maySeeBodies) {
  const input = (name, attrs = {}) => h("input", { name, value: params[name] ?? "", autocomplete: "off", spellcheck: "false", ...attrs });
  return [
    field("Id begins with", input("id_prefix", { maxlength: 256 })),
    field("Key", input("key")),
    field("Header", input("header", { placeholder: "name:value", pattern: "[^:]+:.*" })),
    maySeeBodies && field("Body contains", input("contains")),
  ];
}

/** A choice among routes. */
export function routeSelect({ routes, value, all, ...attrs }) {
  return h("select", { name: "route", ...attrs, value },
    all && h("option", { key: "", value: "" }, all),
    // The chosen one is an option even before the routes are known.
    [...new Set([...routes.map((route) => route.name), value].filter(Boolean))].map((route) =>
      h("option", { key: route, value: route }, route)));
}

/** A problem in the server's own words. */
export function problemBox(problem, act) {
  if (!problem) return null;
  const detail = sentence(problem.message);
  return h("div", { class: "problem", role: "alert" }, mark("bad"),
    h("div", null, h("strong", null, problem.title ?? "Error"), h("p", null, `${detail}.`.replace(/([.?!])\.$/, "$1")), act));
}

/** What a list says while it is empty. */
export function empty(title, ...advice) {
  return h("div", { class: "empty" }, h("p", null, h("strong", null, title)), advice);
}

/** A link to the page of a message. */
export function messageLink(route, id) {
  return h("a", { href: address(["messages", route, id]) }, name(id));
}

export function routeLink(route) {
  return h("a", { href: address(["routes", route]) }, route);
}

/** From where to where a route goes. */
export function way({ from, to }) {
  const [source, target] = [endpoint(from), endpoint(to)];
  return h("span", { class: "way", title: `${source.at} to ${target.at}` },
    h("bdi", null, visible(source.place)), h("span", { "aria-hidden": "true" }, " → "), h("span", { class: "for-readers" }, " to "),
    h("bdi", null, visible(target.place)));
}

/** Who paused a part of a route, when and why. */
export function pausedBy({ by, because, since_ms: since }) {
  return h("p", { class: "muted" }, "by ", h("bdi", null, visible(by)), since !== undefined && [" ", ago(since)], because && [": ", h("bdi", null, visible(because))]);
}

/** What of a route is paused. */
export function pauseMarks({ paused, publishing_paused }) {
  return [
    publishing_paused && badge("paused", "publishing paused"),
    paused.length > 0 && badge("paused", paused.includes("paused") ? "ingress paused" : "ingress waits"),
  ];
}

/** The links between pages of a list. */
export function pager({ segments, params, next, shown, noun, plural }) {
  return h("nav", { class: "pager", "aria-label": "Pages" },
    h("span", { class: "muted" }, `${counted(shown, noun, plural)} on this page`),
    params.cursor && h("a", { class: "button", href: address(segments, { ...params, cursor: null }) }, "First page"),
    next && h("a", { class: "button", href: address(segments, { ...params, cursor: next }) }, "Next page"));
}

/** Says how long a list is, to screen readers. */
export function announceList({ items, next }, noun, plural) {
  announce(`${counted(items.length, noun, plural)} shown${next ? ", more on the next page" : ""}`);
}

/** How a producer sends a message with a delay. */
export function delayExample() {
  return [
    h("p", null, "A producer sends one with a delay header to the topic or queue that a route reads:"),
    h("pre", null, "x-delay: 5m\nx-delay-id: order-7"),
    h("p", null, "Or try it: ", h("a", { href: "#/send" }, "send a test message"), "."),
  ];
}

/** A button that copies a text as it is, hidden characters too; nothing where the browser forbids it. */
export function copyButton(text, what) {
  if (!navigator.clipboard) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    toast("ok", `The ${what} is copied`);
  };
  return h("button", { type: "button", class: "quiet", onclick: copy }, `Copy ${what}`);
}

/** Tabs. `choose` is called with the key of the chosen one. */
export function tabs(label, choices, chosen, choose) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const at = choices.findIndex(([key]) => key === chosen);
    const [key] = choices[(at + step + choices.length) % choices.length];
    choose(key);
    event.currentTarget.querySelector(`[data-tab="${key}"]`).focus();
    event.preventDefault();
  };
  return h("div", { class: "tabs", role: "tablist", "aria-label": label, onkeydown: move }, choices.map(([key, title]) =>
    h("button", {
      key, type: "button", role: "tab", "data-tab": key,
      "aria-selected": String(key === chosen), tabindex: key === chosen ? "0" : "-1",
      onclick: () => choose(key),
    }, title)));
}

/** Says how far a long action is, with a button that sets `progress.isStopped`. */
export function progressLine(words, progress, redraw) {
  const stop = () => {
    progress.isStopped = true;
    redraw();
  };
  return h("p", { class: "progress", role: "status" }, `${words} … `,
    h("button", { type: "button", onclick: stop, disabled: progress.isStopped }, "Stop"));
}

/** Says something to screen readers only. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Shows a result for some seconds; screen readers hear it. */
export function toast(kind, text) {
  const node = document.createElement("div");
  node.className = `toast ${kind}`;
  render(node, mark(kind), h("span", null, text));
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), 7_000);
}

/**
 * Asks before something is done. `draw` returns what stands between the title and the buttons. Resolves with the data of
 * the form and the reason, `because`, if one was given; or with `null` if the answer is no.
 */
export function ask({ title, draw = () => [], action, isDangerous = false }) {
  return new Promise((resolve) => {
    const dialog = document.createElement("dialog");
    dialog.setAttribute("aria-labelledby", "dialog-title");
    const close = (answer) => {
      dialog.close();
      dialog.remove();
      resolve(answer);
    };
    const submit = (event) => {
      event.preventDefault();
      const given = Object.fromEntries(new FormData(event.currentTarget));
      close({ ...given, because: given.because.trim() || undefined });
    };
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); close(null); });
    render(dialog, h("form", { onsubmit: submit },
      h("h2", { id: "dialog-title" }, title),
      draw(),
      field("Why", h("input", { name: "because", maxlength: 125, placeholder: "may be left out", autocomplete: "off" }), "Kept with your name in the audit."),
      h("div", { class: "buttons" },
        h("button", { type: "button", onclick: () => close(null), autofocus: isDangerous }, "Back"),
        h("button", { type: "submit", class: isDangerous ? "danger" : "primary" }, action))));
    document.body.append(dialog);
    dialog.showModal();
  });
}
