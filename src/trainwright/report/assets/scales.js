// Axes: from a value to a pixel and back, ticks at round places, and numbers as a reader wants them.

const MINUS = "\u2212";

export const plain = (text) =>
  String(text)
    .replace(/<\/?[a-z]+>/g, "")
    .replace(/&lt;/g, "<")
    .replace(/&gt;/g, ">")
    .replace(/&quot;/g, '"')
    .replace(/&#x27;/g, "'")
    .replace(/&amp;/g, "&");

// A number with so many significant digits: 0.08123, 12,340, 1.2e-5.
export const number = (value, digits = 4) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "\u2013";
  if (!Number.isFinite(value)) return value > 0 ? "\u221e" : `${MINUS}\u221e`;
  const size = value === 0 ? 0 : Math.floor(Math.log10(Math.abs(value)));
  let text;
  if (Number.isInteger(value) && Math.abs(value) < 1e7) text = value.toLocaleString("en-US");
  else if (size < -4 || size >= 7) text = value.toExponential(Math.max(digits - 2, 1)).replace("e+", "e");
  else {
    const places = Math.max(digits - 1 - size, 0);
    text = value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  }
  return text.replaceAll("-", MINUS);
};

// A value by one of the forms ".1%", ".4g", ".3f" of a figure; without a form as it is.
export const formed = (value, form) => {
  if (typeof value !== "number") return plain(value ?? "\u2013");
  const found = /^\.(\d+)([%gf])$/.exec(form || "");
  if (!found) return number(value, 5);
  const places = Number(found[1]);
  if (found[2] === "%") return `${(100 * value).toFixed(places).replace("-", MINUS)} %`;
  if (found[2] === "f") return value.toFixed(places).replace("-", MINUS);
  return number(value, places);
};

const rough = (span, count) => {
  const raw = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((each) => each * power >= raw * 0.999);
};

// An axis from what a figure says of it and the values that stand along it; `from` and `to` are pixels.
export class Axis {
  constructor(spec, values, from, to) {
    this.spec = spec;
    this.log = spec.type === "log";
    this.names = spec.type === "category" || values.some((value) => typeof value === "string") ? [] : null;
    if (this.names) {
      this.names = [...new Set(spec.categoryarray || values)];
      this.places = new Map(this.names.map((name, at) => [name, at]));
    }
    let [low, high] = this.zoomed(spec, values);
    if (spec.autorange === "reversed") [low, high] = [high, low];
    Object.assign(this, { low, high, from, to });
  }

  zoomed(spec, values) {
    if (this.names) return [-0.5, this.names.length - 0.5];
    if (spec.range) return spec.range;
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) {
      if (typeof value !== "number" || Number.isNaN(value)) continue;
      const at = this.log ? Math.log10(value) : value;
      if (at < low) low = at;
      if (at > high) high = at;
    }
    if (!(low <= high)) return [0, 1];
    const pad = 0.05 * (high - low) || 0.05 * Math.abs(high) || 1;
    const zero = spec.rangemode === "tozero" && low >= 0;
    return [zero ? 0 : low - pad, high + pad];
  }

  pixel(value) {
    let at = value;
    if (this.names) at = this.places.get(value) ?? NaN;
    else if (value === null || value === undefined) return NaN;
    else if (this.log) at = value > 0 ? Math.log10(value) : NaN;
    return this.from + ((at - this.low) / (this.high - this.low)) * (this.to - this.from);
  }

  // The place in the axis' own units (logarithms on a logarithmic one): what a range is given in.
  unit(pixel) {
    return this.low + ((pixel - this.from) / (this.to - this.from)) * (this.high - this.low);
  }

  ticks(room) {
    const { spec } = this;
    if (spec.visible === false) return [];
    if (spec.tickvals) {
      const texts = spec.ticktext || spec.tickvals.map((value) => number(value));
      return this.within(spec.tickvals.map((value, at) => ({ value, text: plain(texts[at]) })));
    }
    if (this.names) {
      const every = Math.ceil((this.names.length * 14) / Math.abs(this.to - this.from)) || 1;
      return this.names.filter((_, at) => at % every === 0).map((name) => ({ value: name, text: plain(name) }));
    }
    const most = Math.min(spec.nticks || 9, Math.max(2, Math.floor(Math.abs(this.to - this.from) / room)));
    return this.within(this.log ? this.decades(most) : this.even(most));
  }

  within(ticks) {
    const [a, b] = [Math.min(this.from, this.to) - 0.5, Math.max(this.from, this.to) + 0.5];
    return ticks.filter(({ value }) => this.pixel(value) >= a && this.pixel(value) <= b);
  }

  even(most) {
    const [low, high] = [Math.min(this.low, this.high), Math.max(this.low, this.high)];
    const step = Math.max(rough(high - low, most), typeof this.spec.dtick === "number" ? this.spec.dtick : 0);
    const percent = /%$/.test(this.spec.tickformat || "");
    const places = Math.min(Math.max(0, -Math.floor(Math.log10(step * (percent ? 100 : 1)) + 1e-9)), 12);
    const show = (value) => {
      if (percent) return `${(100 * value).toFixed(places)} %`;
      if (step < 1e-4 || step >= 1e7) return number(value, 3);
      return value.toLocaleString("en-US", { maximumFractionDigits: places }).replaceAll("-", MINUS);
    };
    const ticks = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) {
      const value = Number((at * step).toPrecision(12));
      ticks.push({ value, text: show(value) });
    }
    return ticks;
  }

  decades(most) {
    const [low, high] = [Math.min(this.low, this.high), Math.max(this.low, this.high)];
    const every = Math.max(1, Math.ceil((high - low) / most));
    const steps = high - low < 0.7 ? [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9] : high - low < most / 2.5 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = Math.floor(low); power <= high; power += 1) {
      if (((power % every) + every) % every) continue;
      for (const step of steps) {
        const value = Number((step * 10 ** power).toPrecision(6));
        const short = Math.abs(power) < 4 ? value.toLocaleString("en-US", { maximumFractionDigits: 6 }) : number(value, 2);
        ticks.push({ value, text: short });
      }
    }
    return ticks;
  }
}
