/* The card beside a pointed cell: its own figures, its peers, where it runs. What the picture does not hold is read for that one column. */

import { fetchCells, median, worstOf } from "./cells.js";
import { countRanks, ranksText } from "./heatrows.js";
import { format, number } from "./times.js";

const WAIT_MS = 70,
  KEPT = 400,
  MOST_ROWS = 4096;
const put = (tag, text, cls) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (cls) e.className = cls;
  return e;
};
export const figure = (v, unit, digits) =>
  `${number(v, digits ?? (Math.abs(v) >= 1000 ? 0 : 2))}${unit ? ` ${unit}` : ""}`;

export class Card {
  constructor(box, said, view) {
    this.box = box;
    this.said = said;
    this.view = view;
    this.columns = new Map();
    this.places = new Map();
  }

  /* Another attempt: other places, other values. */
  forget() {
    this.columns.clear();
    this.places.clear();
  }
  show(at) {
    clearTimeout(this.timer);
    this.box.hidden = !at || at.out;
    if (!at || at.out) return;
    this.at = at;
    this.fill(at);
    this.move(at);
    this.timer = setTimeout(() => this.more(at), WAIT_MS);
  }
  move(at) {
    const width = this.box.offsetWidth || 248,
      room = this.view.heat.el.clientWidth,
      right = at.x + 14 + width > room;
    const down = at.y + at.h + 10,
      height = this.box.offsetHeight || 130,
      most = Math.max(this.view.heat.height - height + 40, 0);
    this.box.style.left = `${Math.max(0, right ? at.x - width - 14 : at.x + 14)}px`;
    this.box.style.top = `${Math.min(down, most)}px`;
  }
  /* Raw values of one column for a metric, read once: a promise of {values by rank, head}. */
  column(metric, step, ranges) {
    const world = this.view.config.world_size,
      some = world > MOST_ROWS ? ranges.map(([a, b]) => `${a}-${b}`).join(",") : "",
      key = `${metric}/${some}@${step}`;
    if (!this.columns.has(key)) {
      if (this.columns.size > KEPT) this.columns.clear();
      const v = this.view,
        url = new URL(v.url({ from: step, to: step + v.cells.width, columns: 1 }), location.href);
      url.searchParams.set("metric", metric);
      url.searchParams.set("relative", "none");
      url.searchParams.set("order", "rank");
      url.searchParams.set("rows", String(Math.min(world, MOST_ROWS)));
      if (some) url.searchParams.set("ranks", some);
      this.columns.set(
        key,
        fetchCells(url.href).catch(() => null),
      );
    }
    return this.columns.get(key);
  }
  async more(at) {
    const v = this.view,
      live = at.step + v.cells.width > (v.config.last_step ?? 0);
    if (live) for (const key of [...this.columns.keys()]) if (key.endsWith(`@${at.step}`)) this.columns.delete(key);
    const waits = v.config.metrics.some(m => m.name === "communication_s") && v.metric.name !== "communication_s";
    const [raw, wait, places] = await Promise.all([
      this.column(v.metric.name, at.step, at.data.ranks),
      waits ? this.column("communication_s", at.step, at.data.ranks) : null,
      this.placement(this.attempt(at)),
    ]);
    if (this.at !== at) return;
    const known = { raw: this.pick(raw, at), wait: this.pick(wait, at, true), places };
    if (raw) known.peers = v.config.world_size > MOST_ROWS ? this.divided(known.raw, at) : this.peers(raw, at);
    this.fill(at, known);
    this.move(at);
  }
  /* The number of the attempt that did the pointed step: its ranks may have sat on other nodes. */
  attempt(at) {
    return this.view.cells.columns.get(at.step)?.attempt ?? this.view.config.attempt?.number;
  }
  placement(number) {
    const id = this.view.config.attempts?.[number] ?? this.view.config.attempt?.id;
    if (!this.places.has(id))
      this.places.set(
        id,
        fetch(`${this.view.config.placement_url}${id ? `?attempt=${id}` : ""}`, { credentials: "same-origin" })
          .then(r => (r.ok ? r.json() : null))
          .catch(() => null),
      );
    return this.places.get(id);
  }
  /* Values of the row's ranks in an answer that has one row a rank. */
  rowsOf(answer, at) {
    const out = [];
    answer.rows.forEach((row, i) => {
      if (at.data.ranks.some(([a, b]) => row.ranks[0] <= b && row.ranks[1] >= a)) out.push(i);
    });
    return out;
  }
  pick(answer, at, least = this.view.least) {
    return answer && answer.steps.length ? worstOf(answer.cells, this.rowsOf(answer, at), least) : NaN;
  }
  /* On large runs only the row's own ranks are read: its value over its ratio is what its peers take. */
  divided(raw, at) {
    const v = this.view,
      column = (at.data.cells || v.cells).columns.get(at.step),
      ratio = column ? worstOf(column.values, at.data.src, v.least) : NaN;
    return v.state.mode === "peers" && ratio > 0 ? raw / ratio : NaN;
  }
  peers(answer, at) {
    return median([...answer.cells].filter((_, i) => answer.rows[i].stage === at.data.stage));
  }

