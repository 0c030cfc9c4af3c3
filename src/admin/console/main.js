// The frame around every page: navigation, what is live, who is logged in, and which page an address means.

import { get, path, setToken, whenUnauthorized } from "./lib/api.js";
import { nowMs } from "./lib/clock.js";
import { count, timeOfDay, zoneName } from "./lib/format.js";
import { h, render } from "./lib/dom.js";
import { mark } from "./lib/icons.js";
import { freshness, onLive, overview, startLive, stopLive } from "./lib/live.js";
import { address, go, location } from "./lib/router.js";
import { onSettings, setSetting, setting, showTheme } from "./lib/settings.js";
import { visibleText } from "./lib/text.js";
import { troubles } from "./lib/troubles.js";
import { View } from "./lib/view.js";
import { pageHead, empty } from "./lib/widgets.js";
import { auditPage } from "./pages/audit.js";
import { deadLetterPage } from "./pages/dead_letter.js";
import { deadPage } from "./pages/dead.js";
import { latelyPage } from "./pages/lately.js";
import { loginPage } from "./pages/login.js";
import { messagePage } from "./pages/message.js";
import { messagesPage } from "./pages/messages.js";
import { overviewPage } from "./pages/overview.js";
import { retriesPage } from "./pages/retries.js";
import { routePage } from "./pages/route.js";
import { sendPage } from "./pages/send.js";

/** Pages by the first segment of their address; a second one where more segments follow. */
const PAGES = {
  "": { title: "Overview", page: overviewPage },
  routes: { title: "Route", detail: routePage },
  messages: { title: "Messages", page: messagesPage, detail: messagePage },
  retries: { title: "Retries", page: retriesPage },
  lately: { title: "Lately", page: latelyPage },
  dead: { title: "Dead letters", page: deadPage, detail: deadLetterPage },
  send: { title: "Send", page: sendPage },
  audit: { title: "Audit", page: auditPage },
};

/** Links of the navigation. */
const LINKS = [
  { segment: "", title: "Overview" },
  { segment: "messages", title: "Messages" },
  { segment: "retries", title: "Retries" },
  { segment: "lately", title: "Lately" },
  { segment: "dead", title: "Dead letters", counted: (route) => route.dead },
  { segment: "send", title: "Send", writes: true },
  { segment: "audit", title: "Audit" },
];

const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };

/** Who the caller is; `null` until that is known, or while a token is needed. */
let session = null;
/** The page that is shown, and its address. */
let view = null;
let shownPath = null;
let title = "";
let main;
let header;
let footer;

function start() {
  showTheme();
  render(document.body,
    h("a", { class: "skip-link", href: "#main", onclick: skip }, "Skip to the content"),
    h("header", { class: "top", ref: (dom) => (header = dom) }),
    h("main", { id: "main", tabindex: "-1", ref: (dom) => (main = dom) }),
    h("footer", { class: "bottom", ref: (dom) => (footer = dom) }),
    h("div", { id: "announcer", class: "for-readers", role: "status", "aria-live": "polite" }),
    h("div", { id: "toasts", role: "status", "aria-live": "polite" }));
  window.addEventListener("hashchange", () => open(true));
  document.addEventListener("keydown", focusFind);
  whenUnauthorized(() => login());
  onSettings(() => { drawFrame(); view?.redraw(); });
  onLive(drawFrame);
  setInterval(drawFrame, 1_000);
  logIn();
}

/** Asks who the caller is, and opens the page of the address. Without a token where one is needed: the login. */
async function logIn(isNavigation = false) {
  try {
    session = await get(path("session"));
  } catch (problem) {
    if (problem.status !== 401) login(problem);
    return;
  }
  startLive();
  open(isNavigation);
}

function login(problem) {
  session = null;
  shownPath = null;
  stopLive();
  show("Log in", loginPage, { problem, logIn: (given) => { setToken(given); logIn(true); } });
}

function forgetToken() {
  setToken(null);
  login();
}

