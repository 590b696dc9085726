/* Cells of one picture: rows × columns of float32, kept by column so that new columns and late values are cheap to merge. */

const ALIGN = 8;

/* The binary answer: u32 LE length, JSON without cells, padding to 8 bytes, row-major float32 LE. */
export function readAnswer(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / ALIGN) * ALIGN;
  head.cells = new Float32Array(buffer, start, head.rows.length * head.steps.length);
  return head;
}

export class ReadError extends Error {
  constructor(body, status) {
    super(body?.error?.message || `The server answered ${status}.`);
    this.body = body;
    this.status = status;
  }
}

/* Reads a heatmap address; null when nothing changed since the tag that was seen last. */
const tags = new Map();
export async function fetchCells(url, { signal } = {}) {
  const seen = tags.get(url),
    headers = { Accept: "application/octet-stream" };
  if (seen) headers["If-None-Match"] = seen;
  const answer = await fetch(url, { headers, signal, credentials: "same-origin", cache: "no-store" });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new ReadError(await answer.json().catch(() => null), answer.status);
  if (tags.size > 64) tags.clear();
  if (answer.headers.get("ETag")) tags.set(url, answer.headers.get("ETag"));
  return readAnswer(await answer.arrayBuffer());
}
export const forgetTags = () => tags.clear();

const rowsKey = head =>
  head.rows.map(r => r.ranks.join("-")).join() + "/" + head.steps_per_column + "/" + head.pooled?.rows;

/* One column; its values are taken out of the row-major answer when they are first needed, so that a large answer costs no frame. */
class Column {
  constructor(step, cells, offset, stride, rows, more) {
    Object.assign(this, more);
    this.step = step;
    this.from = { cells, offset, stride, rows };
    this.marks = null;
  }
  get values() {
    if (!this.taken) {
      const { cells, offset, stride, rows } = this.from,
        out = new Float32Array(rows);
      for (let r = 0, i = offset; r < rows; r++, i += stride) out[r] = cells[i];
      this.taken = out;
      this.from = null;
    }
    return this.taken;
  }
}

export class Cells {
  /* head: the newest answer without cells; columns: step -> {step, values, at}; marks: "row:step" -> which */
  constructor() {
    this.clear();
  }
  clear() {
    this.head = null;
    this.key = "";
    this.columns = new Map();
    this.marks = new Map();
    this.steps = [];
    this.edge = null;
  }

  /* Merges an answer. Returns "new" when the layout changed, else the steps that changed. */
  merge(answer) {
    const key = rowsKey(answer);
    let changed = [];
    if (key !== this.key) {
      this.clear();
      this.key = key;
      changed = "new";
    }
    this.head = { ...answer, cells: undefined };
    const C = answer.steps.length,
      R = answer.rows.length,
      veiled = new Set(answer.veiled || []),
      redone = new Set(answer.redone || []);
    answer.steps.forEach((step, c) => {
      this.columns.set(
        step,
        new Column(step, answer.cells, c, C, R, {
          at: answer.ended_at?.[c] ?? null,
          veiled: veiled.has(c),
          redone: redone.has(c),
          attempt: answer.attempts?.[c] ?? null,
        }),
      );
      if (changed !== "new") changed.push(step);
    });
    for (const [row, column, which] of answer.flags || []) {
      const at = this.columns.get(answer.steps[column]);
      if (at) (at.marks ||= []).push([row, which]);
    }
    this.steps = [...this.columns.keys()].sort((a, b) => a - b);
    return changed;
  }
  /* Lets go of columns far outside [from, to). */
  trim(from, to, most = 8192) {
    if (this.steps.length <= most) return false;
    for (const step of this.steps) if (step < from || step >= to) this.columns.delete(step);
    this.steps = this.steps.filter(step => this.columns.has(step));
    return true;
  }
  get width() {
    return this.head?.steps_per_column || 1;
  }
  value(row, step) {
    const at = this.columns.get(step);
    return at ? at.values[row] : NaN;
  }
  /* Index of the column that holds `step`, or -1. */
  find(step) {
    const snapped = Math.floor(step / this.width) * this.width;
    return this.columns.has(snapped) ? this.steps.indexOf(snapped) : -1;
  }
  /* Steps at which another attempt goes on. */
  get attemptStarts() {
    let last = null;
    const out = [];
    for (const s of this.steps) {
      const a = this.columns.get(s).attempt;
      if (last !== null && a !== null && a !== last) out.push(s);
      last = a ?? last;
    }
    return out;
  }
  get first() {
    return this.steps[0];
  }
  get last() {
    return this.steps.at(-1);
  }
}

export const median = values => {
  const s = values.filter(v => !Number.isNaN(v)).sort((a, b) => a - b);
  return s.length ? (s[(s.length - 1) >> 1] + s[s.length >> 1]) / 2 : NaN;
};
export function worstOf(values, rows, least) {
  let worst = NaN;
  for (const r of rows) {
    const v = values[r];
    if (v === v && !(least ? worst <= v : worst >= v)) worst = v;
  }
  return worst;
}
