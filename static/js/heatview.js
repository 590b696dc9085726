/* Brings the cells that the view needs: by range with ETag, new columns by cursor. The old picture stays while a range loads. */

import { Cells, fetchCells, forgetTags } from "./cells.js";
import { Heatmap } from "./heatmap.js";
import { HeatInput } from "./heatinput.js";
import { StepAxis, TimeAxis } from "./axis.js";
import { countRanks, layoutRows, openKey } from "./heatrows.js";
import { linearScale, ratioScale } from "./ramp.js";
import { serverNow } from "./times.js";

const MANY = 1024,
  ROWS_POOLED = 512,
  ROWS_ALL = 4096,
  AHEAD = 0.5,
  QUIET_MS = 120,
  LIVE_MS = 400,
  SWEEP_MS = 8000;

export class HeatView {
  /* config: see run.js. hooks: onPoint(cell), onFrame(view), onState(), onError(error), onSelect(range) */
  constructor(el, config, state, hooks) {
    Object.assign(this, { config, state, hooks });
    this.cells = new Cells();
    this.details = new Map();
    this.asking = 0;
    this.heat = new Heatmap(el, this.cells, { gutter: this.gutter() });
    this.heat.onPoint = cell => hooks.onPoint(cell);
    this.heat.onFrame = view => hooks.onFrame(view);
    this.input = new HeatInput(this.heat, {
      onView: (view, deliberate) => this.look(view, { deliberate }),
      onOpen: row => this.toggle(row),
      onNode: (row, step) => hooks.onNode(row, step),
      onSelect: range => {
        this.heat.select(range);
        hooks.onSelect(range);
      },
      onPin: pinned => this.pin(pinned),
      keys: hooks.keys || {},
    });
    this.following = !state.steps && !state.times;
  }
  gutter() {
    return this.config.box().clientWidth < 820 ? 76 : 96;
  }
  get metric() {
    return this.config.metrics.find(m => m.name === this.state.metric) || this.config.metrics[0];
  }
  get least() {
    return this.metric.worst === "min";
  }
  get wanted() {
    return this.state.range === "240" ? this.config.columns : Math.max(120, Math.floor(this.heat.width));
  }
  get beginning() {
    return this.state.range === "attempt" ? (this.config.first_step ?? 0) : 0;
  }
  get whole() {
    return this.state.range !== "240";
  }
  /* The newest attempt's picture goes on to the left into those before it: a restart does not wipe out what led to it. */
  get joined() {
    return this.state.range === "run" || (this.state.range === "240" && this.config.stitched) || !this.config.attempt;
  }

  /* ---- addresses ---- */
  url({ from, to, columns, since, ranks } = {}) {
    const s = this.state,
      c = this.config,
      q = new URLSearchParams({ metric: this.metric.name, relative: s.mode, order: s.order, pool: "worst" });
    q.set("rows", String(ranks ? ROWS_ALL : this.rowsAsked()));
    q.set("columns", String(columns || this.wanted));
    if (ranks) q.set("ranks", ranks);
    if (from !== undefined) q.set("from", String(Math.max(0, Math.floor(from))));
    if (to !== undefined) q.set("to", String(Math.ceil(to)));
    if (since) q.set("since", since);
    if (s.redone) q.set("redone", "1");
    const base = this.joined ? `${c.api}runs/${c.run}/heatmap` : `${c.api}attempts/${c.attempt.id}/heatmap`;
    return `${base}?${q}`;
  }
  rowsAsked() {
    const world = this.config.world_size;
    if (this.state.rows === "ranks" || world <= MANY) return Math.min(world, ROWS_ALL);
    return Math.min(ROWS_POOLED, Math.ceil(world / this.config.gpus_per_node));
  }

