/* Mouse, touch and keys of the heatmap. It changes the view and the pointed cell; what follows from that is the page's business. */

const EDGE = 4; // px a press may move and still be a click

export class HeatInput {
  /* hooks: onView(view, deliberate), onOpen(row), onNode(row), onSelect(range), keys {letter: function} */
  constructor(heat, hooks) {
    this.heat = heat;
    this.hooks = hooks;
    this.drag = null;
    const el = heat.el;
    el.addEventListener("pointerdown", e => this.press(e));
    el.addEventListener("pointermove", e => this.move(e));
    el.addEventListener("pointerup", e => this.release(e));
    el.addEventListener("pointercancel", () => {
      this.drag = null;
    });
    el.addEventListener("pointerleave", () => this.drag || heat.pinned || heat.point(null));
    el.addEventListener("dblclick", e => {
      const row = heat.rows[heat.rowAt(this.at(e).y)];
      if (row) hooks.onNode(row, heat.columnAt(this.at(e).x));
    });
    el.addEventListener("wheel", e => this.wheel(e), { passive: false });
    el.addEventListener("keydown", e => this.key(e));
  }
  at(e) {
    const box = this.heat.el.getBoundingClientRect();
    return { x: e.clientX - box.left - this.heat.gutter, y: e.clientY - box.top };
  }

  press(e) {
    if (e.target.closest("button, a")) return;
    const at = this.at(e),
      pan = e.shiftKey || e.button === 1 || e.pointerType === "touch" || at.x < 0;
    if (e.button > 1) return;
    if (e.button === 1) e.preventDefault();
    this.drag = { ...at, pan, view: { ...this.heat.view }, moved: false };
    this.heat.el.setPointerCapture(e.pointerId);
  }
  move(e) {
    const at = this.at(e),
      heat = this.heat,
      d = this.drag;
    if (!d) {
      if (!heat.pinned) this.hover(at);
      return;
    }
    if (!d.moved && Math.abs(at.x - d.x) < EDGE) return;
    d.moved = true;
    if (d.pan) this.shift(((d.x - at.x) / heat.width) * (d.view.to - d.view.from), d.view);
    else heat.select(this.range(d.x, at.x));
  }
  release(e) {
    const d = this.drag,
      at = this.at(e),
      heat = this.heat;
    this.drag = null;
    if (!d) return;
    if (d.moved) {
      if (!d.pan) this.hooks.onSelect(this.range(d.x, at.x));
      return;
    }
    const row = heat.rowAt(at.y);
    if (row < 0) return;
    if (at.x < 0) return this.hooks.onOpen(heat.rows[row]);
    const step = heat.columnAt(at.x),
      same = heat.pinned && heat.cell && heat.cell.row === row && heat.cell.step === step;
    heat.pinned = !same;
    heat.point({ row, step });
    this.hooks.onPin?.(heat.pinned);
  }
  range(a, b) {
    const heat = this.heat,
      [x0, x1] = [Math.min(a, b), Math.max(a, b)];
    return { from: heat.columnAt(Math.max(0, x0)), to: heat.columnAt(Math.min(heat.width - 0.01, x1)) };
  }
  hover(at) {
    const heat = this.heat,
      row = heat.rowAt(at.y);
    if (row < 0 || at.x < 0 || at.x >= heat.width) return heat.point(null);
    heat.point({ row, step: heat.columnAt(at.x) });
  }
  wheel(e) {
    const heat = this.heat,
      { from, to } = heat.view;
    if (e.ctrlKey || e.metaKey) {
      e.preventDefault();
      return this.zoom(Math.exp(e.deltaY * 0.0022), heat.unitAt(this.at(e).x));
    }
    const across = e.shiftKey ? e.deltaY : e.deltaX;
    if (Math.abs(across) > Math.abs(e.shiftKey ? 0 : e.deltaY)) {
      e.preventDefault();
      this.shift((across / heat.width) * (to - from));
    }
  }
  zoom(factor, around) {
    const { from, to } = this.heat.view,
      at = around ?? (this.heat.cell ? this.heat.axis.edges(this.heat.cell.step)[0] : to);
    const span = Math.max(this.heat.axis.least, (to - from) * factor),
      share = (at - from) / (to - from);
    this.hooks.onView({ from: at - share * span, to: at + (1 - share) * span }, false);
  }
  shift(steps, base = this.heat.view) {
    this.hooks.onView({ from: base.from + steps, to: base.to + steps }, false);
  }

  key(e) {
    if (e.target !== this.heat.el || e.altKey || e.ctrlKey || e.metaKey) return;
    const heat = this.heat,
      w = heat.cells.width,
      n = e.shiftKey ? 10 : 1,
      cell = heat.cell || { row: 0, step: heat.cells.last ?? 0 },
      span = heat.view.to - heat.view.from;
    const arrow = { ArrowLeft: [0, -n], ArrowRight: [0, n], ArrowUp: [-n, 0], ArrowDown: [n, 0] }[e.key];
    const act = {
      Enter: () => heat.rows[cell.row] && this.hooks.onOpen(heat.rows[cell.row]),
      " ": () => {
        heat.pinned = !heat.pinned;
        heat.point(cell);
        this.hooks.onPin?.(heat.pinned);
      },
      Escape: () => {
        heat.pinned = false;
        heat.point(null);
        heat.select(null);
        this.hooks.onPin?.(false);
      },
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      "[": () => this.shift(-span),
      "]": () => this.shift(span),
      ...this.hooks.keys,
    }[e.key];
    if (!arrow && !act) return;
    e.preventDefault();
    e.stopPropagation();
    if (act) return act();
    const row = Math.max(0, Math.min(heat.rows.length - 1, cell.row + arrow[0])),
      first = heat.cells.first ?? 0,
      last = heat.cells.last ?? 0;
    const step = Math.max(first, Math.min(last, cell.step + arrow[1] * w)),
      [a, b] = heat.axis.edges(step);
    if (a < heat.view.from) this.shift(a - heat.view.from);
    else if (b > heat.view.to) this.shift(b - heat.view.to);
    heat.point({ row, step });
  }
}
