/* One node's page: its gauges as charts. */
import { Chart, loadPlotly } from "./charts.js";

const READ_MS = 15000;

export async function start() {
  const charts = [...document.querySelectorAll("[data-chart]")].map(el => new Chart(el, el.dataset.chart));
  if (!charts.length) return;
  const Plotly = await loadPlotly(document.body.dataset.plotly).catch(() => null);
  if (!Plotly) {
    for (const c of charts)
      c.el.replaceChildren(
        Object.assign(document.createElement("p"), {
          className: "chart-off",
          textContent: "The chart's script did not load.",
        }),
      );
    return;
  }
  const all = async () => {
    await Promise.all(
      charts.map(async c => {
        await c.read().catch(() => null);
        if (c.figure) await c.draw(Plotly);
      }),
    );
  };
  await all();
  setInterval(() => document.hidden || all(), READ_MS);
  document.addEventListener("paceline:theme", () => charts.forEach(c => c.theme()));
  addEventListener("resize", () => charts.forEach(c => c.figure && c.draw(Plotly)));
}
