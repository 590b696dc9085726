/* Event lanes under the heatmap, on its axis. Each mark is a link to its row in the timeline; marks too close to tell apart join to a count. */

import { stepOfTime } from "./axis.js";
import { node, text, title } from "./svg.js";
import { format, number, zoneName } from "./times.js";

const R = 19,
  NEAR = 8,
  LEAST = 4,
  MOST_ROWS = 3,
  LETTER = 5.7,
  TICKS_WIDE = 120,
  EDGE_WIDE = 104; // the newest step and its time, with the live mark

const shapes = {
  bar: (x, x2, y) => node("rect", { x, y: y - 7, width: Math.max(2, x2 - x), height: 14, class: "ln-bar" }),
  save: (x, x2, y, m) => {
    const dark = Math.max(3, (x2 - x) * (m.write_share ?? 0.12));
    return node(
      "g",
      {},
      node("rect", { x, y: y - 4, width: Math.max(4, x2 - x), height: 8, class: "ln-queue" }),
      node("rect", {
        x: Math.max(x, x2 - dark),
        y: y - 4,
        width: dark,
        height: 8,
        class: m.bad ? "ln-bad" : "ln-write",
      }),
    );
  },
  /* One box a finding: dashed as long as it was suspected, solid from its confirmation (xc) on. */
  finding: (x, x2, y, m, xc) => {
    const tone = m.tone || "warn",
      box = (cls, a, b) => node("rect", { x: a, y: y - 7, width: Math.max(3, b - a), height: 14, class: `${cls} ${tone}` });
    if (!(xc <= x2)) return box("ln-suspected", x, x2);
    return xc - x < 4 ? box("ln-confirmed", x, x2) : node("g", {}, box("ln-suspected", x, xc), box("ln-confirmed", xc, x2));
  },
  event: (x, _x2, y, m) => node("path", { d: `M${x} ${y - 5}l5.5 9.5h-11z`, class: `ln-event ${m.tone || "warn"}` }),
  silent: (x, x2, y) => node("rect", { x, y: y - 5, width: Math.max(4, x2 - x), height: 10, class: "ln-silent" }),
  action: (x, _x2, y, m) =>
    node("path", { d: `M${x} ${y - 6}l6 6l-6 6l-6 -6z`, class: m.open ? "ln-action open" : "ln-action" }),
  note: (x, _x2, y, m) => node("circle", { cx: x, cy: y, r: 4.5, class: m.open ? "ln-note open" : "ln-note" }),
};

