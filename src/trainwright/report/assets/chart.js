// A chart: one figure (traces and layout as plain data, see figure.py) drawn on a canvas, with a legend of buttons, a
// tip under the pointer or the arrow keys, zoom by dragging, and an SVG file for a paper: light, with a width in mm.

import { CanvasPen, SvgPen } from "./pens.js";
import { Axis, formed, plain } from "./scales.js";

const REACH = 28; // pixels within which the pointer finds a point
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const PAPER_FONT = "Arial, Helvetica, sans-serif";
const MM = 96 / 25.4; // pixels of CSS, which are the units of a file
const WIDTHS = [85, 180]; // mm: a column, a page
const KEY = { wide: 22, high: 12 }; // pixels of a mark in a legend

const shade = (first, second, share) => {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const [a, b] = [parts(first), parts(second)];
  return `rgb(${a.map((value, at) => Math.round(value + (b[at] - value) * share)).join(",")})`;
};

// The colours of the light theme, whatever the page shows: those of the style sheet's first rule.
const lightStyle = () => {
  for (const sheet of document.styleSheets) {
    const root = Array.from(sheet.cssRules).find((rule) => rule.selectorText === ":root" && rule.style.getPropertyValue("--surface"));
    if (root) return root.style;
  }
  return getComputedStyle(document.documentElement);
};

const hasLine = (trace) => trace.type === "scatter" && (trace.mode || "lines").includes("lines") && trace.line?.width !== 0;
const hasMarks = (trace) => trace.type === "scatter" && (trace.mode || "lines").includes("markers");

// A trace's mark in a legend, from (x, y), the middle of its left side: the same strokes as in the figure.
const drawKey = (pen, trace, x, y, colour) => {
  const { wide, high } = KEY;
  if (trace.type === "bar") {
    pen.rect(x + 4, y - high / 2 + 1, wide - 8, high - 2, { color: colour(trace.marker?.color), round: 2 });
    return;
  }
  if (trace.fill) pen.rect(x, y - high / 2 + 1, wide, high - 2, { color: colour(trace.fillcolor || "--wash") });
  const opacity = trace.opacity ?? 1;
  if (hasLine(trace)) {
    const { color, width = 1.5, dash = "" } = trace.line || {};
    pen.line([x, y, x + wide, y], { color: colour(color), width, dash, opacity });
  }
  if (hasMarks(trace)) {
    const { color, size = 6, symbol, opacity: own = 1, line } = trace.marker || {};
    const shown = Math.max(4, Math.min(typeof size === "number" ? size : 6, high - 2));
    pen.marks([x + wide / 2, y], { color: colour(color), size: shown, symbol, opacity: opacity * own, width: line?.width || 1.5 });
  }
};

const element = (name, className, parent) => {
  const made = document.createElement(name);
  made.className = className;
  parent.append(made);
  return made;
};

const whose = (trace, at) => {
  const data = trace.customdata?.[at];
  return Array.isArray(data) ? data[0] : data;
};

const filled = (template, point) =>
  plain(
    template.replace(/<extra><\/extra>/, "").replace(/%\{(\w+)(?:\[(\d+)\])?(?::([^}]+))?\}/g, (_, name, place, form) => {
      const value = place === undefined ? point[name] : point[name]?.[Number(place)];
      return formed(value, form);
    }),
  );

export class Chart {
  constructor(place, { pick = null } = {}) {
    Object.assign(this, { place, pick, hidden: new Set(), zoom: null, lit: null, drag: null, figure: null });
    place.replaceChildren();
    this.legend = element("div", "legend", place);
    this.stage = element("div", "stage", place);
    this.canvas = element("canvas", "", this.stage);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    for (const name of ["aria-labelledby", "aria-describedby"]) {
      if (place.hasAttribute(name)) this.canvas.setAttribute(name, place.getAttribute(name));
      place.removeAttribute(name);
    }
    place.removeAttribute("role");
    this.tip = element("div", "tip", this.stage);
    this.tip.setAttribute("role", "status");
    this.reset = element("button", "reset", this.stage);
    this.reset.type = "button";
    this.reset.textContent = "Reset zoom";
    this.reset.hidden = true;
    this.reset.addEventListener("click", () => this.unzoom());
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.soon();
    this.theme.addEventListener("change", this.redraw);
    this.watch = new ResizeObserver(this.redraw);
    this.watch.observe(this.stage);
    this.life = new AbortController();
    this.listen();
  }

