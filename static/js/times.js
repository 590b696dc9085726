/* Times in the reader's zone, UTC in the title, and words that grow by the clock. The server writes <time datetime data-as>. */

import { recall, remember } from "./settings.js";

const two = n => String(n).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
export const zone = () => recall("zone") || "local";
export const setZone = value => {
  remember("zone", value);
  render(document);
  document.dispatchEvent(new CustomEvent("paceline:zone"));
};

function parts(date) {
  return zone() === "utc"
    ? {
        d: date.getUTCDate(),
        mo: date.getUTCMonth(),
        y: date.getUTCFullYear(),
        h: date.getUTCHours(),
        m: date.getUTCMinutes(),
        s: date.getUTCSeconds(),
      }
    : {
        d: date.getDate(),
        mo: date.getMonth(),
        y: date.getFullYear(),
        h: date.getHours(),
        m: date.getMinutes(),
        s: date.getSeconds(),
      };
}
const localName = () => {
  const found = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" })
    .formatToParts(new Date())
    .find(p => p.type === "timeZoneName");
  return found ? found.value : "local";
};
export const zoneName = () => (zone() === "utc" ? "UTC" : localName());
export const localZone = localName;
export const utcText = date => date.toISOString().slice(0, 19).replace("T", " ") + " UTC";

/* Seconds as people say them: 12 s, 2 min 20 s, 7 h 06 min, 2 d 4 h. */
export function spell(s) {
  s = Math.max(0, Math.round(s));
  if (s < 60) return `${s} s`;
  if (s < 600) return `${Math.floor(s / 60)} min${s % 60 ? ` ${s % 60} s` : ""}`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 172800) {
    const m = Math.floor(s / 60) % 60;
    return `${Math.floor(s / 3600)} h ${two(m)} min`;
  }
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}
export function format(date, as) {
  const p = parts(date),
    today = parts(new Date()),
    same = p.d === today.d && p.mo === today.mo && p.y === today.y;
  const clock = `${two(p.h)}:${two(p.m)}`,
    day = `${p.d} ${MONTHS[p.mo]}` + (p.y !== today.y ? ` ${p.y}` : "");
  switch (as) {
    case "clock":
      return `${clock}:${two(p.s)}`;
    case "hm":
      return clock;
    case "day":
      return `${day} ${clock}`;
    case "near":
      return same ? clock : `${day} ${clock}`;
    case "row":
      return same ? `${clock}:${two(p.s)}` : `${day.replace(" ", "\u00a0")} ${clock}`; // it may break, but not within the day
    case "full":
      return same ? `${clock}:${two(p.s)}` : `${day} ${clock}:${two(p.s)}`;
    case "ago":
      return `${spell((serverNow() - date) / 1000)} ago`;
    case "for":
      return spell((serverNow() - date) / 1000);
    case "until":
      return date < serverNow() ? "now" : `in ${spell((date - serverNow()) / 1000)}`;
    default:
      return `${day} ${clock}`;
  }
}

/* The server's clock, by the newest tick: ages must not depend on the reader's machine. */
let skew = 0;
export const serverNow = () => new Date(Date.now() + skew);
export const heardClock = iso => {
  skew = new Date(iso) - Date.now();
};

export function render(root) {
  for (const el of root.querySelectorAll("time[datetime][data-as]")) {
    const date = new Date(el.dateTime);
    if (Number.isNaN(+date)) continue;
    const text = format(date, el.dataset.as);
    if (el.textContent !== text) el.textContent = text;
    if (!el.title) el.title = utcText(date);
  }
}
const GROWING = ["ago", "for", "until"];
export function tickTimes() {
  for (const el of document.querySelectorAll("time[data-as]"))
    if (GROWING.includes(el.dataset.as)) {
      const text = format(new Date(el.dateTime), el.dataset.as);
      if (el.textContent !== text) el.textContent = text;
    }
  growing();
}
/* "At risk" grows each second: GPU-hours since a moment, at a number of GPUs. */
function growing() {
  for (const el of document.querySelectorAll("[data-grows-since]")) {
    const hours = (serverNow() - new Date(el.dataset.growsSince)) / 3.6e6,
      base = Number(el.dataset.growsFrom || 0);
    el.textContent = number(base + hours * Number(el.dataset.growsRate || 0), Number(el.dataset.growsDigits || 0));
  }
}
export const number = (v, digits = 0) =>
  v.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
