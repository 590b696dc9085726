/* The run page: heatmap, lanes, card and tools on one axis; parts below are the server's. */

import { HeatState } from "./heatstate.js";
import { HeatView } from "./heatview.js";
import { Card } from "./card.js";
import { Lanes } from "./lanes.js";
import { css, legendBar } from "./ramp.js";
import { Charts } from "./charts.js";
import { copy } from "./forms.js";
import { Moved } from "./moved.js";
import { number } from "./times.js";
import { onKey } from "./keys.js";

const $ = q => document.querySelector(q),
  $$ = q => [...document.querySelectorAll(q)];
// a name as a part of an address, as the server's own links have it
const part = name => encodeURIComponent(name.replaceAll("~", "~7E").replaceAll("/", "~2F"));

export function start({ feed }) {
  const config = JSON.parse($("#run-config").textContent),
    box = $("#heat"),
    tools = $(".tools");
  config.box = () => box;
  config.suspects = new Set(config.suspects);
  const usual = () => (config.metrics.some(m => m.name === "compute_s") ? "compute_s" : config.metrics[0].name);
  const state = new HeatState({
    metric: usual(),
    mode: "peers",
    rows: "nodes",
    order: "stage",
    axis: "step",
    range: "240",
    open: new Set(config.suspects),
  });
  tools.hidden = $("#under-tools").hidden = false;
  let card,
    lanes,
    charts,
    lastFrame = "";

  const view = new HeatView(box, config, state, {
    onPoint: at => {
      card?.show(at);
      ruler(at);
    },
    onFrame: v => {
      const key = `${v.from}/${v.to}/${view.cells.steps.length}/${view.heat.width}`;
      if (key === lastFrame) return;
      lastFrame = key;
      lanes?.draw();
      charts?.follow(view);
    },
    onState: () => {
      drawTools();
      note();
      $("#heat-error").hidden = true;
    },
    onError: error => failed(error),
    onSelect: range => selected(range),
    onNode: (row, step) =>
      row.node && location.assign(`/nodes/${part(config.cluster)}/${part(row.node)}?step=${step}`),
    keys: {
      m: () =>
        next(
          "metric",
          config.metrics.map(m => m.name),
        ),
      r: () => next("mode", ["none", "peers", "self"]),
      l: () => backToLive(),
      0: () => view.set("range", view.state.range === "attempt" ? "240" : "attempt"),
      n: () => suspect(1),
      p: () => suspect(-1),
      c: () => copyLink(),
    },
  });
  card = new Card($("#card"), $("#said"), view);
  lanes = new Lanes($("#lanes"), view, config);
  charts = new Charts(config, $("#steptime"));
  const moved = new Moved(config, view, {
    onAttempt: () => {
      card.forget();
      charts.another();
      view.load({ keepView: true });
      lanes.read();
    },
    onEnd: () => {
      view.applyAxis();
      if (view.following) view.follow();
      lanes.draw();
      drawTools();
    },
    onSuspects: fresh => openSuspects(fresh),
    onMetrics: () => drawMetrics(),
    onState: () => drawTools(),
  });
  window.paceline = { view, lanes, charts }; // for the page's tests and for people with a console open

  function ruler(at) {
    const r = $("#ruler");
    r.hidden = !at || at.out;
    if (at) r.style.transform = `translateX(${Math.round(at.x)}px)`;
  }
  function next(name, values) {
    view.set(name, values[(values.indexOf(state[name]) + 1) % values.length]);
    drawTools();
  }
  function suspect(by) {
    const nodes = [...config.suspects],
      rows = view.heat.rows,
      here = rows[view.heat.cell?.row]?.node;
    if (!nodes.length) return;
    const want = nodes[(nodes.indexOf(here) + by + nodes.length) % nodes.length],
      row = rows.findIndex(r => r.node === want);
    if (row >= 0) view.heat.point({ row, step: view.heat.cell?.step ?? view.cells.last });
  }
  function copyLink() {
    if (!view.heat.cell) return;
    view.pin(true);
    copyAddress(new URL(state.address(), location.href));
  }
  async function copyAddress(url) {
    $("#said").textContent = (await copy(url.href)) ? "Link copied" : "The link could not be copied";
  }
  /* A node that is newly blamed is opened, but not while somebody points at a row: it would move away. */
  function openSuspects(fresh) {
    for (const node of fresh) {
      state.defaults.open.add(node);
      if (!view.heat.cell) state.open.add(node);
    }
    view.layout();
    view.detail();
    note();
  }
  function drawMetrics() {
    if (state.metric === state.defaults.metric) state.metric = usual();
    state.defaults.metric = usual();
    $("#metric").replaceChildren(...config.metrics.map(m => new Option(m.label, m.name)));
    drawTools();
  }
  function backToLive() {
    state.steps = state.times = null;
    state.save(true);
    view.following = true;
    if (moved.goOver()) return;
    view.follow();
    view.changed();
    drawTools();
  }

  function drawTools() {
    for (const b of $$("button[data-set]"))
      b.setAttribute(
        "aria-pressed",
        String(b.value === state[b.dataset.set] && !(b.dataset.set === "range" && (state.steps || state.times))),
      );
    const single = view.heat.rows.length > 0 && view.heat.rows.every(r => r.kind === "rank");
    for (const b of $$("button[data-set=rows]")) {
      if (single) b.setAttribute("aria-pressed", String(b.value === "ranks")); // what is drawn, whatever was asked for
      b.disabled = single && state.rows === "nodes" && b.value === "nodes";
      b.title = b.disabled ? "So few ranks are drawn one by one" : "";
    }
    for (const s of $$("select[data-set]")) s.value = s.id === "metric" ? view.metric.name : state[s.dataset.set];
    const scale = view.heat.scale;
    if (!scale) return;
    const unit = view.metric.unit,
      ratio = state.mode !== "none",
      wait = view.least,
      seconds = $("button[data-set=mode][value=none]");
    seconds.textContent = unit === "s" ? "seconds" : unit || "value";
    legendBar(
      $("#legend"),
      scale,
      ratio
        ? wait
          ? ["0.7× waits less", "1", "more 1.4×"]
          : ["0.7× faster", "1", "slower 1.4×"]
        : [scale.lo, (scale.lo + scale.hi) / 2, scale.hi].map(
            (v, i) => `${+v.toPrecision(3)}${i === 1 || !unit ? "" : ` ${unit}`}`,
          ),
    );
    $("#redone").hidden = state.range !== "run";
    $("#redone").setAttribute("aria-pressed", String(state.redone));
    $("#redone").textContent = state.redone ? "hide redone steps" : "show redone steps";
    const back = $("#back-live"),
      open = config.attempt?.state === "OPEN";
    back.hidden = view.following || !(open || moved.next);
    back.textContent = moved.next
      ? `attempt ${moved.next.attempt.number} has begun, go to it`
      : view.behind
        ? `back to now, ${number(view.behind)} steps behind`
        : "follow live";
  }
  function note() {
    const head = view.cells.head;
    if (!head) return;
    const world = config.world_size,
      nodes = new Set(head.rows.map(r => r.node)).size,
      pooled = head.pooled?.rows || 1,
      open = [...state.open].filter(n => view.heat.rows.some(r => r.node === n)),
      few = view.heat.rows.every(r => r.kind === "rank"),
      ranks = `${number(world)} rank${world === 1 ? "" : "s"}`,
      starts = view.cells.attemptStarts.filter(step => step > view.heat.view.from && step < view.heat.view.to);
    const rows = few
      ? ranks
      : pooled > 1
        ? `${ranks}, each row the ${view.least ? "least" : "worst"} of ${pooled}`
        : `${number(nodes)} nodes, each drawn as the ${view.least ? "least" : "worst"} of its ranks`;
    const said = [
      rows,
      open.length ? `; ${open.join(", ")} ${open.length > 1 ? "are" : "is"} open` : "",
      ". ",
      starts.length
        ? `Left of the rule at ${number(starts.at(-1))} is what an earlier attempt did; its ranks may have sat on other nodes. `
        : "",
      head.steps_per_column > 1 ? `A column holds ${number(head.steps_per_column)} steps. ` : "",
      "Pale columns are next to a checkpoint or a resume and are no evidence. ",
    ].join("");
    const table = Object.assign(document.createElement("a"), { href: "#worst", textContent: "Read it as a table" });
    $("#heat-note").replaceChildren(said, table);
    if (!head.steps.length && !view.cells.steps.length)
      $("#heat-note").textContent = "No step of this attempt has been reported with this metric yet.";
    box.setAttribute(
      "aria-label",
      `${view.metric.label} by rank and step, ${rows}. Arrow keys move, Enter opens a node, Space pins, Escape lets go.`,
    );
  }
  function failed(error) {
    const place = $("#heat-error"),
      body = error.body?.error,
      p = document.createElement("p");
    p.className = "banner crit";
    p.setAttribute("role", "alert");
    const what = Object.assign(document.createElement("span"), {
      className: "st crit",
      textContent: "The heatmap could not be read",
    });
    const why = Object.assign(document.createElement("span"), { textContent: `${error.message} ` });
    if (body?.code)
      why.append(
        Object.assign(document.createElement("code"), { textContent: body.code }),
        body.request_id ? ` · request ${body.request_id}` : "",
      );
    const right = Object.assign(document.createElement("span"), { className: "right" }),
      again = Object.assign(document.createElement("button"), {
        className: "btn",
        type: "button",
        textContent: "Try again",
      });
    again.onclick = () => view.load({ keepView: true });
    right.append(again);
    p.append(what, why, right);
    place.replaceChildren(p);
    place.hidden = false;
  }
  function selected(range) {
    const pop = $("#selection"),
      w = view.cells.width,
      last = range.to + w - 1,
      n = last - range.from + 1;
    const button = (words, act) => {
      const b = Object.assign(document.createElement("button"), {
        className: "btn",
        type: "button",
        textContent: words,
      });
      b.onclick = () => {
        act();
        pop.hidden = true;
        view.heat.select(null);
      };
      return b;
    };
    const row = Object.assign(document.createElement("div"), { className: "rowline" });
    row.append(
      button("Zoom", () =>
        view.look(
          view.heat.axis.kind === "step"
            ? { from: range.from, to: last + 1 }
            : { from: view.heat.axis.edges(range.from)[0], to: view.heat.axis.edges(range.to)[1] },
          { deliberate: true },
        ),
      ),
    );
    if (config.incident)
      row.append(
        button(`Add to INC-${config.incident}`, () =>
          location.assign(
            `/incidents/${config.incident}?note=${encodeURIComponent(`Steps ${number(range.from)}–${number(last)}: `)}#write`,
          ),
        ),
      );
    row.append(
      button("Copy link", () => {
        const u = new URL(location.href);
        u.searchParams.set("steps", `${range.from}-${last + 1}`);
        copyAddress(u);
      }),
      button("Let go", () => {}),
    );
    pop.replaceChildren(
      Object.assign(document.createElement("b"), {
        textContent: `${number(n)} steps, ${number(range.from)}–${number(last)}`,
      }),
      row,
    );
    pop.hidden = false;
    pop.style.left = `${Math.max(0, Math.min(view.heat.gutter + view.heat.span(range.from)[0], box.clientWidth - 300))}px`;
    pop.style.top = `${box.offsetTop + 8}px`;
  }

  for (const b of $$("button[data-set]"))
    b.addEventListener("click", () => {
      if (b.dataset.set === "range") {
        state.steps = state.times = null;
        if (state.range === b.value) {
          view.following = true;
          view.load();
          drawTools();
          return;
        }
      }
      view.set(b.dataset.set, b.value);
      drawTools();
    });
  for (const s of $$("select[data-set]")) s.addEventListener("change", () => view.set(s.dataset.set, s.value));
  $("#redone").addEventListener("click", () => {
    state.redone = !state.redone;
    state.save(true);
    view.load({ keepView: true });
    drawTools();
  });
  $("#back-live").addEventListener("click", backToLive);
  document.addEventListener("click", e => {
    const link = e.target.closest("[data-show-cells]");
    if (!link) return;
    e.preventDefault();
    showCells(JSON.parse(link.dataset.showCells));
  });
  /* "Show the cells" of a card: metric, mode, range and open node are what the detector looked at; the evidence is outlined. */
  async function showCells(want) {
    Object.assign(state, { metric: want.metric || state.metric, mode: want.mode || "peers" });
    for (const node of want.nodes || []) state.open.add(node);
    const margin = Math.max(20, (want.to - want.from) * 0.5);
    state.steps = [Math.max(0, want.from - margin), want.to + margin];
    view.following = false;
    state.save(true);
    view.heat.evidence = { from: want.from, to: want.to + 1, nodes: new Set(want.nodes) };
    await view.load();
    $("#heat-part").scrollIntoView({ block: "start" });
    box.focus({ preventScroll: true });
  }
  addEventListener("popstate", () => {
    state.read();
    view.following = !state.steps && !state.times;
    view.load();
  });
  document.addEventListener("paceline:theme", () => {
    view.heat.hatch = null;
    view.applyScale();
    view.heat.repaint();
    lanes.draw();
    charts.theme();
    drawTools();
    if (view.heat.cell) view.heat.point(view.heat.cell);
  });
  document.addEventListener("paceline:zone", () => lanes.draw());
  let width = box.clientWidth;
  new ResizeObserver(() => {
    if (box.clientWidth !== width) {
      width = box.clientWidth;
      view.resize();
      lanes.draw();
      charts.resize();
      drawTools();
    }
  }).observe(box);

  if (state.evidence) view.heat.evidence = state.evidence;
  drawTools();
  view.load().then(() => {
    lanes.read();
    charts.begin(view);
    performance.mark("paceline-heatmap");
  });
  view.live(feed);
  moved.live(feed);
  feed?.on("rows", () => {
    clearTimeout(start.lanes);
    start.lanes = setTimeout(() => lanes.read(), 700);
  });
  feed?.on("series", () => charts.changed());
  setInterval(() => {
    if (state.axis === "time" && view.following) view.follow();
  }, 1000);
  onKey("l", backToLive);
}
