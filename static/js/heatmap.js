/* The rank × step picture. Inputs: Cells, a row layout, a scale and a view (from, to) on the step axis.
   (On the time axis a view is in milliseconds: see axis.js.) Cells are painted once into a strip, one pixel a column
   and real row heights; a frame is then one copy of a part of that strip. */

import { css, pack, rampTable, rgba, shade } from "./ramp.js";
import { worstOf } from "./cells.js";
import { StepAxis } from "./axis.js";

const STAGE_GAP = 3,
  LEAST_STRIP = 512,
  OVERSCAN = 300,
  BATCH = 32,
  NUMBERS_WIDE = 30,
  BUDGET_MS = 5;
const lowerBound = (list, v) => {
  let lo = 0,
    hi = list.length;
  while (lo < hi) {
    const m = (lo + hi) >> 1;
    if (list[m] < v) lo = m + 1;
    else hi = m;
  }
  return lo;
};
const canvas = (cls, box) => {
  const c = document.createElement("canvas");
  c.className = cls;
  c.setAttribute("aria-hidden", "true");
  box.append(c);
  return c;
};
const line = (cls, box) => {
  const d = document.createElement("div");
  d.className = cls;
  d.hidden = true;
  box.append(d);
  return d;
};

export class Heatmap {
  constructor(el, cells, { gutter = 96 } = {}) {
    this.el = el;
    this.cells = cells;
    this.axis = new StepAxis(cells);
    this.gutter = gutter;
    this.rows = [];
    this.groups = [];
    this.height = 0;
    this.view = { from: 0, to: 1 };
    this.least = false;
    this.names = canvas("heat-names", el);
    this.plot = canvas("heat-plot", el);
    this.strip = document.createElement("canvas");
    this.across = line("heat-across", el);
    this.down = line("heat-down", el);
    this.box = line("heat-box", el);
    this.band = line("heat-band", el);
    this.progress = line("heat-progress", el);
    this.owner = null;
    this.cell = null;
    this.pinned = false;
    this.offset = 0;
    addEventListener("scroll", () => this.tall && this.invalidate(), { passive: true });
  }

  /* ---- layout ---- */
  setRows(groups) {
    this.groups = groups;
    this.rows = [];
    this.rowOf = new Map();
    let y = 0;
    groups.forEach((group, i) => {
      if (i) y += STAGE_GAP;
      group.y0 = y;
      for (const row of group.rows) {
        row.y = y;
        row.group = group;
        this.rows.push(row);
        if (!row.cells) for (const i of row.src) this.rowOf.set(i, row);
        y += row.h;
      }
      group.y1 = y;
    });
    this.height = y;
    this.repaint();
  }
  setScale(scale, least) {
    this.scale = scale;
    this.least = least;
  }
  get width() {
    return Math.max(1, this.el.clientWidth - this.gutter);
  }

  resize() {
    const dpr = devicePixelRatio || 1,
      w = this.width,
      H = this.height,
      most = innerHeight + 2 * OVERSCAN;
    this.dpr = dpr;
    this.tall = H > most;
    this.shown = this.tall ? most : H;
    this.el.style.height = `${H}px`;
    const size = (c, cw, ch) => {
      c.width = Math.max(1, Math.round(cw * dpr));
      c.height = Math.max(1, Math.round(ch * dpr));
      c.style.width = `${cw}px`;
      c.style.height = `${ch}px`;
    };
    size(this.plot, w, this.shown);
    size(this.names, this.gutter, H);
    this.plot.style.left = `${this.gutter}px`;
  }

