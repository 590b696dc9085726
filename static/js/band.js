/* Evidence of an incident as a small picture: the ranks that are blamed and their neighbours around the steps that say so. */

import { fetchCells } from "./cells.js";
import { css, linearScale, ratioScale, rampTable, rgbText, shade } from "./ramp.js";

const ROW = 9,
  NAMES = 30,
  READ_MS = 10000;
const kept = new Map(); // address -> {answer, at}: a part that is made again shows at once what was known

export function bands(root) {
  for (const el of root.querySelectorAll("[data-band]")) show(el, JSON.parse(el.dataset.band));
}
async function show(el, band) {
  const known = kept.get(band.url);
  if (known) draw(el, band, known.answer);
  if (known && Date.now() - known.at < READ_MS) return;
  kept.set(band.url, { answer: known?.answer, at: Date.now() });
  const answer = (await fetchCells(band.url).catch(() => null)) || known?.answer;
  kept.set(band.url, { answer, at: Date.now() });
  if (el.isConnected) draw(el, band, answer);
  else bands(document);
}
function draw(el, band, answer) {
  if (!answer?.steps.length || !answer.rows.length) return;
  el.hidden = false;
  const canvas = el.querySelector("canvas"),
    dpr = devicePixelRatio || 1,
    width = el.clientWidth,
    rows = answer.rows.length,
    columns = answer.steps.length,
    height = rows * ROW;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * dpr);
  canvas.height = Math.round(height * dpr);
  const ctx = canvas.getContext("2d");
  ctx.scale(dpr, dpr);
  const known = answer.cells.filter(v => Number.isFinite(v)),
    scale = band.relative === "none" ? linearScale(Math.min(...known), Math.max(...known)) : ratioScale,
    table = rampTable(css(scale.ramp)),
    at = c => NAMES + Math.round((c * (width - NAMES)) / columns);
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) {
      const v = answer.cells[r * columns + c];
      ctx.fillStyle = Number.isFinite(v) ? rgbText(shade(scale, table, v)) : css("--sunken");
      ctx.fillRect(at(c), r * ROW, at(c + 1) - at(c), ROW - 1);
    }
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  answer.rows.forEach(({ ranks }, r) => {
    const blamed = band.ranks.includes(ranks[0]);
    ctx.font = `${blamed ? 600 : 400} 9px ${css("--sans")}`;
    ctx.fillStyle = css(blamed ? "--ink" : "--ink-3");
    ctx.fillText(String(ranks[0]), NAMES - 6, r * ROW + ROW / 2);
    if (!blamed) return;
    ctx.fillStyle = css("--warn-mark");
    ctx.fillRect(NAMES - 4, r * ROW, 2, ROW - 1);
  });
  const onset = answer.steps.findIndex(step => step >= band.since);
  if (onset > 0) {
    ctx.fillStyle = css("--cross");
    ctx.fillRect(at(onset), 0, 1, height);
  }
  const [first, last] = el.querySelectorAll("[data-edge]");
  first.textContent = answer.steps[0].toLocaleString("en");
  last.textContent = answer.steps.at(-1).toLocaleString("en");
}
