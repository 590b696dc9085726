/* Nodes: filter chips dim what does not match, the overlay changes figure and cells, not the layout. */

import { css, legendBar, linearScale, ratioScale, rampTable, rgbText, shade } from "./ramp.js";

const OVERLAYS = {
  temperature: { scale: linearScale(34, 90), ticks: ["34 °C", "62", "90 °C"], say: v => `${Math.round(v)}°` },
  straggle: { scale: ratioScale, ticks: ["0.7×", "peers", "1.4×"], say: v => `${v.toFixed(2)}×` },
  exclusions: { scale: linearScale(0, 6), ticks: ["0", "in 90 days", "6"], say: v => (v ? String(v) : "") },
};
const $$ = (q, el = document) => [...el.querySelectorAll(q)];

export function start() {
  const read = () => new URLSearchParams(location.search).get("overlay") || "";
  const draw = () => {
    const wanted = read(),
      buttons = $$("[data-overlay-set]"),
      name = buttons.some(b => b.value === wanted)
        ? wanted
        : buttons.some(b => b.value === "temperature")
          ? "temperature"
          : "health";
    for (const b of buttons) b.setAttribute("aria-pressed", String(b.value === name));
    for (const tile of $$(".tile")) paint(tile, name);
    const legend = document.querySelector("#tilelegend"),
      known = OVERLAYS[name];
    if (legend) {
      if (known) legendBar(legend, known.scale, known.ticks, 144);
      else legend.textContent = "empty = in a run and well";
    }
  };
  document.addEventListener("click", e => {
    const set = e.target.closest("[data-overlay-set]"),
      chip = e.target.closest(".chip[data-word]");
    if (set) {
      const u = new URL(location.href);
      u.searchParams.set("overlay", set.value);
      history.pushState(null, "", u);
      draw();
    }
    if (chip) {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
      dim();
    }
  });
  document.addEventListener("click", e => {
    const tile = e.target.closest(".tile");
    if (!tile || e.ctrlKey || e.metaKey || e.shiftKey || e.detail === 0) return; // detail 0: Enter, which opens the record
    e.preventDefault();
    for (const other of $$(".tile")) other.setAttribute("aria-pressed", String(other === tile));
    const u = new URL(location.href);
    u.searchParams.set("node", tile.dataset.node);
    history.replaceState(null, "", u);
    const list = document.querySelector("#nodes-map"),
      at = new URL(list.getAttribute("hx-get"), location.href);
    at.searchParams.set("node", tile.dataset.node);
    list.setAttribute("hx-get", at.pathname + at.search);
    window.htmx.process(list);
    window.htmx.ajax("GET", tile.dataset.card, { target: "#node-rail", swap: "innerHTML" });
  });
  document.addEventListener("dblclick", e => {
    const tile = e.target.closest(".tile");
    if (tile) location.assign(tile.href);
  });
  const dim = () => {
    const on = new Set($$('.chip[aria-pressed="true"]').map(c => c.dataset.word));
    for (const tile of $$(".tile")) tile.classList.toggle("dimmed", !on.has(tile.dataset.word));
  };
  for (const event of ["paceline:swapped", "paceline:theme"])
    document.addEventListener(event, () => {
      draw();
      dim();
    });
  addEventListener("popstate", draw);
  draw();
}
function paint(tile, name) {
  const canvas = tile.querySelector("canvas"),
    known = OVERLAYS[name],
    all = JSON.parse(tile.dataset.values || "{}");
  const values = name === "exclusions" ? [Number(tile.dataset.exclusions)] : all[name];
  const word = tile.dataset.word,
    val = tile.querySelector(".val");
  const found = (values || []).filter(v => v !== null);
  val.textContent =
    word === "out" || word === "down" || word === "draining"
      ? word
      : known && found.length
        ? known.say(Math.max(...found))
        : word === "in a run"
          ? ""
          : word;
  canvas.hidden = !known || !found.some(v => v || name !== "exclusions");
  if (canvas.hidden) return;
  const dpr = devicePixelRatio || 1,
    w = canvas.clientWidth || 100,
    table = rampTable(css(known.scale.ramp)),
    ctx = canvas.getContext("2d");
  canvas.width = w * dpr;
  canvas.height = 6 * dpr;
  ctx.scale(dpr, dpr);
  values.forEach((v, i) => {
    if (v === null) return;
    const x = Math.round((i * w) / values.length),
      x1 = Math.round(((i + 1) * w) / values.length);
    ctx.fillStyle = rgbText(shade(known.scale, table, v));
    ctx.fillRect(x, 0, Math.max(1, x1 - x - (values.length > 1 ? 1 : 0)), 6);
  });
}
