/* Plotly figures: built in Python, drawn here with the tokens of the theme, extended live. Plotly's script is loaded after the first heatmap. */

import { css } from "./ramp.js";
import { zone } from "./times.js";

let plotly;
export function loadPlotly(address) {
  return (plotly ||= new Promise((done, fail) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = () => done(window.Plotly);
    script.onerror = () => fail(new Error("Plotly's script did not load"));
    document.head.append(script);
  }));
}
/* Figures name tokens, "var(--ink)"; Plotly wants colours. */
function resolve(value) {
  if (typeof value === "string") return value.startsWith("var(") ? css(value.slice(4, -1)) : value;
  if (Array.isArray(value)) return value.map(resolve);
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolve(v)]));
  return value;
}
/* Dates stand in UTC in a figure; Plotly draws them as they are written, so they are written in the reader's zone. */
const two = n => String(n).padStart(2, "0");
const written = iso => {
  if (typeof iso !== "string") return iso;
  const d = new Date(iso);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}.${String(d.getMilliseconds()).padStart(3, "0")}`;
};
const inZone = data =>
  zone() === "utc"
    ? data
    : data.map(trace =>
        Array.isArray(trace.x) && typeof trace.x.find(v => v !== null) === "string"
          ? { ...trace, x: trace.x.map(written) }
          : trace,
      );
const OPTIONS = { displayModeBar: false, responsive: false, doubleClick: "reset", showTips: false };

export class Chart {
  constructor(el, url) {
    this.el = el;
    this.url = url;
  }
  async read(query = "") {
    const answer = await fetch(this.url + query, { credentials: "same-origin" });
    if (!answer.ok) throw new Error(`The figure could not be read (${answer.status}).`);
    this.figure = await answer.json();
    return this.figure;
  }
  async draw(Plotly) {
    this.Plotly = Plotly;
    const { data, layout } = this.figure;
    this.el.querySelector(".chart-off")?.remove();
    await Plotly.react(
      this.el,
      resolve(inZone(data)),
      { ...resolve(layout), width: this.el.clientWidth || undefined, ...this.fixed },
      OPTIONS,
    );
  }
  theme() {
    if (this.Plotly && this.figure) this.draw(this.Plotly);
  }
}

const FOLLOW_MS = 120,
  READ_MS = 1500,
  SLOW_MS = 10000; // the strip follows the steps, charts of the whole run take their time
export class Charts {
  /* config.charts: {name: url}, config.plotly: address of the script */
  constructor(config, strip) {
    this.config = config;
    this.strip = config.charts?.steptime ? new Chart(strip, config.charts.steptime) : null;
    this.more = [...document.querySelectorAll("[data-chart]")].map(el => new Chart(el, el.dataset.chart));
    if (!this.strip) strip.hidden = true;
  }
  get all() {
    return [this.strip, ...this.more].filter(Boolean);
  }
  async begin(view) {
    this.view = view;
    if (!this.all.length || !this.config.plotly) return;
    this.reading = true;
    const asked = this.all.map(chart => this.ask(chart)); // while the script loads: it takes longer than the figures
    this.Plotly = await loadPlotly(this.config.plotly).catch(() => null);
    if (!this.Plotly) {
      for (const chart of this.all)
        chart.el.replaceChildren(
          Object.assign(document.createElement("p"), {
            className: "chart-off",
            textContent: "The chart's script did not load.",
          }),
        );
      return;
    }
    await this.show(asked);
  }
  /* Asks for a chart's figure; what went wrong is told where it is drawn. */
  ask(chart) {
    chart.readAt = Date.now();
    const answer = chart.read(chart === this.strip ? this.query() : "");
    answer.catch(() => null);
    return { chart, answer };
  }
  async readAll() {
    if (!this.Plotly || this.reading) {
      this.again = Boolean(this.reading);
      return;
    }
    const due = this.all.filter(chart => chart === this.strip || Date.now() - (chart.readAt || 0) > SLOW_MS);
    this.reading = true;
    await this.show(due.map(chart => this.ask(chart)));
  }
  /* Each chart is drawn as soon as its figure is there. */
  async show(asked) {
    this.readAt = Date.now();
    const draw = async ({ chart, answer }) => {
      await answer;
      if (chart === this.strip) this.fit();
      await chart.draw(this.Plotly);
    };
    for (const told of await Promise.allSettled(asked.map(draw)))
      if (told.status === "rejected") console.warn(told.reason.message);
    this.reading = false;
    if (this.again) {
      this.again = false;
      this.changed();
    }
  }
  /* Another attempt: the strip is read from another address, and the charts of the run have a new line. */
  another() {
    this.drawn = null;
    if (this.strip) this.strip.url = this.config.charts.steptime;
    for (const chart of this.all) chart.readAt = 0;
    this.again ||= Boolean(this.reading); // what is on its way is of the attempt before
    this.changed();
  }
  query() {
    const v = this.view,
      cells = v.cells,
      q = new URLSearchParams({
        columns: String(Math.max(60, Math.floor(v.heat.width))),
        range: v.joined ? "run" : v.state.range,
        axis: v.state.axis,
      });
    if (cells.steps.length) {
      q.set("from", String(cells.first));
      q.set("to", String(cells.last + cells.width));
    }
    return (this.strip.url.includes("?") ? "&" : "?") + q;
  }
  /* The strip's plot area is exactly the heatmap's: the same gutter at the left, nothing at the right. */
  fit() {
    const { heat } = this.view;
    this.strip.fixed = {
      margin: { l: heat.gutter, r: 0, t: 4, b: 6 },
      height: 62,
      xaxis: { ...resolve(this.strip.figure.layout.xaxis), range: this.range(heat.view), autorange: false },
    };
  }
  range(view) {
    return this.view.heat.axis.kind === "time"
      ? [view.from, view.to].map(ms =>
          zone() === "utc" ? new Date(ms).toISOString() : written(new Date(ms).toISOString()),
        )
      : [view.from, view.to];
  }
  follow(view) {
    if (!this.Plotly || !this.strip?.figure) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      const { heat, cells } = view,
        drawn = this.drawn || [Infinity, -Infinity];
      if (heat.axis.kind !== this.kind || cells.first < drawn[0] || cells.last > drawn[1]) {
        this.kind = heat.axis.kind;
        this.drawn = [cells.first, cells.last];
        await this.strip.read(this.query()).catch(() => null);
        this.fit();
        await this.strip.draw(this.Plotly);
        return;
      }
      this.Plotly.relayout(this.strip.el, { "xaxis.range": this.range(heat.view) });
    }, FOLLOW_MS);
  }
  changed() {
    if (this.Plotly)
      this.due ||= setTimeout(
        () => {
          this.due = 0;
          this.readAll();
        },
        Math.max(200, READ_MS - (Date.now() - (this.readAt || 0))),
      );
  }
  theme() {
    for (const chart of this.all) {
      if (chart === this.strip && chart.figure) this.fit();
      chart.theme();
    }
  }
  resize() {
    if (!this.Plotly) return;
    if (this.strip?.figure) this.fit();
    for (const chart of this.all) if (chart.figure) chart.draw(this.Plotly);
  }
}
