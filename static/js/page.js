/* Every signed-in page: theme, clock, keys, live feed. A page's own module is named by <body data-page>. */

import { switchTheme, themeSwitch } from "./settings.js";
import { format, heardClock, render, serverNow, tickTimes, utcText, zoneName } from "./times.js";
import { keys } from "./keys.js";
import { Feed } from "./feed.js";
import { strips } from "./strips.js";
import { quoteForms } from "./forms.js";

const body = document.body,
  clock = document.querySelector("[data-clock]");
if (body.dataset.now) heardClock(body.dataset.now);

function drawClock() {
  if (clock) {
    const now = serverNow();
    clock.textContent = `${format(now, "clock")} ${zoneName()}`;
    clock.title = utcText(now);
  }
  tickTimes();
}
themeSwitch();
render(document);
drawClock();
setInterval(drawClock, 1000);
strips(document);
quoteForms(document);
document.addEventListener("paceline:theme", () => strips(document));
document.addEventListener("paceline:zone", drawClock);
/* What somebody has open or is filling in is not taken from under their hands; the part is made again with the next poke. */
document.body.addEventListener("htmx:beforeSwap", e => {
  const target = e.detail.target,
    busy = target?.querySelector?.(
      "dialog[open], input:not([type=radio]):focus, textarea:focus, select:focus, details[open] summary:focus",
    );
  if (busy && e.detail.requestConfig?.verb === "get") e.detail.shouldSwap = false;
});
document.body.addEventListener("htmx:oobBeforeSwap", e => {
  if (e.detail.target?.querySelector?.("dialog[open], input:not([type=radio]):focus, textarea:focus, details[open] summary:focus"))
    e.detail.shouldSwap = false;
});
/* Nothing changes places under a hand: a part whose buttons are pointed at, or have the focus, is made again in the order it has. */
document.body.addEventListener("htmx:configRequest", e => {
  if (e.detail.verb === "get" && document.querySelector(".acts:hover, .acts:focus-within")) e.detail.parameters.held = "1";
});
/* A form that is on its way says so, and is not sent twice; the page that comes back answers again. */
document.addEventListener("submit", e => {
  if (e.defaultPrevented) return;
  if (e.target.dataset.sent) e.preventDefault();
  else {
    e.target.dataset.sent = "1";
    e.submitter?.setAttribute("aria-busy", "true");
  }
});
addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    form.querySelector("[aria-busy]")?.removeAttribute("aria-busy");
  }
});
/* Rows that somebody opened stay open when the part around them is made again. */
let unfolded = [];
document.body.addEventListener("htmx:beforeSwap", e => {
  unfolded = [...(e.detail.target?.querySelectorAll?.("details[data-fold][open]") || [])].map(d => d.dataset.fold);
});
document.body.addEventListener("htmx:afterSwap", e => {
  for (const fold of unfolded) e.detail.target?.querySelector?.(`details[data-fold="${fold}"]`)?.setAttribute("open", "");
});
/* A refused change says so at the top of the page; what it was about stays as it is. */
document.body.addEventListener("htmx:responseError", e => {
  if (e.detail.requestConfig?.verb === "get") return; // a part that could not be made again is tried with the next poke
  const said = new DOMParser().parseFromString(e.detail.xhr.responseText, "text/html").querySelector(".banner"),
    place = document.querySelector(".frame-banners");
  place.querySelector("[data-refused]")?.remove();
  const banner =
    said ||
    Object.assign(document.createElement("p"), {
      className: "banner crit",
      textContent: `That could not be done (${e.detail.xhr.status}). Nothing was changed.`,
    });
  banner.dataset.refused = "1";
  banner.setAttribute("role", "alert");
  place.append(banner);
  banner.scrollIntoView({ block: "nearest" });
});
document.body.addEventListener("htmx:afterSwap", e => {
  render(document);
  strips(document);
  quoteForms(document);
  document.dispatchEvent(new CustomEvent("paceline:swapped", { detail: e.target }));
});

/* An action is confirmed over this page; a click that wants another tab keeps its own. */
document.addEventListener("click", e => {
  const link = e.target.closest?.('a[href*="/actions/new?"]');
  if (!link || e.defaultPrevented || e.button || e.ctrlKey || e.metaKey || e.shiftKey || e.altKey) return;
  e.preventDefault();
  link.setAttribute("aria-busy", "true");
  import("./dialog.js").then(
    module => module.confirmOver(link),
    () => location.assign(link.href),
  );
});

export const feed = body.dataset.feed ? new Feed(body.dataset.feed, { presence: body.dataset.presence }) : null;
keys({ t: switchTheme });

const own = {
  run: "./run.js",
  incident: "./incident.js",
  nodes: "./nodes.js",
  node: "./node.js",
  runs: "./runs.js",
  action: "./confirm.js",
  stepper: "./confirm.js",
  settings: "./forms.js",
}[body.dataset.page];
const ready = () => {
  body.dataset.ready = "1";
}; // keys and buttons answer from here on
if (own) import(own).then(module => module.start?.({ feed })).then(ready);
else ready();
