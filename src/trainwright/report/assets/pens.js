// What a chart is drawn with: the same few strokes on a canvas, for the screen, and as SVG, for a file.

const DASHES = { dash: [6, 4], dot: [1.5, 3] };
const SYMBOLS = new Set(["circle", "circle-open", "diamond", "star", "x-thin-open"]);

const corners = (symbol, x, y, r) => {
  if (symbol === "diamond") return [[x, y - r], [x + r, y], [x, y + r], [x - r, y]];
  return Array.from({ length: 10 }, (_, i) => {
    const [angle, reach] = [(Math.PI * i) / 5 - Math.PI / 2, i % 2 ? r * 0.45 : r * 1.15];
    return [x + reach * Math.cos(angle), y + reach * Math.sin(angle)];
  });
};

export class CanvasPen {
  constructor(context, font) {
    this.context = context;
    this.font = font;
  }

  width(text, size = 12, bold = false) {
    this.context.font = `${bold ? "600 " : ""}${size}px ${this.font}`;
    return this.context.measureText(text).width;
  }

  clipped(box, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(box.x, box.y, box.width, box.height);
    this.context.clip();
    draw();
    this.context.restore();
  }

  // Points are [x0, y0, x1, y1, ...] in pixels; NaN lifts the pen.
  line(points, { color, width = 1, dash = "", opacity = 1 }) {
    const c = this.context;
    c.save();
    c.globalAlpha = opacity;
    c.strokeStyle = color;
    c.lineWidth = width;
    c.lineJoin = "round";
    c.setLineDash(DASHES[dash] || []);
    c.beginPath();
    let down = false;
    for (let i = 0; i < points.length; i += 2) {
      const [x, y] = [points[i], points[i + 1]];
      if (Number.isNaN(x) || Number.isNaN(y)) down = false;
      else if (down) c.lineTo(x, y);
      else {
        c.moveTo(x, y);
        down = true;
      }
    }
    c.stroke();
    c.restore();
  }

  area(points, { color, opacity = 1 }) {
    const c = this.context;
    c.save();
    c.globalAlpha = opacity;
    c.fillStyle = color;
    c.beginPath();
    for (let i = 0; i < points.length; i += 2) c.lineTo(points[i], points[i + 1]);
    c.closePath();
    c.fill();
    c.restore();
  }

  rect(x, y, width, height, { color, opacity = 1, round = 0 }) {
    const c = this.context;
    c.globalAlpha = opacity;
    c.fillStyle = color;
    if (round) {
      c.beginPath();
      c.roundRect(x, y, width, height, round);
      c.fill();
    } else c.fillRect(x, y, width, height);
    c.globalAlpha = 1;
  }

  marks(points, { color, size, symbol = "circle", opacity = 1, width = 1.5 }) {
    const c = this.context;
    const shape = SYMBOLS.has(symbol) ? symbol : "circle";
    c.save();
    c.globalAlpha = opacity;
    c.fillStyle = c.strokeStyle = color;
    c.lineWidth = width;
    const r = size / 2;
    for (let i = 0; i < points.length; i += 2) {
      const [x, y] = [points[i], points[i + 1]];
      if (Number.isNaN(x) || Number.isNaN(y)) continue;
      c.beginPath();
      if (shape === "x-thin-open") {
        c.moveTo(x - r, y - r);
        c.lineTo(x + r, y + r);
        c.moveTo(x + r, y - r);
        c.lineTo(x - r, y + r);
        c.stroke();
      } else if (shape.startsWith("circle")) {
        c.arc(x, y, r, 0, 2 * Math.PI);
        if (shape === "circle") c.fill();
        else c.stroke();
      } else {
        corners(shape, x, y, r).forEach(([px, py]) => c.lineTo(px, py));
        c.fill();
      }
    }
    c.restore();
  }