  /* ---- first picture, and again after a choice that changes the answer ---- */
  async load({ keepView = false } = {}) {
    const token = ++this.asking,
      s = this.state;
    forgetTags();
    const range =
      keepView && this.heat.axis.kind === "step" && !this.following
        ? this.heat.view
        : s.steps && { from: s.steps[0], to: s.steps[1] };
    this.busy(true);
    try {
      // The whole attempt or run: an explicit `from` asks for a pooled picture instead of the newest columns.
      const answer = await fetchCells(
        this.url(
          range
            ? { from: range.from, to: range.to, columns: Math.max(120, Math.floor(this.heat.width)) }
            : this.whole
              ? { from: this.beginning }
              : {},
        ),
      );
      if (token !== this.asking || !answer) return;
      this.cells.clear();
      this.details.clear();
      this.cells.merge(answer);
      this.cursor = answer.cursor;
      this.known(answer);
      this.applyScale();
      this.applyAxis();
      this.layout();
      if (range) this.place(range);
      else this.follow();
      this.restoreCell();
      await this.detail();
      this.hooks.onState();
    } catch (error) {
      if (token === this.asking) this.hooks.onError(error);
    } finally {
      if (token === this.asking) this.busy(false);
    }
  }
  known(answer) {
    const c = this.config;
    if (answer.first_step !== null && answer.first_step !== undefined) c.first_step = answer.first_step;
    if (answer.last_step !== null && answer.last_step !== undefined)
      c.last_step = Math.max(c.last_step ?? 0, answer.last_step);
    this.heat.attemptStarts = this.cells.attemptStarts;
  }
  busy(on) {
    clearTimeout(this.slow);
    if (!on) {
      this.heat.progress.hidden = true;
      return;
    }
    this.slow = setTimeout(() => {
      this.heat.progress.hidden = false;
    }, 150);
  }
  applyScale() {
    const ratio = this.state.mode !== "none";
    this.heat.setScale(ratio ? ratioScale : linearScale(...this.bounds()), this.least);
  }
  /* p1 to max of what is drawn; columns next to a checkpoint or a resume do not stretch it. */
  bounds() {
    const all = [];
    for (const column of this.cells.columns.values())
      if (!column.veiled)
        for (let i = 0; i < column.values.length; i += 1 + (column.values.length >> 9)) {
          const v = column.values[i];
          if (v === v) all.push(v);
        }
    if (!all.length) return [0, 1];
    all.sort((a, b) => a - b);
    const lo = all[Math.floor(all.length * 0.01)],
      hi = all.at(-1);
    return hi > lo ? [lo, hi] : [lo - 0.5, lo + 0.5];
  }
  applyAxis() {
    const open = this.config.attempt?.state === "OPEN";
    this.heat.axis =
      this.state.axis === "time"
        ? new TimeAxis(this.cells, { open, now: () => +serverNow() })
        : new StepAxis(this.cells);
  }
  layout() {
    const head = this.cells.head;
    if (!head) return;
    this.heat.gutter = this.gutter();
    this.heat.setRows(
      layoutRows(
        head,
        { rows: this.state.rows, open: this.state.open, suspects: this.config.suspects, order: this.state.order },
        this.details,
      ),
    );
  }
  /* Opened nodes of a pooled picture: their single ranks come in an answer of their own, on the same columns. */
  async detail() {
    const head = this.cells.head;
    if (!head || (head.pooled?.rows || 1) <= 1) return;
    for (const node of this.state.open) {
      const rows = head.rows.filter(r => openKey(r) === node);
      if (this.details.has(node) || !rows.length) continue;
      const ranks = rows.map(r => `${r.ranks[0]}-${r.ranks[1]}`).join(",");
      const answer = await fetchCells(
        this.url({
          ranks,
          from: this.cells.first,
          to: this.cells.last + this.cells.width,
          columns: this.cells.steps.length,
        }),
      ).catch(() => null);
      if (!answer) continue;
      const cells = new Cells();
      cells.merge(answer);
      this.details.set(node, cells);
      this.layout();
    }
  }

  /* ---- moving ---- */
  follow() {
    this.following = true;
    this.heat.axis.refresh();
    const [first, last] = this.heat.axis.extent();
    if (this.whole) {
      this.place({ from: first, to: last });
      return;
    }
    const span = this.heat.axis.kind === "step" ? this.wanted * this.cells.width : last - first;
    this.place({ from: Math.min(last - span, Math.max(first, last - span)), to: last });
  }
  place(view) {
    this.heat.view = { from: view.from, to: Math.max(view.to, view.from + this.heat.axis.least) };
    this.heat.invalidate();
  }
  look(view, { deliberate = false } = {}) {
    const [, last] = this.heat.axis.extent(),
      step = this.heat.axis.kind === "step";
    if (view.from < 0 && step) view = { from: 0, to: view.to - view.from };
    const beyond = view.to - last,
      span = view.to - view.from;
    if (beyond > span / 2) view = { from: view.from - beyond + span / 2, to: view.to - beyond + span / 2 };
    this.following =
      view.to >= last && Math.abs(span - (this.heat.view.to - this.heat.view.from)) < 1e-6 && this.following;
    this.place(view);
    this.state[step ? "steps" : "times"] = this.following ? null : [view.from, view.to];
    this.state.save(deliberate);
    this.hooks.onState();
    clearTimeout(this.settle);
    this.settle = setTimeout(() => this.bring(), QUIET_MS);
    this.bringSoon();
  }
  /* While moving, the next stretch is asked for before its edge is reached. */
  bringSoon() {
    if (!this.bringing && this.heat.axis.kind === "step") this.bring();
  }
  async bring() {
    if (this.bringing || this.heat.axis.kind !== "step" || !this.cells.steps.length) return;
    const { from, to } = this.heat.view,
      span = to - from,
      most = Math.max(64, Math.floor(this.heat.width));
    let width = 1;
    while (span / width > most) width *= 2;
    const level = width !== this.cells.width,
      first = this.cells.first,
      last = this.cells.last + this.cells.width,
      lo = Math.max(0, from - AHEAD * span),
      hi = to + AHEAD * span;
    const ask = level
      ? { from: lo, to: hi }
      : lo < first && first > (this.config.first_step ?? 0)
        ? { from: Math.max(0, first - span), to: first }
        : hi > last && !this.caughtUp(last)
          ? { from: last, to: last + span }
          : null;
    if (!ask) return;
    this.bringing = true;
    this.busy(true);
    try {
      const answer = await fetchCells(
        this.url({ ...ask, columns: Math.max(1, Math.ceil((ask.to - ask.from) / width)) }),
      );
      if (answer?.steps.length) {
        const changed = this.cells.merge(answer);
        this.known(answer);
        this.take(changed);
        if (level) {
          this.details.clear();
          this.detail();
        }
      } else this.emptyAt = { ...ask };
    } catch (error) {
      this.hooks.onError(error);
    } finally {
      this.bringing = false;
      this.busy(false);
    }
  }
  caughtUp(last) {
    return (
      (this.config.last_step !== null && last > this.config.last_step) || (this.emptyAt && this.emptyAt.from >= last)
    );
  }
  take(changed) {
    if (changed === "new") this.layout();
    else {
      this.heat.axis.refresh();
      this.heat.update(changed);
    }
    if (
      this.cells.trim(
        this.heat.view.from - 4 * this.wanted * this.cells.width,
        this.heat.view.to + 4 * this.wanted * this.cells.width,
      )
    )
      this.heat.repaint();
    this.hooks.onFrame(this.heat.view);
  }