/** Opens the page that the address means. A change of the filters alone keeps the page and its focus. */
function open(isNavigation) {
  if (session === null) return;
  const { segments, params } = location();
  const known = PAGES[segments[0] ?? ""];
  const page = segments.length > 1 ? known?.detail : known?.page;
  const samePath = shownPath === segments.join("/");
  shownPath = segments.join("/");
  show(known?.title ?? "Not found", page ?? notFoundPage, { segments, params, keepsNodes: samePath });
  if (samePath) return;
  header.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  if (isNavigation) {
    window.scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

function show(name, page, { segments = [], params = {}, keepsNodes = false, ...given }) {
  view?.close();
  if (!keepsNodes) render(main);
  title = `${[name, ...segments.slice(1).reverse().map(visibleText)].join(" · ")} – Postdate`;
  view = new View(main, { segments, params, session });
  page(view, given);
  drawFrame();
}

function notFoundPage(view) {
  view.show(() => [pageHead("Not found"), empty("There is no page at this address.", h("p", null, h("a", { href: "#/" }, "Go to the overview")))]);
}

function skip(event) {
  event.preventDefault();
  main.focus();
}

/** The title, with the number of troubles in front, so that a tab in the background tells it too. */
function showTitle() {
  const now = session !== null && overview();
  const number = now ? troubles(now).length : 0;
  const shown = freshness().isStale ? `(?) ${title}` : number > 0 ? `(${number}) ${title}` : title;
  if (document.title !== shown) document.title = shown;
}

function drawFrame() {
  showTitle();
  render(header,
    h("a", { class: "brand", href: "#/" }, h("img", { src: "icon.svg", alt: "", width: 24, height: 24 }), "Postdate"),
    session !== null && h("nav", { "aria-label": "Pages of the console" }, h("ul", null,
      LINKS.filter(({ writes }) => !writes || session.role === "write").map(navLink))),
    session !== null && findBox(),
    session !== null && liveMark());
  render(footer,
    session !== null && h("span", null, "Postdate ", session.version, " · replica ", h("bdi", null, overview()?.replica ?? session.replica)),
    session?.tokens && h("span", null, session.who, " ", h("button", { type: "button", class: "quiet", onclick: forgetToken }, "Forget token")),
    session !== null && !session.tokens && h("span", null, "no token is configured"),
    h("span", { class: "grow" }),
    choice("Times", { local: zoneName() === "UTC" ? "Local" : zoneName(), utc: "UTC" }, "zone"),
    choice("Colours", THEMES, "theme"));
}

function navLink({ segment, title, counted }) {
  const isCurrent = (location().segments[0] ?? "") === segment;
  const n = counted && overview()?.routes.reduce((sum, route) => sum + counted(route), 0);
  return h("li", { key: segment }, h("a", { href: address(segment ? [segment] : []), "aria-current": isCurrent ? "page" : null },
    title, n > 0 && [" ", h("span", { class: "nav-count" }, count(n))]));
}

/** Opens the message of an id, from every page. */
function findBox() {
  const submit = (event) => {
    event.preventDefault();
    const input = event.currentTarget.elements.find;
    if (input.value !== "") go(["messages"], { find: input.value });
    input.value = "";
  };
  return h("form", { class: "find", role: "search", onsubmit: submit },
    h("input", { type: "search", name: "find", "aria-label": "Find a message by its id, the beginning of one, or a key", "aria-keyshortcuts": "/", placeholder: "Find an id or key ( / )", autocomplete: "off", spellcheck: "false", maxlength: 256 }));
}

/** The key `/` goes to the find box, unless something is being typed or a dialog asks. */
function focusFind(event) {
  const isTyped = event.target.closest("input, textarea, select, dialog") !== null;
  const input = header.querySelector(".find input");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyped || input === null) return;
  event.preventDefault();
  input.focus();
}

/** How fresh the page is. A page that has heard nothing for five seconds says so. */
function liveMark() {
  const { isStale, silentMs, problem } = freshness();
  if (overview() === null) return h("span", { class: "live" }, problem ? [mark("bad"), "no answer"] : "connecting …");
  if (isStale) return h("span", { class: "live stale", role: "status" }, mark("warn"), `stale since ${timeOfDay(nowMs() - silentMs)}`);
  return h("span", { class: "live" }, h("span", { class: "pulse", "aria-hidden": "true" }), "live");
}

/** A choice that stays in this browser. */
function choice(label, options, name) {
  return h("label", { class: "choice" }, `${label} `,
    h("select", { value: setting(name), onchange: (event) => setSetting(name, event.currentTarget.value) },
      Object.entries(options).map(([value, title]) => h("option", { key: value, value }, title))));
}

start();