  destroy() {
    this.life.abort();
    this.watch.disconnect();
    this.theme.removeEventListener("change", this.redraw);
    this.place.replaceChildren();
  }

  update(figure) {
    this.figure = figure;
    this.showLegend();
    this.draw();
  }

  soon() {
    if (this.waiting || !this.figure) return;
    this.waiting = requestAnimationFrame(() => this.draw());
  }

  get shown() {
    return this.figure.data.filter((trace) => !this.hidden.has(trace.name));
  }

  showLegend() {
    const named = this.figure.data.filter((trace) => trace.name && trace.showlegend !== false);
    this.legend.hidden = named.length < 2;
    const names = named.map((trace) => trace.name).join("\n");
    if (names === this.legendOf) return;
    this.legendOf = names;
    this.legend.replaceChildren();
    for (const trace of named) {
      const button = element("button", "key", this.legend);
      button.type = "button";
      button.setAttribute("aria-pressed", String(!this.hidden.has(trace.name)));
      const pen = new SvgPen(null, FONT);
      drawKey(pen, trace, 0, KEY.high / 2, (name) => `var(${name || "--blue"})`);
      button.innerHTML = pen.mark(KEY.wide, KEY.high);
      button.append(plain(trace.name));
      button.addEventListener("click", () => {
        if (!this.hidden.delete(trace.name)) this.hidden.add(trace.name);
        button.setAttribute("aria-pressed", String(!this.hidden.has(trace.name)));
        this.draw();
      });
    }
  }

  colour(value, fallback = "--ink") {
    const named = typeof value === "string" ? value : fallback;
    return named.startsWith("--") ? this.style.getPropertyValue(named).trim() : named;
  }

  // Panels share the x axis; each has a y axis and its traces.
  arrange(pen, width, height) {
    const { layout } = this.figure;
    const traces = this.shown;
    const keys = Object.keys(layout).filter((key) => /^yaxis\d*$/.test(key));
    const of = (trace) => (trace.yaxis ? trace.yaxis.replace("y", "yaxis") : "yaxis");
    const ends = (trace, axis) => {
      const own = trace[axis] || [];
      if (trace.type === "bar" && axis === "x") {
        return own.flatMap((value, at) => [trace.base?.[at] ?? 0, (trace.base?.[at] ?? 0) + value]);
      }
      if (trace.type === "heatmap" && typeof own[0] === "number" && own.length > 1) {
        const half = (own[1] - own[0]) / 2;
        return [own[0] - half, own[own.length - 1] + half];
      }
      return own;
    };
    const top = layout.xaxis?.visible === false ? 26 : 8;
    const bottom = layout.xaxis?.visible === false ? 6 : layout.xaxis?.title?.text ? 42 : 24;
    const plot = { top, bottom: height - bottom };
    const panels = keys.map((key) => {
      const spec = layout[key];
      const [low, high] = spec.domain || [0, 1];
      const span = plot.bottom - plot.top;
      const mine = traces.filter((trace) => of(trace) === key);
      const range = this.zoom?.key === key ? this.zoom.y : spec.range;
      const values = mine.flatMap((trace) => ends(trace, "y"));
      const y = new Axis({ ...spec, range }, values, plot.bottom - low * span, plot.bottom - high * span);
      const ticks = y.ticks(34);
      return { key, spec, y, ticks, traces: mine };
    });
    const label = Math.max(0, ...panels.flatMap((each) => each.ticks.map((tick) => pen.width(tick.text, 11.5))));
    const visible = panels.some((each) => each.spec.visible !== false);
    const titled = panels.some((each) => each.spec.title?.text && each.spec.visible !== false);
    const left = visible ? Math.min(label, width * 0.34) + (titled ? 30 : 12) : layout.margin?.l ?? 16;
    const right = width - Math.max(14, visible ? 14 : (layout.margin?.r ?? 16));
    const wider = panels.some((each) => each.traces.some((trace) => trace.textposition === "outside")) ? 40 : 0;
    const range = this.zoom ? this.zoom.x : layout.xaxis?.range;
    const values = traces.flatMap((trace) => ends(trace, "x"));
    const x = new Axis({ ...(layout.xaxis || {}), range }, values, left, right - wider);
    return { panels, x, left, right, width, ...plot };
  }

