/* Colour tables and scales. A ramp in paceline.css becomes 256 packed colours, mixed in OKLab so that equal steps look equal. */

export const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const linear = v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const gamma = v =>
  Math.round(255 * Math.min(1, Math.max(0, v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055)));

function toLab(hex) {
  const [r, g, b] = [1, 3, 5].map(i => linear(parseInt(hex.slice(i, i + 2), 16) / 255));
  const [l, m, s] = [
    0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
    0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
    0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
  ].map(Math.cbrt);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function toRgb([L, a, b]) {
  const [l, m, s] = [
    L + 0.3963377774 * a + 0.2158037573 * b,
    L - 0.1055613458 * a - 0.0638541728 * b,
    L - 0.0894841775 * a - 1.291485548 * b,
  ].map(v => v ** 3);
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map(gamma);
}

export const pack = ([r, g, b]) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;

const tables = new Map();
/* "#a,#b,..." to 256 packed colours; remembered by its text, so a theme has its own. */
export function rampTable(list) {
  if (tables.has(list)) return tables.get(list);
  const stops = list.split(",").map(hex => toLab(hex.trim())),
    out = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const p = (i / 255) * (stops.length - 1),
      k = Math.min(stops.length - 2, Math.floor(p)),
      t = p - k;
    out[i] = pack(toRgb(stops[k].map((v, j) => v + (stops[k + 1][j] - v) * t)));
  }
  tables.set(list, out);
  return out;
}

/* "#rrggbb" or "rgba(...)" to [r, g, b, a]. */
export function rgba(text) {
  if (text[0] === "#") return [1, 3, 5].map(i => parseInt(text.slice(i, i + 2), 16)).concat(1);
  const parts = text.match(/[\d.]+/g).map(Number);
  return parts.length === 3 ? parts.concat(1) : parts;
}
export const rgbText = packed => `rgb(${packed & 255},${(packed >>> 8) & 255},${(packed >>> 16) & 255})`;

const SPAN = Math.log(1.4),
  DEAD = 0.012;
/* Ratios: logarithmic around 1 with a dead zone, so that noise stays quiet; ends clip. */
export const ratioScale = {
  lo: 1 / 1.4,
  hi: 1.4,
  ramp: "--ramp-ratio",
  at: v => (Math.abs(v - 1) < DEAD ? 0.5 : 0.5 + Math.log(v) / (2 * SPAN)),
};
export const linearScale = (lo, hi) => ({
  lo,
  hi,
  ramp: "--ramp-value",
  at: v => (hi > lo ? (v - lo) / (hi - lo) : 0.5),
});
export const shade = (scale, table, v) => table[Math.max(0, Math.min(255, Math.round(255 * scale.at(v))))];

/* A colour bar with ticks under it. */
export function legendBar(box, scale, ticks, width = 176) {
  const dpr = devicePixelRatio || 1,
    bar = document.createElement("canvas"),
    table = rampTable(css(scale.ramp));
  bar.width = Math.round(width * dpr);
  bar.height = Math.round(10 * dpr);
  bar.style.width = `${width}px`;
  bar.style.height = "10px";
  const ctx = bar.getContext("2d"),
    img = ctx.createImageData(bar.width, bar.height),
    px = new Uint32Array(img.data.buffer);
  for (let y = 0; y < bar.height; y++)
    for (let x = 0; x < bar.width; x++) px[y * bar.width + x] = table[Math.round((255 * x) / (bar.width - 1))];
  ctx.putImageData(img, 0, 0);
  const under = document.createElement("div");
  under.className = "spread legend-ticks";
  under.style.width = `${width}px`;
  under.append(...ticks.map(text => Object.assign(document.createElement("span"), { textContent: text })));
  box.replaceChildren(bar, under);
}
