/* A page that stands open learns what has changed since it was made: another attempt, another suspect, metrics that were not sent before. */

const READ_MS = 400,
  TELLS = /^(attempt|finding|incident)\./;

export class Moved {
  /* hooks: onAttempt(), onEnd(), onSuspects(fresh nodes), onMetrics(); config is changed in its place */
  constructor(config, view, hooks) {
    Object.assign(this, { config, view, hooks });
    this.next = null; // the configuration of a newer attempt that waits while somebody looks at the old one
  }
  live(feed) {
    feed
      ?.on("rows", m => m.rows.some(row => TELLS.test(row.kind)) && this.soon())
      .on("series", () => this.view.cells.steps.length || this.soon());
  }
  soon() {
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      this.read();
    }, READ_MS);
  }
  /* An attempt that the address names stays the page's own. */
  get address() {
    const asked = new URLSearchParams(location.search).get("attempt");
    return this.config.config_url + (asked ? `?attempt=${encodeURIComponent(asked)}` : "");
  }
  async read() {
    const answer = await fetch(this.address, { credentials: "same-origin" }).catch(() => null);
    if (answer?.ok) this.take(await answer.json());
  }
  take(fresh) {
    const c = this.config,
      another = fresh.attempt?.id !== c.attempt?.id;
    c.incident = fresh.incident;
    this.suspects(fresh.suspects);
    if (another && !this.view.following && c.attempt) {
      this.next = fresh;
      this.hooks.onState();
      return;
    }
    if (another) this.adopt(fresh);
    else {
      const ended = c.attempt && c.attempt.state !== fresh.attempt.state;
      const grown = c.world_size !== fresh.world_size; // a new attempt says how large it is with its first report
      Object.assign(c, { attempt: fresh.attempt, world_size: fresh.world_size, attempts: fresh.attempts });
      if (grown) this.view.load({ keepView: true });
      this.metrics(fresh.metrics);
      if (ended) this.hooks.onEnd();
    }
  }
  /* Goes over to the newer attempt; returns whether there was one. */
  goOver() {
    if (!this.next) return false;
    this.adopt(this.next);
    return true;
  }
  adopt(fresh) {
    this.next = null;
    Object.assign(this.config, fresh, { suspects: this.config.suspects });
    this.hooks.onMetrics();
    this.hooks.onAttempt();
  }
  suspects(nodes) {
    const before = this.config.suspects,
      fresh = nodes.filter(node => !before.has(node));
    if (!fresh.length && nodes.length === before.size) return;
    before.clear();
    for (const node of nodes) before.add(node);
    this.hooks.onSuspects(fresh);
  }
  metrics(list) {
    if (JSON.stringify(list) === JSON.stringify(this.config.metrics)) return;
    const drawn = this.view.metric.name;
    this.config.metrics = list;
    this.hooks.onMetrics();
    if (this.view.metric.name !== drawn || !this.view.cells.head) this.view.load();
  }
}
