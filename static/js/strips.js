/* Pace strips: one heatmap row of 48 cells of five minutes against the run's own best. data-cells is a JSON list: number, null (not running) or "none" (no data). */

import { css, ratioScale, rampTable, rgbText, shade } from "./ramp.js";

export function strips(root) {
  const table = rampTable(css("--ramp-ratio"));
  for (const el of root.querySelectorAll("canvas.strip[data-cells]")) draw(el, JSON.parse(el.dataset.cells), table);
  for (const el of root.querySelectorAll("[data-legend=ratio]"))
    import("./ramp.js").then(m => m.legendBar(el, ratioScale, ["0.7×", "own best", "1.4×"], 144));
}
function draw(el, cells, table) {
  const dpr = devicePixelRatio || 1,
    w = 144,
    h = 18,
    step = w / cells.length;
  el.width = w * dpr;
  el.height = h * dpr;
  const ctx = el.getContext("2d");
  ctx.scale(dpr, dpr);
  cells.forEach((v, i) => {
    const x = Math.round(i * step),
      x1 = Math.round((i + 1) * step);
    if (v === null) {
      ctx.fillStyle = css("--rule");
      ctx.fillRect(x, h - 1, x1 - x, 1);
      return;
    }
    if (v === "none") {
      ctx.fillStyle = css("--hatch-line");
      for (let a = x; a < x1; a++) for (let y = 0; y < h; y++) if ((a + y) % 4 === 0) ctx.fillRect(a, y, 1, 1);
      return;
    }
    ctx.fillStyle = rgbText(shade(ratioScale, table, v));
    ctx.fillRect(x, 0, x1 - x, h);
  });
}
