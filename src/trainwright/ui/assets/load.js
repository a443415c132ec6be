// A served ensemble's load: requests, rows and milliseconds over the last ten minutes.

import { figureElement } from "./chart.js";
import { ask, make, number } from "./words.js";

const PAUSE = 1000;
const KEPT = 600;

const total = (requests) => Object.values(requests).reduce((sum, value) => sum + value, 0);

// Counters only grow, so a rate is the growth between two looks; a server that was started anew counts from 0 again.
const growth = (before, after) => (after >= before ? after - before : after);

const rates = (before, after) => {
  const seconds = Math.max(after.at - before.at, 1e-3);
  const good = growth(before.requests["200"] || 0, after.requests["200"] || 0);
  const every = growth(total(before.requests), total(after.requests));
  const answers = growth(before.answers || 0, after.answers || 0);
  return {
    at: after.at,
    requests_per_second: good / seconds,
    refused_per_second: Math.max(every - good, 0) / seconds,
    rows_per_second: growth(before.rows || 0, after.rows || 0) / seconds,
    answer_ms: answers ? (1000 * growth(before.answer_seconds || 0, after.answer_seconds || 0)) / answers : null,
    waiting: after.waiting,
  };
};

const course = (told, name, title, caption, lines) => {
  const now = told.course.length ? told.course[told.course.length - 1].at : 0;
  return {
    name,
    title,
    caption,
    data: lines.map(([label, key, color]) => ({
      type: "scatter", mode: "lines", name: label, x: told.course.map((each) => each.at - now), y: told.course.map((each) => each[key]),
      line: { color, width: 1.8 }, hovertemplate: `%{x:.0f} s: %{y:.3g} ${label}`,
    })),
    layout: { xaxis: { title: { text: "seconds ago" }, range: [Math.min(-60, told.course.length ? told.course[0].at - now : -60), 0] }, yaxis: { title: { text: "" }, rangemode: "tozero" } },
    height: 230,
    least_width: 0,
  };
};

export class LoadView {
  constructor() {
    this.head = make("div", {});
    this.place = make("div.pair", {});
    this.charts = new Map();
    this.element = make("section", {}, make("h1", { tabindex: -1 }, "Server"), this.head, this.place);
    this.course = [];
    this.asking = new AbortController();
    this.load();
    this.timer = setInterval(() => document.hidden || this.load(), PAUSE);
  }

  async load() {
    const told = await ask("/api/server", this.asking.signal).catch(() => null);
    if (!told) return;
    if (!told.error) {
      if (this.before) this.course.push(rates(this.before, told));
      if (this.course.length > KEPT) this.course.shift();
      this.before = told;
    }
    told.course = this.course;
    const last = told.course[told.course.length - 1];
    const good = this.before?.requests["200"] || 0;
    const every = this.before ? total(this.before.requests) : 0;
    const facts = [
      ["state", told.error ? "no answer" : told.ready === false ? "not ready" : told.ready ? "ready" : "answers"],
      ["requests a second", number(last?.requests_per_second ?? null, 3)],
      ["rows a second", number(last?.rows_per_second ?? null, 3)],
      ["ms an answer", number(last?.answer_ms ?? null, 3)],
      ["answered", number(good)],
      ["refused", number(every - good)],
    ];
    this.head.replaceChildren(
      make("p.soft", {}, make("code", {}, told.url), told.name ? ` serves ${told.name}, ${told.members?.length ?? 0} members` : ""),
      told.error ? make("p.notice", { role: "alert" }, `${told.error}. It is asked every second.`) : "",
      make("dl.facts", {}, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      this.state(told.state ?? {}),
    );
    const figures = [
      course(told, "requests", "Requests", "Answered and refused requests a second.", [["answered a second", "requests_per_second", "--blue"], ["refused a second", "refused_per_second", "--red"]]),
      course(told, "rows", "Rows", "Rows answered a second.", [["rows a second", "rows_per_second", "--green"]]),
      course(told, "answer", "Time of an answer", "Milliseconds from admission to the combined prediction, mean of each second.", [["ms", "answer_ms", "--orange"]]),
    ];
    if (told.course.some((each) => each.waiting !== null)) {
      figures.push(course(told, "waiting", "Waiting", "Rows that wait for a member.", [["rows", "waiting", "--muted"]]));
    }
    for (const figure of figures) {
      const known = this.charts.get(figure.name);
      if (known) known.chart.update(figure);
      else {
        const made = figureElement(figure);
        this.charts.set(figure.name, made);
        this.place.append(made.outer);
      }
    }
    this.element.dataset.drawn = String(told.course.length);
  }

  state(state) {
    const plain = Object.entries(state).filter(([, value]) => ["number", "string", "boolean"].includes(typeof value));
    if (!plain.length) return "";
    return make("div.card", {}, make("dl.params", {}, plain.map(([name, value]) => make("div", {}, make("dt", {}, name.replaceAll("_", " ")), make("dd", {}, typeof value === "number" ? number(value) : String(value))))));
  }

  close() {
    this.asking.abort();
    clearInterval(this.timer);
    for (const { chart } of this.charts.values()) chart.destroy();
  }
}