  /* ---- live ---- */
  live(feed) {
    feed
      ?.on("series", () => this.changed())
      .on("tick", () => {
        if (Date.now() - (this.readAt || 0) > SWEEP_MS && this.config.attempt?.state === "OPEN") this.changed();
      });
  }
  changed() {
    this.due = true;
    this.liveTimer ||= setTimeout(
      () => {
        this.liveTimer = 0;
        this.newer();
      },
      Math.max(0, LIVE_MS - (Date.now() - (this.readAt || 0))),
    );
  }
  async newer() {
    if (!this.due || this.reading || !this.cells.head) return;
    this.due = false;
    this.reading = true;
    this.readAt = Date.now();
    try {
      const answer = await fetchCells(
        this.url({ since: this.cursor, ...(this.whole ? { from: this.beginning } : {}) }),
      );
      if (!answer) return;
      this.cursor = answer.cursor;
      // A new attempt has begun before where the old one went: what was done past it is no part of the picture now.
      if (answer.last_step !== null && answer.last_step < this.cells.last) {
        this.config.last_step = answer.last_step;
        this.load({ keepView: true });
        return;
      }
      this.known(answer);
      if (!answer.steps.length) return;
      this.emptyAt = null;
      if (answer.steps_per_column !== this.cells.width && !this.following) return;
      const changed = this.cells.merge(answer);
      this.take(changed);
      if (this.following) this.follow();
      this.hooks.onState();
    } catch (error) {
      this.hooks.onError(error);
    } finally {
      this.reading = false;
      if (this.due) this.changed();
    }
  }
  get behind() {
    return Math.max(
      0,
      this.cells.steps.length
        ? (this.config.last_step ?? this.cells.last) +
            1 -
            Math.round(this.heat.axis.kind === "step" ? this.heat.view.to : this.cells.last + this.cells.width)
        : 0,
    );
  }

  /* ---- choices ---- */
  toggle(row) {
    const node = row.node;
    if (!node) return;
    if (this.state.open.has(node)) {
      this.state.open.delete(node);
      this.details.delete(node);
    } else this.state.open.add(node);
    this.state.save(true);
    this.layout();
    this.detail();
    this.hooks.onState();
  }
  set(name, value) {
    const s = this.state;
    if (s[name] === value) return;
    s[name] = value;
    if (name === "range") {
      s.steps = s.times = null;
      this.following = true;
    }
    s.save(true);
    if (name === "axis") {
      s.steps = s.times = null;
      this.following = true;
      this.applyAxis();
      this.follow();
      this.hooks.onState();
      return;
    }
    if (name === "rows" && this.rowsAsked() === this.asked) {
      this.layout();
      this.hooks.onState();
      return;
    }
    this.asked = this.rowsAsked();
    this.load({ keepView: name !== "range" });
  }
  pin(pinned) {
    const cell = this.heat.cell,
      row = cell && this.heat.rows[cell.row];
    this.state.cell = pinned && row ? { rank: row.ranks[0][0], step: cell.step } : null;
    this.state.save(true);
  }
  restoreCell() {
    const want = this.state.cell;
    if (!want) return;
    const holds = r => r.ranks.some(([a, b]) => want.rank >= a && want.rank <= b),
      rows = this.heat.rows.filter(holds);
    if (!rows.length) return;
    const row = rows.sort((a, b) => countRanks(a) - countRanks(b))[0];
    this.heat.pinned = true;
    this.heat.point({
      row: this.heat.rows.indexOf(row),
      step: Math.floor(want.step / this.cells.width) * this.cells.width,
    });
  }
  resize() {
    this.layout();
    if (this.following) this.follow();
  }
}