  draw() {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    const [width, height] = [this.stage.clientWidth, this.stage.clientHeight];
    if (!width || !height || !this.figure) return;
    const ratio = window.devicePixelRatio || 1;
    const [wide, tall] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== tall) Object.assign(this.canvas, { width: wide, height: tall });
    this.style = getComputedStyle(document.documentElement);
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.pen = new CanvasPen(context, FONT);
    const which = this.lit ? this.points.indexOf(this.lit.layer) : -1;
    this.points = [];
    this.paint(this.pen, width, height);
    if (this.lit) this.follow(which);
    if (this.drag?.box) {
      const { x, y, w, h } = this.drag.box;
      this.pen.rect(x, y, w, h, { color: this.colour("--blue"), opacity: 0.15 });
    }
    this.reset.hidden = !this.zoom;
  }

  paint(pen, width, height) {
    const plan = this.arrange(pen, width, height);
    this.plan = plan;
    const { x } = plan;
    this.frame(pen, plan, height);
    for (const panel of plan.panels) {
      const box = { x: plan.left - 0.5, y: panel.y.to - 4, width: plan.right - plan.left + 1, height: panel.y.from - panel.y.to + 8 };
      pen.clipped(box, () => {
        for (const trace of panel.traces) this.trace(pen, trace, x, panel);
      });
    }
    this.annotate(pen, plan);
  }

  // The point that is told stays told when the figure is drawn anew: the same point of the same trace, where it is now.
  follow(which) {
    const layer = this.points[which];
    const spot = layer && this.spots(layer)[this.lit.at];
    const { at, keys } = this.lit;
    this.lit = null;
    if (!spot) this.point(null);
    else {
      this.tell({ layer, at, x: spot[0], y: spot[1], keys });
      this.light(this.pen);
    }
  }

  frame(pen, plan, height) {
    const { layout } = this.figure;
    const [grid, line, soft, ink] = ["--grid", "--line", "--soft", "--ink"].map((name) => this.colour(name));
    const spec = layout.xaxis || {};
    const base = Math.max(...plan.panels.map((panel) => panel.y.from));
    const ticks = plan.x.ticks(64);
    for (const { key, y, spec: own, ticks: marks } of plan.panels) {
      if (own.visible === false) continue;
      for (const { value, text } of marks) {
        const at = y.pixel(value);
        if (own.showgrid !== false) pen.line([plan.left, at, plan.right, at], { color: grid });
        pen.text(this.cut(pen, text, plan.left - 12), plan.left - 7, at, { color: soft, size: 11.5, align: "right" });
      }
      if (spec.visible !== false && (key === "yaxis" || spec.showgrid !== false)) {
        for (const { value } of ticks) {
          const at = plan.x.pixel(value);
          if (own.showgrid !== false) pen.line([at, y.to, at, y.from], { color: grid });
        }
      }
      if (own.title?.text) {
        pen.text(plain(own.title.text), 9, (y.from + y.to) / 2, { color: soft, align: "center", turned: true });
      }
    }
    for (const shape of layout.shapes || []) this.shape(pen, plan, shape);
    if (spec.visible === false) return;
    pen.line([plan.left, base, plan.right, base], { color: line });
    let reached = -Infinity;
    for (const { value, text } of ticks) {
      const [at, half] = [plan.x.pixel(value), pen.width(text, 11.5) / 2];
      if (at - half < reached + 6) continue;
      reached = at + half;
      pen.line([at, base, at, base + 4], { color: line });
      pen.text(text, at, base + 7, { color: soft, size: 11.5, align: "center", baseline: "top" });
    }
    if (spec.title?.text) {
      pen.text(plain(spec.title.text), (plan.left + plan.right) / 2, height - 9, { color: ink, align: "center" });
    }
  }

  cut(pen, text, room, size = 11.5, bold = false) {
    let shown = text;
    while (shown.length > 3 && pen.width(shown, size, bold) > room) shown = `${shown.slice(0, -2)}\u2026`;
    return shown;
  }

  shape(pen, plan, shape) {
    const panel = plan.panels[0];
    const across = [shape.x0, shape.x1].map((value) =>
      shape.xref === "paper" ? plan.left + value * (plan.right - plan.left) : plan.x.pixel(value),
    );
    const down = [shape.y0, shape.y1].map((value) =>
      shape.yref === "paper" ? plan.bottom - value * (plan.bottom - plan.top) : panel.y.pixel(value),
    );
    if (across.some((at) => at < plan.left - 1 || at > plan.right + 1)) return;
    const { color, width = 1, dash = "" } = shape.line;
    pen.line([across[0], down[0], across[1], down[1]], { color: this.colour(color), width, dash });
  }

  annotate(pen, plan) {
    const notes = this.figure.layout.annotations || [];
    const places = [...new Set(notes.filter((note) => note.text.startsWith("<b>")).map((note) => plan.x.pixel(note.x)))];
    places.sort((a, b) => a - b);
    const apart = Math.min(plan.width, ...places.slice(1).map((at, i) => at - places[i])); // of columns with a heading
    for (const note of notes) {
      const { y } = plan.panels[0];
      const size = note.font?.size || 11;
      const bold = note.text.startsWith("<b>");
      const words = this.cut(pen, plain(note.text), bold ? apart - 4 : plan.width, size, bold);
      const align = note.xanchor === "left" ? "left" : "center";
      const [long, high] = [pen.width(words, size, bold), y.pixel(note.y)];
      const least = align === "left" ? 2 : long / 2 + 2;
      const most = plan.width - 2 - (align === "left" ? long : long / 2);
      const at = Math.max(least, Math.min(most, plan.x.pixel(note.x) + (note.xshift || 0)));
      const baseline = note.yanchor === "bottom" ? "bottom" : "middle";
      if (note.bgcolor) {
        const wide = long + 4;
        pen.rect(at - (align === "left" ? 2 : wide / 2), high - size * 0.7, wide, size * 1.4, { color: this.colour(note.bgcolor) });
      }
      pen.text(words, at, high, { color: this.colour(note.font?.color), size, align, baseline, bold });
    }
  }

  trace(pen, trace, x, panel) {
    if (trace.type === "bar") this.bars(pen, trace, x, panel.y);
    else if (trace.type === "heatmap") this.cells(pen, trace, x, panel.y);
    else this.scatter(pen, trace, x, panel);
  }

  scatter(pen, trace, x, panel) {
    const { y } = panel;
    const count = trace.x.length;
    const points = new Float64Array(2 * count);
    for (let at = 0; at < count; at += 1) {
      points[2 * at] = x.pixel(trace.x[at]);
      points[2 * at + 1] = y.pixel(trace.y[at]);
    }
    const opacity = trace.opacity ?? 1;
    const mode = trace.mode || "lines";
    if (mode.includes("lines")) {
      const path = trace.line?.shape === "hv" ? this.stepped(points) : points;
      if (trace.fill === "tozeroy") this.fill(pen, trace, path, y.pixel(0));
      const { color, width = 1.5, dash = "" } = trace.line || {};
      if (width) pen.line(path, { color: this.colour(color), width, dash, opacity });
    }
    if (mode.includes("markers")) {
      const { color, size = 6, symbol, opacity: own = 1, line } = trace.marker || {};
      pen.marks(points, { color: this.colour(color), size, symbol, opacity: opacity * own, width: line?.width || 1.5 });
    }
    if (pen === this.pen && trace.hoverinfo !== "skip") this.points.push({ trace, points, panel });
  }

  fill(pen, trace, path, zero) {
    const color = this.colour(trace.fillcolor, "--wash");
    pen.area([path[0], zero, ...path, path[path.length - 2], zero], { color });
  }

  stepped(points) {
    const path = [];
    for (let i = 0; i < points.length; i += 2) {
      if (i && !Number.isNaN(points[i - 2])) path.push(points[i], points[i - 1]);
      path.push(points[i], points[i + 1]);
    }
    return path;
  }

  bars(pen, trace, x, y) {
    const thick = (Math.abs(y.to - y.from) / Math.max(1, y.names ? y.names.length : 1)) * (1 - (this.figure.layout.bargap ?? 0.25));
    const [color, ink, on] = [this.colour(trace.marker?.color), this.colour("--ink"), this.colour("--on-colour")];
    const boxes = trace.x.map((length, at) => {
      const begin = trace.base?.[at] ?? 0;
      const [left, right] = [x.pixel(begin), x.pixel(begin + length)];
      const top = y.pixel(trace.y[at]) - thick / 2;
      const box = { x: left, y: top, w: Math.max(right - left - (trace.base ? 0.7 : 0), 0.7), h: thick };
      pen.rect(box.x, box.y, box.w, box.h, { color, round: Math.min(2.5, box.w / 2, box.h / 3) });
      const words = trace.text?.[at];
      if (words && trace.textposition === "outside") {
        pen.text(plain(words), right + 6, top + thick / 2, { color: ink, size: 11.5 });
      } else if (words && pen.width(words, 10) + 4 < box.w && thick > 9) {
        pen.text(plain(words), left + box.w / 2, top + thick / 2, { color: on, size: 10, align: "center" });
      }
      return box;
    });
    if (pen === this.pen) this.points.push({ trace, boxes });
  }

  cells(pen, trace, x, y) {
    const [low, high] = [trace.zmin ?? 0, trace.zmax ?? Math.max(...trace.z.flat().filter(Number.isFinite), 1e-12)];
    const [first, last] = [this.colour(trace.colorscale[0][1]), this.colour(trace.colorscale[1][1])];
    const wide = Math.abs(x.to - x.from) / (x.names ? x.names.length : trace.x.length);
    const tall = Math.abs(y.to - y.from) / (y.names ? y.names.length : trace.y.length);
    const boxes = [];
    trace.z.forEach((row, j) =>
      row.forEach((value, i) => {
        const box = { x: x.pixel(trace.x[i]) - wide / 2, y: y.pixel(trace.y[j]) - tall / 2, w: wide + 0.4, h: tall + 0.4 };
        const share = Math.max(0, Math.min(1, (value - low) / (high - low)));
        pen.rect(box.x, box.y, box.w, box.h, { color: shade(first, last, share) });
        boxes.push(box);
        if (trace.zformat) {
          const color = share > 0.5 ? this.colour("--on-colour") : this.colour("--ink");
          pen.text(formed(value, trace.zformat), box.x + wide / 2, box.y + tall / 2, { color, size: 11.5, align: "center" });
        }
      }),
    );
    if (pen === this.pen) this.points.push({ trace, boxes, across: trace.z[0]?.length || 1 });
  }

  // What is under a place: {layer, at, x, y}.
  find(px, py) {
    let [best, least] = [null, REACH * REACH];
    for (const layer of this.points) {
      const { points, boxes } = layer;
      if (boxes) {
        const at = boxes.findIndex((box) => px >= box.x - 1 && px <= box.x + box.w + 1 && py >= box.y && py <= box.y + box.h);
        if (at >= 0) return { layer, at, x: px, y: boxes[at].y };
      } else {
        for (let i = 0; i < points.length; i += 2) {
          const away = (points[i] - px) ** 2 + (points[i + 1] - py) ** 2;
          if (away < least) [best, least] = [{ layer, at: i / 2, x: points[i], y: points[i + 1] }, away];
        }
      }
    }
    return best;
  }

  described({ layer, at }) {
    const { trace, across } = layer;
    const cell = across ? { x: trace.x[at % across], y: trace.y[Math.floor(at / across)], z: trace.z[Math.floor(at / across)][at % across] } : {};
    const point = { x: trace.x[at], y: trace.y?.[at], customdata: trace.customdata?.[at], ...cell };
    const template = trace.hovertemplate || "%{x}, %{y}";
    const name = trace.name && trace.showlegend !== false && this.figure.data.length > 1 ? ` \u00b7 ${plain(trace.name)}` : "";
    return filled(template, point) + name;
  }

  point(found) {
    const before = this.lit;
    if (found && before && before.layer === found.layer && before.at === found.at) return;
    this.tell(found);
    if (found || before) this.soon();
  }

  tell(found) {
    this.lit = found;
    this.tip.textContent = found ? this.described(found) : "";
    this.tip.classList.toggle("on", Boolean(found));
    if (found) {
      const { clientWidth: room } = this.stage;
      const half = this.tip.offsetWidth / 2 + 4;
      this.tip.style.left = `${Math.max(half, Math.min(room - half, found.x))}px`;
      this.tip.style.top = `${Math.max(found.y - 12, this.tip.offsetHeight + 2)}px`;
    }
    this.canvas.style.cursor = found && this.pick && whose(found.layer.trace, found.at) !== undefined ? "pointer" : "";
  }

  // The whole line of the trial under the pointer stands out.
  light(pen) {
    const { layer, at } = this.lit;
    const color = this.colour("--ink");
    if (layer.boxes) {
      const { x, y, w, h } = layer.boxes[at];
      pen.line([x, y, x + w, y, x + w, y + h, x, y + h, x, y], { color, width: 1.5 });
      return;
    }
    const { trace, points } = layer;
    const owner = whose(trace, at);
    if (owner !== undefined && owner !== null && (trace.mode || "lines").includes("lines") && trace.line?.shape !== "hv") {
      let [first, last] = [at, at];
      while (first > 0 && whose(trace, first - 1) === owner) first -= 1;
      while (last < trace.x.length - 1 && whose(trace, last + 1) === owner) last += 1;
      pen.line(points.subarray(2 * first, 2 * last + 2), { color, width: 2.5 });
    }
    pen.marks([points[2 * at], points[2 * at + 1]], { color, size: 9 });
    pen.marks([points[2 * at], points[2 * at + 1]], { color: this.colour("--surface"), size: 4 });
  }

  listen() {
    const { canvas } = this;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointermove", (event) => {
      if (!this.figure || !this.points) return;
      const [px, py] = at(event);
      if (this.drag) this.stretch(px, py);
      else this.hover(this.find(px, py));
    });
    canvas.addEventListener("pointerleave", () => this.drag || this.hover(null));
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0 || this.figure?.layout.xaxis?.fixedrange) return;
      const [px, py] = at(event);
      const panel = this.plan?.panels.find(({ y }) => py >= y.to - 4 && py <= y.from + 4);
      if (panel) this.drag = { px, py, panel, box: null };
    });
    window.addEventListener("pointerup", () => this.release(), { signal: this.life.signal });
    canvas.addEventListener("click", () => {
      if (this.dragged) this.dragged = false;
      else if (this.pick && this.lit) this.choose();
    });
    canvas.addEventListener("dblclick", () => this.unzoom());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.point(null));
  }

  // A pointer that lies still makes events too, when the page moves below it: they do not take away what the keys chose.
  hover(found) {
    if (found || !this.lit?.keys) this.point(found);
  }

  choose() {
    const owner = whose(this.lit.layer.trace, this.lit.at);
    if (typeof owner === "number") this.pick(owner);
  }

  stretch(px, py) {
    const { plan, drag } = this;
    const [x0, x1] = [drag.px, Math.max(plan.left, Math.min(plan.right, px))].sort((a, b) => a - b);
    const [y0, y1] = [drag.py, Math.max(drag.panel.y.to, Math.min(drag.panel.y.from, py))].sort((a, b) => a - b);
    if (!drag.box && x1 - x0 < 6 && y1 - y0 < 6) return;
    const flat = y1 - y0 < 20 || drag.panel.y.names; // a drag along the axis zooms along it alone
    const [top, base] = flat ? [drag.panel.y.to, drag.panel.y.from] : [y0, y1];
    drag.box = { x: x0, y: top, w: x1 - x0, h: base - top };
    this.point(null);
    this.soon();
  }

  release() {
    const { drag, plan } = this;
    this.drag = null;
    if (!drag?.box) return;
    this.dragged = true;
    const { x, y, w, h } = drag.box;
    if (w > 8) {
      const own = drag.panel.y;
      const range = [own.unit(y + h), own.unit(y)];
      this.zoom = { key: drag.panel.key, x: [plan.x.unit(x), plan.x.unit(x + w)], y: own.names ? undefined : range };
    }
    this.draw();
  }

  unzoom() {
    this.zoom = null;
    this.draw();
  }

  key(event) {
    const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    if (event.key === "Escape") {
      this.point(null);
      this.unzoom();
    } else if (event.key === "Enter" && this.pick && this.lit) this.choose();
    else if (moves[event.key] && this.points?.length) {
      event.preventDefault();
      this.step(...moves[event.key]);
    }
  }

  step(along, over) {
    const layers = this.points;
    let which = this.lit ? layers.indexOf(this.lit.layer) : 0;
    let at = this.lit ? this.lit.at : -1;
    if (over) {
      which = (which + over + layers.length) % layers.length;
      at = 0;
    }
    const layer = layers[Math.max(which, 0)];
    const spots = this.spots(layer);
    for (let tries = 0; tries < spots.length; tries += 1) {
      at = (at + (along || (tries ? 1 : 0)) + spots.length) % spots.length;
      if (!Number.isNaN(spots[at][0] + spots[at][1])) break;
    }
    if (spots.length) this.point({ layer, at, x: spots[at][0], y: spots[at][1], keys: true });
  }

  // Where the points of a layer are, in pixels.
  spots({ boxes, points }) {
    if (boxes) return boxes.map(({ x, y, w }) => [x + w / 2, y]);
    return Array.from({ length: points.length / 2 }, (_, i) => [points[2 * i], points[2 * i + 1]]);
  }

  // The figure as a file of so many mm, light, with its title and its legend; no text is below 7 pt.
  svg(mm) {
    const width = mm * MM;
    const named = this.shown.filter((trace) => trace.name && trace.showlegend !== false);
    const screen = this.pen;
    this.style = lightStyle();
    const pen = new SvgPen(new CanvasPen(this.canvas.getContext("2d"), PAPER_FONT), PAPER_FONT);
    const ink = this.colour("--ink");
    let top = 4;
    for (const words of this.wrapped(pen, plain(this.figure.title), width - 16)) {
      pen.text(words, 8, top + 9, { color: ink, size: 12, bold: true });
      top += 17;
    }
    if (this.figure.data.filter((trace) => trace.name && trace.showlegend !== false).length > 1) {
      top = this.keys(pen, named, width, top);
    }
    const height = this.paperHeight(width);
    pen.moved(0, top, () => this.paint(pen, width, height));
    this.pen = screen;
    this.draw(); // its plan is the screen's again
    return pen.document(width, top + height, "#ffffff", mm);
  }

  keys(pen, named, width, start) {
    let [across, top] = [8, start];
    for (const trace of named) {
      const words = this.cut(pen, plain(trace.name), width - KEY.wide - 24);
      const room = KEY.wide + 6 + pen.width(words, 11.5);
      if (across > 8 && across + room > width - 8) [across, top] = [8, top + 17];
      drawKey(pen, trace, across, top + 9, (name) => this.colour(name || "--blue"));
      pen.text(words, across + KEY.wide + 6, top + 9, { color: this.colour("--ink"), size: 11.5 });
      across += room + 14;
    }
    return top + (named.length ? 20 : 0);
  }

  wrapped(pen, text, room) {
    const lines = [];
    for (const word of text.split(" ")) {
      const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
      if (lines.length && pen.width(longer, 12, true) <= room) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines;
  }

  // Rows of names keep their height; other figures get the shape that a paper has room for.
  paperHeight(width) {
    const own = this.figure.height - (this.legend.hidden ? 0 : 26);
    const { layout } = this.figure;
    const rows = Object.keys(layout).some((key) => /^yaxis\d*$/.test(key) && layout[key].type === "category");
    const panels = Object.keys(layout).filter((key) => /^yaxis\d*$/.test(key)).length;
    return rows ? own : Math.min(own, Math.max(170 * panels, 0.66 * width));
  }

  save(name, mm) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([this.svg(mm)], { type: "image/svg+xml" }));
    link.download = `${name}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}

// The place of a figure, with title, caption and the button that saves it; `html` texts were escaped where they were made.
export const figureElement = (figure, options = {}) => {
  const outer = document.createElement("figure");
  const title = element("h3", "", outer);
  title.id = `title-${figure.name}`;
  title.textContent = plain(figure.title);
  outer.setAttribute("aria-labelledby", title.id);
  const scroll = element("div", "scroll", outer);
  const place = element("div", "plot", scroll);
  place.id = `plot-${figure.name}`;
  place.setAttribute("aria-labelledby", title.id);
  place.setAttribute("aria-describedby", `caption-${figure.name}`);
  const caption = element("figcaption", "", outer);
  caption.id = `caption-${figure.name}`;
  const chart = draw(place, figure, options);
  caption.textContent = plain(figure.caption);
  return { outer, chart, caption, title };
};

// Draw a figure in its place, which gets its size, and offer to save it.
export const draw = (place, figure, options = {}) => {
  place.style.height = `${figure.height}px`;
  place.style.minWidth = figure.least_width ? `${figure.least_width}px` : "";
  const chart = new Chart(place, options);
  const tools = document.createElement("div");
  tools.className = "figure-tools";
  const width = element("select", "save", tools);
  width.setAttribute("aria-label", "Width of the SVG file");
  for (const mm of WIDTHS) width.add(new Option(`${mm} mm`, mm, mm === WIDTHS[WIDTHS.length - 1]));
  const button = element("button", "save", tools);
  button.type = "button";
  button.textContent = "Save as SVG";
  button.addEventListener("click", () => chart.save(figure.name, Number(width.value)));
  place.closest("figure").prepend(tools);
  chart.update(figure);
  return chart;
};
