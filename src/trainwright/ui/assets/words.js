// Small things that every view needs: elements, numbers and times as a reader wants them, and asking the server.

export { number } from "./scales.js";

// make("a.key", {href}, child, "text"): an element with classes, attributes and listeners (on...), and its children.
export const make = (name, attributes = {}, ...children) => {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
};

export const duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "\u2013";
  if (seconds < 10) return `${seconds >= 0.1 ? seconds.toFixed(1) : Number(seconds.toPrecision(2))} s`;
  const whole = Math.round(seconds);
  const units = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  for (const [size, name, small, smallName] of units) {
    if (whole >= size) return `${Math.floor(whole / size)} ${name} ${Math.floor((whole % size) / small)} ${smallName}`;
  }
  return `${whole} s`;
};

export const bytes = (count) => {
  let [size, unit] = [count, "B"];
  for (const next of ["kB", "MB", "GB", "TB"]) {
    if (size < 999.95) break;
    [size, unit] = [size / 1000, next];
  }
  return `${unit === "B" ? size : size.toFixed(1)} ${unit}`;
};

export const moment = (seconds) => {
  if (!seconds) return "\u2013";
  const at = new Date(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
};

export const count = (amount, one, many = `${one}s`) => `${amount.toLocaleString("en-US")} ${amount === 1 ? one : many}`;

// A parameter's value: floats short, lists in brackets, long texts cut.
export const shown = (value) => {
  if (value === null || value === undefined) return "\u2013";
  if (typeof value === "number" && !Number.isInteger(value)) {
    const size = Math.floor(Math.log10(Math.abs(value)));
    const text = size < -3 || size > 5 ? value.toExponential(2).replace("e+", "e") : String(Number(value.toPrecision(3)));
    return text.replaceAll("-", "\u2212");
  }
  const text = Array.isArray(value) ? `(${value.map(shown).join(", ")})` : String(value);
  return text.length > 60 ? `${text.slice(0, 59)}\u2026` : text;
};

export class Refusal extends Error {}

// Ask the server; what it refuses becomes a Refusal with its sentence.
export const ask = async (path, signal) => {
  const answer = await fetch(path, { signal, headers: { accept: "application/json" } });
  if (answer.ok) return answer.json();
  const told = await answer.json().catch(() => ({}));
  const detail = typeof told.detail === "string" ? told.detail : null;
  throw new Refusal(told.error || detail || `the server answered ${answer.status}`);
};

export const stateMark = (state) => make(`span.state.${state}`, {}, state);

// At most once in `pause` milliseconds, the last call counts; after a quiet time at once.
export const paced = (pause, call) => {
  let [last, timer] = [-Infinity, 0];
  const run = () => {
    timer = 0;
    last = performance.now();
    call();
  };
  const ask = () => {
    if (!timer) timer = setTimeout(run, Math.max(0, last + pause - performance.now()));
  };
  ask.cancel = () => clearTimeout(timer);
  return ask;
};