  /* ---- painting the strip ---- */
  /* Everything must be painted again: after another layout, scale or theme. */
  repaint() {
    this.resize();
    this.tokens();
    this.drawNames();
    this.edgesY = Int32Array.from(
      this.rows.flatMap(row => [Math.round(row.y * this.dpr), Math.round((row.y + row.h) * this.dpr)]),
    );
    this.owner = null;
    this.hurry = true;
    this.invalidate();
  }
  tokens() {
    if (!this.scale) return;
    this.table = rampTable(css(this.scale.ramp));
    this.bg = pack(rgba(css("--bg")));
    this.veil = rgba(css("--veil"));
    this.colours = { crit: css("--crit-mark"), ink: css("--ink"), ink2: css("--ink-2") }; // read once: asking the page's style in each frame costs more than the frame
    this.hatch = null;
  }
  /* Columns changed: those in view are painted again with the next frame. */
  update(steps) {
    if (steps === "new" || !this.owner) return this.repaint();
    for (const step of steps) {
      const x = this.slot(step);
      if (this.owner[x] === step) this.owner[x] = -1;
    }
    this.invalidate();
  }
  /* The strip is a ring: a column's place is its number modulo the strip's width, so neighbours stay neighbours and nothing moves. */
  slot(step) {
    return (step / this.cells.width) % this.strip.width;
  }
  ready(visible) {
    let width = LEAST_STRIP;
    while (width < 2 * visible) width *= 2;
    if (this.owner && this.strip.width >= width) return;
    this.strip.width = width;
    this.strip.height = Math.max(1, Math.round(this.height * this.dpr));
    this.ink = this.strip.getContext("2d");
    this.owner = new Float64Array(width).fill(-1);
    this.holes = new Uint8Array(width);
    this.hurry = true;
  }
  /* Paints what is in view and not in the strip yet; after the first picture only some milliseconds a frame. */
  paintMissing(steps) {
    const until = this.hurry ? Infinity : performance.now() + BUDGET_MS;
    let batch = [];
    const flush = () => {
      if (batch.length) this.paint(batch);
      batch = [];
    };
    for (const step of steps) {
      const x = this.slot(step);
      if (this.owner[x] === step) continue;
      if (batch.length === BATCH || (batch.length && x !== this.slot(batch.at(-1)) + 1)) {
        flush();
        if (performance.now() > until) {
          this.invalidate();
          break;
        }
      }
      batch.push(step);
    }
    flush();
    this.hurry = false;
  }
  paint(steps) {
    const img = this.ink.createImageData(steps.length, this.strip.height),
      px = new Uint32Array(img.data.buffer);
    px.fill(this.bg);
    steps.forEach((step, k) => {
      const x = this.slot(step);
      this.holes[x] = this.paintColumn(px, steps.length, k, step) ? 1 : 0;
      this.owner[x] = step;
    });
    this.ink.putImageData(img, this.slot(steps[0]), 0);
  }
  /* Returns whether a row has no data there. */
  paintColumn(px, stride, x, step) {
    const column = this.cells.columns.get(step),
      { table, scale, least, bg, edgesY } = this,
      mine = column.values,
      rows = this.rows;
    let hole = false;
    for (let i = 0; i < rows.length; i++) {
      const row = rows[i],
        values = row.cells ? row.cells.columns.get(step)?.values : mine;
      const v = !values ? NaN : row.src.length === 1 ? values[row.src[0]] : worstOf(values, row.src, least);
      let p = 0; // transparent: the hatch shows through
      if (v === v) {
        p = shade(scale, table, v);
        if (column.veiled) p = this.veiledColour(p);
      } else hole = true;
      const y1 = edgesY[2 * i + 1];
      for (let y = edgesY[2 * i]; y < y1; y++) px[y * stride + x] = p;
      if (row.open && row.h >= 6) px[(y1 - 1) * stride + x] = bg; // a hairline between the ranks of an opened node
    }
    return hole;
  }
  veiledColour(p) {
    const v = this.veil,
      a = v[3],
      mix = s => Math.round(((p >>> s) & 255) * (1 - a) + v[s / 8] * a);
    return (0xff000000 | (mix(16) << 16) | (mix(8) << 8) | mix(0)) >>> 0;
  }

