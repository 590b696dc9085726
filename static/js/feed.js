/* One websocket a page. It asks for log rows after a cursor per stream, so that a reconnect brings what the gap held, once each.
   Messages carry no values: parts of the page read themselves again, cells come by HTTP. */

import { heardClock } from "./times.js";

const STALE_S = 10,
  BANNER_S = 30,
  WAITS_S = [1, 2, 4, 8, 15];

export class Feed {
  /* path: "/ws/feed?stream=run:dense@12&…" or "/ws/fleet" */
  constructor(path, { presence } = {}) {
    this.url = new URL(path, location.href);
    this.url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.cursors = new Map(
      this.url.searchParams.getAll("stream").map(text => {
        const at = text.lastIndexOf("@");
        return [text.slice(0, at), Number(text.slice(at + 1))];
      }),
    );
    this.presence = presence;
    this.heard = Date.now();
    this.tries = 0;
    this.listeners = new Map();
    this.waiting = new Set();
    this.open();
    setInterval(() => this.watch(), 1000);
    document.addEventListener("visibilitychange", () => document.hidden || !this.waiting.size || this.poke([]));
    addEventListener("pageshow", e => {
      if (e.persisted) this.again();
    });
    document.querySelector("#stale-reload")?.addEventListener("click", () => location.reload());
  }
  on(type, act) {
    if (!this.listeners.has(type)) this.listeners.set(type, []);
    this.listeners.get(type).push(act);
    return this;
  }
  tell(type, message) {
    for (const act of this.listeners.get(type) || []) act(message);
  }

  open() {
    this.url.searchParams.delete("stream");
    for (const [name, seq] of this.cursors) this.url.searchParams.append("stream", `${name}@${seq}`);
    const socket = (this.socket = new WebSocket(this.url));
    this.opened = Date.now();
    socket.onopen = () => {
      this.tries = 0;
      this.hear();
      if (this.presence) this.say({ type: "presence", doing: this.doing || "reading" });
    };
    socket.onmessage = e => this.take(JSON.parse(e.data));
    socket.onclose = e => {
      if (this.socket === socket) this.lost(e.code);
    };
  }
  lost(code) {
    this.socket = null;
    if (code === 4401) {
      location.reload();
      return;
    }
    if (code === 4404 || code === 4403) {
      this.ended = true;
      return;
    }
    const wait = WAITS_S[Math.min(this.tries++, WAITS_S.length - 1)];
    this.next = Date.now() + wait * 1000;
    setTimeout(() => this.socket || this.open(), wait * 1000);
  }
  again() {
    this.socket?.close();
  }
  /* A connection can die without a word (a sleeping laptop, a changed network): what has been silent this long is given up. */
  give() {
    const socket = this.socket;
    this.lost(0);
    socket.close();
  }
  say(message) {
    if (this.socket?.readyState === 1) this.socket.send(JSON.stringify(message));
  }
  hear() {
    this.heard = Date.now();
    this.watch();
  }

  take(message) {
    this.hear();
    if (message.at) heardClock(message.at);
    if (message.type === "rows") {
      const seen = this.cursors.get(message.stream) ?? 0,
        rows = message.rows.filter(row => row.seq > seen);
      if (rows.length) this.cursors.set(message.stream, rows.at(-1).seq);
      if (!rows.length) return;
      message.rows = rows;
      this.poke(rows.map(row => row.kind));
    }
    if (message.type === "series") this.poke(["series"]);
    if (message.type === "fleet") this.poke(["fleet", message.what]);
    this.tell(message.type, message);
  }
  /* Parts name the kinds they follow: <section data-pokes="finding incident">; they are read again together, at most once a second. */
  poke(kinds) {
    for (const kind of kinds) this.waiting.add(kind.split(".")[0]);
    this.timer ||= setTimeout(
      () => {
        this.timer = 0;
        const kinds = this.waiting;
        this.waiting = new Set();
        if (document.hidden) {
          for (const kind of kinds) this.waiting.add(kind);
          return; // they are told when somebody looks again
        }
        for (const el of document.querySelectorAll("[data-pokes]")) {
          const wants = el.dataset.pokes.split(" ");
          if (
            wants.some(w => w === "*" || kinds.has(w)) &&
            !el.contains(document.activeElement?.closest?.("[data-keep]"))
          )
            window.htmx?.trigger(el, "poke");
        }
      },
      Math.max(60, 1000 - (Date.now() - (this.poked || 0))),
    );
    this.poked = Date.now();
  }
  /* After 10 s without a word the clock turns, after 30 s the banner says so and verdicts turn grey. */
  watch() {
    const age = (Date.now() - this.heard) / 1000,
      clock = document.querySelector("[data-clock]"),
      banner = document.querySelector("#stale");
    clock?.classList.toggle("late", age > STALE_S);
    if (!banner) return;
    banner.hidden = age <= BANNER_S;
    document.querySelector("main")?.classList.toggle("stale", age > BANNER_S);
    if (age <= BANNER_S) return;
    if (this.socket && Date.now() - this.opened > BANNER_S * 1000) this.give();
    banner.querySelector("[data-age]").textContent = `${Math.round(age)} s`;
    banner.querySelector("[data-next]").textContent = this.socket
      ? "Waiting for a word."
      : `Trying again in ${Math.max(0, Math.ceil((this.next - Date.now()) / 1000))} s.`;
  }
}