export class Lanes {
  constructor(box, view, config) {
    this.box = box;
    this.view = view;
    this.config = config;
    this.lanes = [];
  }
  async read() {
    const answer = await fetch(this.config.lanes_url, { credentials: "same-origin" }).catch(() => null);
    if (!answer?.ok) return;
    this.lanes = (await answer.json()).lanes;
    this.draw();
  }
  /* A mark's place on the axis: by its step, else by its time. */
  unit(at) {
    const { heat, cells } = this.view;
    if (!at) return NaN;
    if (heat.axis.kind === "time" && at.at) return +new Date(at.at);
    if (at.step !== undefined && at.step !== null) return heat.axis.at(at.step);
    return at.at ? heat.axis.at(stepOfTime(cells, +new Date(at.at))) : NaN;
  }
  draw() {
    const { heat } = this.view,
      g = heat.gutter,
      pw = heat.width,
      placed = this.lanes.map(lane => this.place(lane, g, pw)),
      H = placed.reduce((sum, lane) => sum + lane.rows.length * R, 0),
      wide = pw > 700;
    const svg = node("svg", {
      class: "chart",
      width: g + pw,
      height: H + 36,
      viewBox: `0 0 ${g + pw} ${H + 36}`,
      role: "group",
      "aria-label": "Events on the same axis",
    });
    svg.append(
      node(
        "defs",
        {},
        node(
          "pattern",
          { id: "h45", width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
          node("rect", { width: 1, height: 4, class: "ln-hatch" }),
        ),
        node("clipPath", { id: "lane-clip" }, node("rect", { x: g - 1, y: 0, width: pw + 2, height: H })),
      ),
    );
    let top = 0;
    for (const lane of placed) {
      svg.append(
        node("line", { class: "grid", x1: 0, x2: g + pw, y1: top + 0.5, y2: top + 0.5 }),
        text(0, top + R / 2 + 4, lane.name, "lab"),
      );
      const inside = node("g", { "clip-path": "url(#lane-clip)" });
      svg.append(inside);
      for (const row of lane.rows) {
        this.row(inside, lane.name, row, top + R / 2, g, pw, wide);
        top += R;
      }
    }
    this.axis(svg, H, g, pw, wide);
    const focus = this.box.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    this.box.replaceChildren(svg);
    if (focus) this.box.querySelector(`a[href="${CSS.escape(focus)}"]`)?.focus();
  }
  /* Where a lane's marks stand in view, in one row, or in some where findings are open at the same time. */
  place(lane, g, pw) {
    const x = at => g + this.view.heat.x(this.unit(at)),
      edge = g + this.view.heat.x(this.view.heat.axis.extent()[1]);
    const seen = lane.marks
      .map(m => {
        // What is open ends at the newest column, and what began in a step that has not ended yet stands at its edge.
        const from = Math.min(x(m.from), edge - LEAST),
          until = m.to ? x(m.to) : m.grows ? edge : NaN;
        return { m, x: from, x2: until >= from ? until : from, xc: m.confirmed ? Math.max(from, x(m.confirmed)) : NaN };
      })
      .filter(p => p.x === p.x && p.x2 >= g - 6 && p.x <= g + pw + 6)
      .sort((a, b) => a.x - b.x);
    const rows = [[]];
    for (const p of seen) {
      const over = lane.name === "findings",
        free = row => !row.length || row.at(-1).x2 + 4 <= p.x || !over,
        row = rows.find(free) || (rows.length < MOST_ROWS && rows[rows.push([]) - 1]) || rows.at(-1);
      row.push(p);
    }
    return { name: lane.name, rows };
  }
  row(svg, name, seen, y, g, pw, wide) {
    const groups = [];
    for (const p of seen) {
      const last = groups.at(-1),
        point = p.x2 - p.x < 4;
      if (last && point && last.point && p.x - last.x < NEAR) last.all.push(p);
      else groups.push({ ...p, point, all: [p] });
    }
    let taken = g;
    groups.forEach((group, i) => {
      const m = group.m,
        x = Math.max(g - 8, group.x),
        x2 = Math.min(g + pw + 8, group.x2),
        many = group.all.length > 1,
        next = groups[i + 1]?.x ?? g + pw;
      const link = node(
        "a",
        {
          href: m.href || "#timeline",
          "aria-label": group.all.map(p => `${name}: ${p.m.title || p.m.label}`).join("; "),
        },
        title(group.all.map(p => p.m.title || p.m.label).join("\n")),
        (shapes[m.shape] || shapes.event)(x, x2, y, m, group.xc),
      );
      const room = Math.min(x2, next, g + pw) - Math.max(x, g) - 12,
        inside = ["bar", "finding"].includes(m.shape) && room > 60,
        words = many ? `${group.all.length}` : short(m.label || "", inside ? room / LETTER : 72),
        length = words.length * LETTER;
      // The words stand in one part of the box: no border goes through them.
      const solid = group.xc > x && group.xc < x + length + 12 && x2 - group.xc > length + 12;
      if (inside) link.append(text(Math.max(solid ? group.xc : x, g) + 6, y + 4, words, "lab over"));
      else if (many || (wide && m.shape !== "bar")) {
        const after = (m.shape === "bar" ? x2 : Math.max(x2, x + 5)) + 6,
          before = x - 9;
        if (after + length < Math.min(next - 8, g + pw)) {
          link.append(text(after, y + 4, words, "lab"));
          taken = after + length;
        } else if (before - length > taken + 8) {
          link.append(text(before, y + 4, words, "lab", "end"));
          taken = x2;
        }
      }
      taken = Math.max(taken, x2);
      svg.append(link);
    });
  }
  axis(svg, H, g, pw, wide) {
    const { heat, cells } = this.view,
      { from, to } = heat.view,
      time = heat.axis.kind === "time";
    svg.append(
      node("line", { class: "axis", x1: g, x2: g + pw, y1: H + 0.5, y2: H + 0.5 }),
      text(0, H + 16, "step", "lab"),
      text(0, H + 30, wide ? `time, ${zoneName()}` : "time"),
    );
    const most = Math.max(2, Math.floor(pw / TICKS_WIDE)),
      span = to - from;
    let every = time ? 1000 : 1;
    for (const k of time
      ? [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 21600, 86400].map(s => s * 1000)
      : decades(span)) {
      every = k;
      if (span / k <= most) break;
    }
    for (let u = Math.ceil(from / every) * every; u <= to; u += every) {
      if (!time && u < 0) continue; // no step comes before the first
      const x = g + heat.x(u),
        step = time ? heat.axis.column(u) : u,
        at = time ? u : cells.columns.get(Math.floor(u / cells.width) * cells.width)?.at;
      if (x < g + 14 || x > g + pw - EDGE_WIDE) continue;
      svg.append(
        node("line", { class: "tick", x1: x, x2: x, y1: H, y2: H + 4 }),
        text(x, H + 16, number(step || 0), "lab", "middle"),
      );
      if (at) svg.append(text(x, H + 30, format(new Date(at), span > 864e5 && time ? "day" : "hm"), "", "middle"));
    }
    const edge = cells.last;
    if (edge === undefined || !this.view.following) return;
    const at = cells.columns.get(edge)?.at,
      live = this.config.attempt?.state === "OPEN",
      words = [at && format(new Date(at), "hm"), live && "live"].filter(Boolean).join(", ");
    svg.append(text(g + pw, H + 16, number(edge), "lab", "end"), text(g + pw, H + 30, words, "", "end"));
    if (live)
      svg.append(node("circle", { cx: g + pw - words.length * LETTER - 6, cy: H + 26, r: 3, class: "ln-live" }));
  }
}
const short = (s, most) => (s.length > most ? `${s.slice(0, Math.floor(most) - 1).trimEnd()}…` : s);
function decades(span) {
  const out = [];
  for (let p = 1; p <= span * 10; p *= 10) out.push(p, 2 * p, 4 * p === 4 ? 4 : 4 * p, 5 * p);
  return out.sort((a, b) => a - b);
}