  fill(at, known = {}) {
    const v = this.view,
      row = at.data,
      one = countRanks(row) === 1,
      rank = row.ranks[0][0],
      values = row.cells ? row.cells : v.cells,
      column = values.columns.get(at.step);
    const shown = column ? worstOf(column.values, row.src, v.least) : NaN,
      ratio = v.state.mode !== "none",
      steps = v.cells.width;
    const head = put("div", undefined, "t");
    head.append(
      put("span", one ? `rank ${rank}` : row.kind === "pool" ? `ranks ${ranksText(row.ranks)}` : row.node),
      put(
        "span",
        steps > 1 ? `steps ${number(at.step)}–${number(at.step + steps - 1)}` : `step ${number(at.step)}`,
        "dim",
      ),
    );
    const place = known.places?.ranks?.[rank],
      did = this.attempt(at),
      earlier = did !== undefined && did !== v.config.attempt?.number,
      then = earlier ? `attempt ${did}` : "",
      under = put(
        "div",
        one
          ? [place?.node ?? (earlier ? "" : row.node), place && `GPU ${place.local_rank}`, then].filter(Boolean).join(", ")
          : [
              `ranks ${ranksText(row.ranks)}, ${v.least ? "least" : "worst"} of ${countRanks(row)}`,
              then && this.nodesThen(row, known.places),
              then,
            ]
              .filter(Boolean)
              .join(", "),
        "dim",
      );
    const list = document.createElement("dl"),
      add = (name, value) => {
        list.append(put("dt", name), typeof value === "string" ? put("dd", value) : value);
      };
    add(v.metric.short, this.main(shown, known.raw, ratio, column, row));
    if (known.peers === known.peers && known.peers !== undefined)
      add(
        "peers' median",
        figure(known.peers, v.metric.unit) +
          (row.stage === null || row.stage === undefined ? "" : `, stage ${row.stage}`),
      );
    if (known.wait === known.wait && known.wait !== undefined) add("waits", figure(known.wait, "s"));
    if (place?.coords)
      add(
        "place",
        Object.entries(place.coords)
          .filter(([k]) => one || k !== "tp")
          .map(([k, n]) => `${k.toUpperCase()} ${n}`)
          .join(" · "),
      );
    if (column?.at) add("at", format(new Date(column.at), "full"));
    if (column?.veiled) add("evidence", "none: next to a checkpoint or a resume");
    this.box.replaceChildren(head, under, list);
    this.said.textContent = this.box.innerText.replace(/\s+/g, " ");
  }
  /* Where a row's ranks sat in an earlier attempt, where that is not the row's node. */
  nodesThen(row, places) {
    const found = new Set();
    for (const [a, b] of row.ranks) for (let rank = a; rank <= b; rank++) found.add(places?.ranks?.[rank]?.node);
    found.delete(undefined);
    return found.size && !(found.size === 1 && found.has(row.node)) ? `then on ${[...found].slice(0, 3).join(", ")}` : "";
  }
  main(shown, raw, ratio, column, row) {
    const dd = document.createElement("dd"),
      marks = (column?.marks || []).filter(([r]) => row.src.includes(r)).map(([, which]) => which);
    if (marks.length) {
      dd.append(put("span", `not finite: ${[...new Set(marks)].join(", ")}`, "crit-ink"));
      return dd;
    }
    if (shown !== shown) {
      dd.textContent = column ? "no data" : "not loaded";
      return dd;
    }
    const value = ratio ? raw : shown;
    if (value === value && value !== undefined) dd.append(put("span", figure(value, this.view.metric.unit), "b"));
    if (ratio)
      dd.append(
        value === value && value !== undefined ? ` · ${shown.toFixed(2)}×` : put("span", `${shown.toFixed(2)}×`, "b"),
      );
    return dd;
  }
}