  /* ---- a frame ---- */
  invalidate() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }
  x(u) {
    return ((u - this.view.from) / (this.view.to - this.view.from)) * this.width;
  }
  unitAt(x) {
    return this.view.from + (x / this.width) * (this.view.to - this.view.from);
  }
  span(step) {
    return this.axis.edges(step).map(u => this.x(u));
  }

  draw() {
    const ctx = this.plot.getContext("2d"),
      { dpr, width } = this,
      W = this.plot.width,
      H = this.plot.height;
    if (this.tall) {
      const top = this.el.getBoundingClientRect().top;
      this.offset = Math.max(0, Math.min(this.height - this.shown, -top - OVERSCAN));
      this.plot.style.transform = `translateY(${this.offset}px)`;
    } else if (this.offset) {
      this.offset = 0;
      this.plot.style.transform = "";
    }
    const shown = this.inView();
    if (this.scale && this.height) {
      this.ready(shown.length);
      this.paintMissing(shown);
    }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.imageSmoothingEnabled = false;
    ctx.clearRect(0, 0, W, H);
    const oy = Math.round(this.offset * dpr),
      k = (width * dpr) / (this.view.to - this.view.from),
      X = u => (u - this.view.from) * k;
    if (this.axis.kind === "time") this.hatchBetween(ctx, X(this.axis.extent()[0]), X(this.axis.extent()[1]), W, H);
    for (const run of this.runs(shown)) {
      const x0 = X(run.from),
        x1 = X(run.to),
        one = (x1 - x0) / run.n;
      if (this.axis.kind === "step" && run.hole)
        this.hatchBetween(ctx, x0 + run.hole[0] * one, x0 + (run.hole[1] + 1) * one, W, H);
      ctx.drawImage(this.strip, run.x, oy, run.n, H, x0, 0, Math.max(x1 - x0, 0.5), H);
    }
    ctx.setTransform(dpr, 0, 0, dpr, 0, -this.offset * dpr);
    this.drawRedone(ctx, shown);
    this.drawMarks(ctx, shown);
    this.drawRules(ctx);
    if (this.cell) this.point(this.cell, false);
    this.onFrame?.(this.view);
  }
  hatchBetween(ctx, x0, x1, W, H) {
    const a = Math.max(0, Math.round(x0)),
      b = Math.min(W, Math.round(x1));
    if (b > a) {
      ctx.fillStyle = this.hatching(ctx);
      ctx.fillRect(a, 0, b - a, H);
    }
  }
  /* The loaded columns that the view touches. */
  inView() {
    const steps = this.cells.steps,
      { from, to } = this.view;
    if (this.axis.kind === "step")
      return steps.slice(lowerBound(steps, from - this.cells.width + 1e-9), lowerBound(steps, to));
    return steps.filter(step => {
      const [a, b] = this.axis.edges(step);
      return b > from && a < to;
    });
  }
  /* Stretches of painted columns that follow each other on the axis and in the strip, as {from, to} and {x, n}; `hole` = its first and last column with a cell without data. */
  runs(steps) {
    const joins = this.axis.kind === "step",
      out = [];
    for (const step of steps) {
      const x = this.owner ? this.slot(step) : 0,
        last = out.at(-1);
      if (!this.owner || this.owner[x] !== step) continue;
      const [from, to] = this.axis.edges(step);
      if (joins && last && from === last.to && x === last.x + last.n) {
        last.to = to;
        last.n++;
      } else out.push({ from, to, x, n: 1, hole: null });
      const run = out.at(-1);
      if (this.holes[x]) {
        if (run.hole) run.hole[1] = run.n - 1;
        else run.hole = [run.n - 1, run.n - 1];
      }
    }
    return out;
  }
  hatching(ctx) {
    if (this.hatch) return this.hatch;
    const n = Math.max(4, Math.round(4 * this.dpr)),
      tile = document.createElement("canvas");
    tile.width = tile.height = n;
    const t = tile.getContext("2d"),
      img = t.createImageData(n, n),
      px = new Uint32Array(img.data.buffer),
      ground = pack(rgba(css("--hatch-ground"))),
      dark = pack(rgba(css("--hatch-line")));
    for (let y = 0; y < n; y++) for (let x = 0; x < n; x++) px[y * n + x] = (x + y) % n === 0 ? dark : ground;
    t.putImageData(img, 0, 0);
    return (this.hatch = ctx.createPattern(tile, "repeat"));
  }
  /* Steps that a later attempt did again are dotted. */
  drawRedone(ctx, shown) {
    const columns = shown.filter(step => this.cells.columns.get(step).redone);
    if (!columns.length) return;
    ctx.fillStyle = this.colours?.ink2 || "black";
    for (const step of columns) {
      const [x0, x1] = this.span(step);
      for (let x = Math.ceil(Math.max(0, x0) / 6) * 6; x < Math.min(x1, this.width); x += 6)
        for (let y = 3; y < this.height; y += 6) ctx.fillRect(x, y, 1, 1);
    }
  }
  /* A value that was not finite: its own mark, never a colour of the ramp. */
  drawMarks(ctx, shown) {
    ctx.strokeStyle = this.colours?.crit || "red";
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    for (const step of shown) {
      const marks = this.cells.columns.get(step)?.marks;
      if (!marks) continue;
      const [x0, x1] = this.span(step),
        x = (x0 + x1) / 2;
      if (x1 < 0 || x0 > this.width) continue;
      for (const [source] of marks) {
        const row = this.rowOf?.get(source);
        if (!row) continue;
        const y = row.y + row.h / 2,
          r = Math.max(2.5, Math.min(4, row.h / 2));
        ctx.moveTo(x - r, y - r);
        ctx.lineTo(x + r, y + r);
        ctx.moveTo(x + r, y - r);
        ctx.lineTo(x - r, y + r);
      }
    }
    ctx.stroke();
  }
  /* Attempt changes are vertical rules; evidence that a card points at is outlined. */
  drawRules(ctx) {
    ctx.fillStyle = this.colours?.ink2 || "black";
    for (const step of this.attemptStarts || []) {
      const x = Math.round(this.x(this.axis.at(step)));
      if (x > 0 && x < this.width) ctx.fillRect(x, 0, 1, this.height);
    }
    const e = this.evidence;
    if (!e) return;
    const rows = this.rows.filter(r => e.nodes.has(r.node));
    if (!rows.length) return;
    const x0 = Math.max(0, this.x(this.axis.at(e.from))),
      x1 = Math.min(this.width, this.x(this.axis.at(e.to))),
      y0 = rows[0].y,
      y1 = rows.at(-1).y + rows.at(-1).h;
    ctx.strokeStyle = this.colours?.ink || "black";
    ctx.lineWidth = 1;
    ctx.setLineDash([3, 2]);
    ctx.strokeRect(x0 + 0.5, y0 - 0.5, x1 - x0 - 1, y1 - y0);
    ctx.setLineDash([]);
  }

  /* ---- names at the left ---- */
  drawNames() {
    const ctx = this.names.getContext("2d"),
      { dpr, gutter: g } = this,
      sans = css("--sans"),
      ink = css("--ink"),
      ink2 = css("--ink-2"),
      ink3 = css("--ink-3");
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    ctx.clearRect(0, 0, g, this.height);
    ctx.textBaseline = "alphabetic";
    const text = (s, x, y, style, font, align = "left") => {
      ctx.fillStyle = style;
      ctx.font = font;
      ctx.textAlign = align;
      ctx.fillText(s, x, y);
    };
    for (const group of this.groups) {
      ctx.fillStyle = css("--rule-2");
      ctx.fillRect(g - 6, group.y0, 1, group.y1 - group.y0);
      const room = group.y1 - group.y0,
        tall = room > 30 && g > 90;
      if (room >= 10 && group.label) text(group.label, 0, group.y0 + Math.min(11, room), ink2, `500 11px ${sans}`);
      if (tall && group.sub) {
        ctx.font = `400 11px ${sans}`; // beside the ranks' numbers, never over them
        const fits = ctx.measureText(group.sub).width <= g - NUMBERS_WIDE;
        text(fits ? group.sub : group.few, 0, group.y0 + 25, ink3, ctx.font);
      }
      this.drawOpen(group, tall, text, { ink, ink3, sans });
    }
  }
  drawOpen(group, tall, text, { ink, ink3, sans }) {
    const ctx = this.names.getContext("2d"),
      g = this.gutter;
    let below = group.y0 + (tall ? 41 : 27);
    for (const r of group.rows)
      if (r.named && !r.open) text(r.label, g - 11, r.y + r.h / 2 + 3.5, ink3, `400 10px ${sans}`, "right");
    for (const node of new Set(group.rows.filter(r => r.open).map(r => r.node))) {
      const rows = group.rows.filter(r => r.open && r.node === node),
        y0 = rows[0].y,
        y1 = rows.at(-1).y + rows.at(-1).h;
      ctx.fillStyle = css(rows[0].suspect ? "--warn-mark" : "--rule-2");
      ctx.fillRect(g - 7, y0, 3, y1 - y0 - 1);
      const y = Math.max(below, y0 + 12);
      below = y + 12;
      ctx.font = `600 11px ${sans}`; // a name and the ranks' numbers stand beside each other: what is too long loses its beginning
      let name = node;
      while (name.length > 3 && ctx.measureText(name).width > g - NUMBERS_WIDE) name = `…${name.replace("…", "").slice(1)}`;
      for (const r of rows) if (r.h >= 9) text(r.label, g - 11, r.y + r.h - 2, ink3, `400 10px ${sans}`, "right");
      text(name, 0, y, ink, `600 11px ${sans}`);
    }
  }

  /* ---- pointing ---- */
  rowAt(y) {
    return this.rows.findIndex(r => y >= r.y && y < r.y + r.h);
  }
  columnAt(x) {
    return this.axis.column(this.unitAt(x));
  }
  /* cell = {row: index, step}; null lets go. A range is {from, to}, the first steps of its first and last column. */
  point(cell, tell = true) {
    this.cell = cell;
    const hide = !cell || !this.rows[cell.row];
    for (const d of [this.across, this.box]) d.hidden = hide;
    this.down.hidden = true;
    if (hide) {
      this.cell = null;
      if (tell) this.onPoint?.(null);
      return;
    }
    const row = this.rows[cell.row],
      [x0, x1] = this.span(cell.step).map(x => x + this.gutter),
      out = x1 <= this.gutter || x0 >= this.gutter + this.width;
    for (const d of [this.across, this.box]) d.hidden = out;
    this.across.style.transform = `translate(${this.gutter}px, ${Math.round(row.y + row.h / 2)}px)`;
    this.across.style.width = `${this.width}px`;
    Object.assign(this.box.style, {
      transform: `translate(${x0 - 2}px, ${row.y - 2}px)`,
      width: `${Math.max(x1 - x0, 3) + 4}px`,
      height: `${Math.max(row.h, 3) + 3}px`,
    });
    if (tell) this.onPoint?.({ ...cell, data: row, x: (x0 + x1) / 2, y: row.y, h: row.h, out });
  }
  select(range) {
    this.band.hidden = !range;
    if (!range) return;
    const a = this.gutter + Math.max(0, this.span(range.from)[0]),
      b = this.gutter + Math.min(this.width, this.span(range.to)[1]);
    Object.assign(this.band.style, {
      transform: `translateX(${a}px)`,
      width: `${Math.max(1, b - a)}px`,
      height: `${this.height}px`,
    });
  }
}
