/* What a reader looks at, in the address: replaced while moving, pushed on a deliberate choice. */

const PLAIN = { metric: "metric", mode: "mode", rows: "rows", order: "order", axis: "axis", range: "range" };

export class HeatState {
  constructor(defaults) {
    this.defaults = defaults;
    this.read();
  }
  read() {
    const q = new URLSearchParams(location.search),
      d = this.defaults;
    for (const [name, key] of Object.entries(PLAIN)) this[name] = q.get(key) || d[name];
    this.open = new Set(q.has("open") ? q.get("open").split(",").filter(Boolean) : d.open);
    this.steps = /^\d+-\d+$/.test(q.get("steps") || "") ? q.get("steps").split("-").map(Number) : null;
    this.times = /^\d+-\d+$/.test(q.get("times") || "") ? q.get("times").split("-").map(Number) : null;
    const cell = /^(\d+)\.(\d+)$/.exec(q.get("cell") || "");
    this.cell = cell ? { rank: Number(cell[1]), step: Number(cell[2]) } : null;
    const seen = /^(\d+)-(\d+)$/.exec(q.get("evidence") || "");
    this.evidence = seen ? { from: Number(seen[1]), to: Number(seen[2]) + 1, nodes: this.open } : null;
    this.redone = q.get("redone") === "1";
  }
  address() {
    const q = new URLSearchParams(location.search),
      d = this.defaults;
    const set = (key, value, plain) =>
      value === null || value === undefined || value === plain || value === "" ? q.delete(key) : q.set(key, value);
    for (const [name, key] of Object.entries(PLAIN)) set(key, this[name], d[name]);
    const open = [...this.open].sort().join(","),
      usual = [...d.open].sort().join(",");
    if (open === usual) q.delete("open");
    else q.set("open", open);
    set("steps", this.steps && this.steps.map(Math.round).join("-"));
    set("times", this.times && this.times.map(Math.round).join("-"));
    set("cell", this.cell && `${this.cell.rank}.${this.cell.step}`);
    set("redone", this.redone ? "1" : null);
    const text = q.toString().replaceAll("%2C", ",");
    return location.pathname + (text ? `?${text}` : "") + location.hash;
  }
  save(deliberate) {
    const to = this.address(),
      here = location.pathname + location.search + location.hash;
    if (to === here) return;
    if (deliberate) {
      history.pushState(null, "", to);
      return;
    }
    clearTimeout(this.timer); // browsers limit how often an address may change
    this.timer = setTimeout(() => history.replaceState(null, "", this.address()), 250);
  }
}
