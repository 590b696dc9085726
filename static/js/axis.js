/* Where a column lies: on the step axis every step is equally wide, on the time axis stalls and gaps have their real width. */

export class StepAxis {
  constructor(cells) {
    this.cells = cells;
    this.kind = "step";
    this.least = 8;
  }
  edges(step) {
    return [step, step + this.cells.width];
  }
  at(step) {
    return step;
  }
  column(u) {
    const w = this.cells.width;
    return Math.floor(u / w) * w;
  }
  refresh() {}
  extent() {
    const c = this.cells;
    return c.steps.length ? [c.first, c.last + c.width] : [0, 1];
  }
}

const LIKELY = 0.5;
/* Times are milliseconds. A column ends when its step ended and began when the one before it ended, but a gap of more
   than three typical steps is drawn as a gap: nobody computed then. `open` = the attempt still runs, so the last gap grows. */
export class TimeAxis {
  constructor(cells, { open = false, now = () => Date.now() } = {}) {
    this.cells = cells;
    this.kind = "time";
    this.least = 4000;
    this.open = open;
    this.now = now;
    this.refresh();
  }
  refresh() {
    const known = this.cells.steps.filter(s => this.cells.columns.get(s).at);
    this.steps = known;
    this.ends = known.map(s => this.cells.columns.get(s).at);
    this.starts = [];
    const gaps = this.ends
        .slice(1)
        .map((e, i) => e - this.ends[i])
        .filter(g => g > 0)
        .sort((a, b) => a - b),
      usual = gaps[Math.floor(gaps.length * LIKELY)] || 1000;
    this.ends.forEach((end, i) => {
      const before = i ? this.ends[i - 1] : end - usual;
      this.starts.push(end - before > 3 * usual || end <= before ? end - usual : before);
    });
    this.place = new Map(known.map((s, i) => [s, i]));
  }
  edges(step) {
    const i = this.place.get(step);
    return i === undefined ? [NaN, NaN] : [this.starts[i], this.ends[i]];
  }
  index(u) {
    let lo = 0,
      hi = this.starts.length - 1;
    while (lo < hi) {
      const m = (lo + hi + 1) >> 1;
      if (this.starts[m] <= u) lo = m;
      else hi = m - 1;
    }
    return lo;
  }
  column(u) {
    return this.steps[this.index(u)] ?? 0;
  }
  at(step) {
    const w = this.cells.width,
      snapped = Math.floor(step / w) * w,
      i = this.place.get(snapped);
    return i === undefined ? NaN : this.starts[i] + ((step - snapped) / w) * (this.ends[i] - this.starts[i]);
  }
  extent() {
    return this.starts.length
      ? [this.starts[0], this.open ? Math.max(this.now(), this.ends.at(-1)) : this.ends.at(-1)]
      : [0, 1];
  }
}

/* A step for a moment, from the columns' ended_at: for marks that carry a time only. NaN when the columns do not tell. */
export function stepOfTime(cells, ms) {
  const steps = cells.steps,
    at = i => cells.columns.get(steps[i])?.at;
  if (!steps.length || !at(0) || !at(steps.length - 1)) return NaN;
  let lo = 0,
    hi = steps.length - 1;
  if (ms > at(hi)) return steps[hi] + cells.width;
  if (ms <= at(0)) {
    const n = Math.min(8, hi),
      pace = n ? (at(n) - at(0)) / (steps[n] - steps[0]) : 0;
    return pace > 0 ? steps[0] - (at(0) - ms) / pace : steps[0];
  }
  while (lo < hi - 1) {
    const m = (lo + hi) >> 1;
    if (at(m) < ms) lo = m;
    else hi = m;
  }
  const share = at(hi) > at(lo) ? (ms - at(lo)) / (at(hi) - at(lo)) : 0;
  return steps[lo] + cells.width + share * (steps[hi] - steps[lo]);
}