  text(words, x, y, { color, size = 12, align = "left", baseline = "middle", bold = false, turned = false }) {
    const c = this.context;
    c.save();
    c.font = `${bold ? "600 " : ""}${size}px ${this.font}`;
    c.fillStyle = color;
    c.textAlign = align;
    c.textBaseline = baseline;
    c.translate(x, y);
    if (turned) c.rotate(-Math.PI / 2);
    c.fillText(words, 0, 0);
    c.restore();
  }
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const quoted = (text) => String(text).replace(/[&<>"]/g, (letter) => ENTITIES[letter]);
const short = (value) => String(Math.round(value * 100) / 100);

const LEAST = 9.4; // units of a file for a paper: 7 pt

export class SvgPen {
  constructor(canvasPen, font) {
    this.measure = canvasPen; // text is as wide as on a canvas
    this.font = font;
    this.parts = [];
    this.clips = 0;
  }

  width(text, size = 12, bold = false) {
    return this.measure.width(text, Math.max(size, LEAST), bold);
  }

  moved(x, y, draw) {
    this.parts.push(`<g transform="translate(${short(x)} ${short(y)})">`);
    draw();
    this.parts.push("</g>");
  }

  clipped(box, draw) {
    const id = `clip${(this.clips += 1)}`;
    const at = `x="${short(box.x)}" y="${short(box.y)}" width="${short(box.width)}" height="${short(box.height)}"`;
    this.parts.push(`<clipPath id="${id}"><rect ${at}/></clipPath><g clip-path="url(#${id})">`);
    draw();
    this.parts.push("</g>");
  }

  line(points, { color, width = 1, dash = "", opacity = 1 }) {
    let [path, down] = ["", false];
    for (let i = 0; i < points.length; i += 2) {
      if (Number.isNaN(points[i]) || Number.isNaN(points[i + 1])) down = false;
      else {
        path += `${down ? "L" : "M"}${short(points[i])} ${short(points[i + 1])}`;
        down = true;
      }
    }
    const dashes = DASHES[dash] ? ` stroke-dasharray="${DASHES[dash]}"` : "";
    this.parts.push(
      `<path d="${path}" fill="none" stroke="${color}" stroke-width="${width}" stroke-linejoin="round" ` +
        `opacity="${opacity}"${dashes}/>`,
    );
  }

  area(points, { color, opacity = 1 }) {
    const list = Array.from(points, short).join(" ");
    this.parts.push(`<polygon points="${list}" fill="${color}" opacity="${opacity}"/>`);
  }

  rect(x, y, width, height, { color, opacity = 1, round = 0 }) {
    const at = `x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}"`;
    this.parts.push(`<rect ${at} rx="${round}" fill="${color}" opacity="${opacity}"/>`);
  }

  marks(points, { color, size, symbol = "circle", opacity = 1, width = 1.5 }) {
    const r = size / 2;
    const open = `fill="none" stroke="${color}" stroke-width="${width}"`;
    const parts = [];
    for (let i = 0; i < points.length; i += 2) {
      const [x, y] = [points[i], points[i + 1]];
      if (Number.isNaN(x) || Number.isNaN(y)) continue;
      if (symbol === "x-thin-open") {
        const [l, t, e, b] = [x - r, y - r, x + r, y + r].map(short);
        parts.push(`<path d="M${l} ${t}L${e} ${b}M${e} ${t}L${l} ${b}" ${open}/>`);
      } else if (symbol === "diamond" || symbol === "star") {
        parts.push(`<polygon points="${corners(symbol, x, y, r).map((p) => p.map(short)).join(" ")}" fill="${color}"/>`);
      } else {
        const style = symbol === "circle-open" ? open : `fill="${color}"`;
        parts.push(`<circle cx="${short(x)}" cy="${short(y)}" r="${short(r)}" ${style}/>`);
      }
    }
    this.parts.push(`<g opacity="${opacity}">${parts.join("")}</g>`);
  }

  text(words, x, y, { color, size: asked = 12, align = "left", baseline = "middle", bold = false, turned = false }) {
    const size = Math.max(asked, LEAST);
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const shift = { middle: 0.35, top: 0.85, bottom: -0.2 }[baseline] * size;
    const turn = turned ? ` rotate(-90)` : "";
    this.parts.push(
      `<text transform="translate(${short(x)} ${short(y)})${turn}" dy="${short(shift)}" font-size="${size}" ` +
        `fill="${color}" text-anchor="${anchor}"${bold ? ' font-weight="600"' : ""}>${quoted(words)}</text>`,
    );
  }

  // The parts alone, as a small picture in a page.
  mark(width, height) {
    return `<svg class="mark" width="${width}" height="${height}" aria-hidden="true">${this.parts.join("")}</svg>`;
  }

  document(width, height, background, mm) {
    const tall = (mm * height) / width;
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" width="${mm}mm" height="${short(tall)}mm" ` +
      `viewBox="0 0 ${short(width)} ${short(height)}" font-family="${quoted(this.font)}">` +
      `<rect width="100%" height="100%" fill="${background}"/>${this.parts.join("")}</svg>`
    );
  }
}
