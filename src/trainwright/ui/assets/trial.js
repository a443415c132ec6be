// One trial: its parameters, its curve with rungs and resizes, its attempts, the verdicts on it, its log.

import { figureElement } from "./chart.js";
import { ask, bytes, count, duration, make, moment, number, paced, shown, stateMark } from "./words.js";

const LOG_PAUSE = 2000;

export class TrialView {
  constructor(study, trial) {
    Object.assign(this, { study, trial, charts: new Map(), lease: null, rank: 0 });
    this.asking = new AbortController();
    this.head = make("div", {});
    this.curves = make("div.pair", {});
    this.tables = make("div", {});
    this.logText = make("pre.log", { tabindex: 0, role: "region", "aria-label": "Log" });
    this.logTools = make("div.tools", {});
    this.log = make("div.card", {}, make("h2.inside", {}, "Log"), this.logTools, this.logText);
    this.element = make("section", {}, this.head, this.curves, this.tables, this.log);
    this.head.append(make("h1", { tabindex: -1 }, `Trial ${trial}`));
    this.refresh = paced(500, () => this.load());
    this.heard = () => this.refresh();
    study.addEventListener("change", this.heard);
    this.refresh();
    this.timer = setInterval(() => document.hidden || (["running", "silent"].includes(this.told?.state) && this.loadLog()), LOG_PAUSE);
  }

  async load() {
    let told;
    try {
      told = await ask(`${this.study.base}/trials/${this.trial}`, this.asking.signal);
    } catch (error) {
      if (error.name !== "AbortError" && !this.told) this.head.replaceChildren(make("h1", { tabindex: -1 }, `Trial ${this.trial}`), make("p.notice", {}, `${error.message}.`));
      return;
    }
    const text = JSON.stringify(told);
    if (text === this.text) return;
    this.text = text;
    this.told = told;
    this.drawHead(told);
    this.drawCurves(told);
    this.drawTables(told);
    this.drawLogTools(told);
    this.element.dataset.drawn = "yes";
  }

  drawHead(told) {
    const focused = document.activeElement?.dataset?.keep;
    const step = (to, word, mark) =>
      make("a.plain", { "data-keep": word, href: to === null ? null : `${this.study.address("trials")}/${to}`, "aria-disabled": to === null ? "true" : null, "aria-label": `${word} trial` }, mark);
    const facts = [
      ...Object.entries(told.values).map(([name, value]) => [name, number(value, 5)]),
      ["rank", told.rank === null ? "\u2013" : `${told.rank} of ${told.ranked}`],
      ["epochs", String(told.epochs)],
      ["time", duration(told.seconds)],
      ["device time", duration(told.device_seconds)],
    ];
    this.head.replaceChildren(
      make("div.titled", {}, make("h1", { tabindex: -1, "data-keep": "title" }, `Trial ${told.trial}`), stateMark(told.state), make("span.steps", {}, step(told.before, "Previous", "\u2190"), step(told.after, "Next", "\u2192"))),
      told.failure ? make("div.notice", { role: "alert" }, make("strong", {}, told.failure.kind.replaceAll("_", " ")), `: ${told.failure.message}`, told.failure.traceback ? make("details", {}, make("summary", {}, "Traceback"), make("pre", { tabindex: 0 }, told.failure.traceback)) : null) : "",
      make("dl.facts", {}, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      make("div.card", {}, make("h2.inside", {}, "Parameters"), make("dl.params", {}, Object.entries(told.params).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, typeof value === "number" ? number(value, 5) : shown(value)))))),
    );
    if (focused) this.head.querySelector(`[data-keep="${focused}"]`)?.focus({ preventScroll: true });
  }

  drawCurves(told) {
    const { curve } = told;
    const metrics = curve.epoch.length > 1 ? Object.keys(curve.metrics).slice(0, 8) : [];
    for (const name of metrics) {
      const figure = this.figure(told, name);
      const known = this.charts.get(name);
      if (known) {
        known.chart.update(figure);
        known.caption.textContent = figure.caption;
      } else {
        const made = figureElement(figure);
        this.charts.set(name, made);
        this.curves.append(made.outer);
      }
    }
  }

  figure(told, name) {
    const { curve } = told;
    const resizes = told.attempts.filter((each) => each.lease > 1 && each.from_epoch > 0);
    const rungs = told.decisions.map((each) => each.epoch);
    const upright = (epoch, color, dash) => ({ type: "line", x0: epoch, x1: epoch, y0: 0, y1: 1, yref: "paper", line: { color, width: 1, dash } });
    const said = resizes.map((each) => `after epoch ${each.from_epoch} on ${count(each.devices.length || 1, "device")}`).join(", ");
    const rungText = rungs.length ? ` Dashed: rungs at epochs ${rungs.join(", ")}.` : "";
    return {
      name: `trial-${name.replace(/[^A-Za-z0-9_-]/g, "-")}`,
      title: name,
      caption: `${count(curve.epoch.length, "epoch")}.${rungText}${resizes.length ? ` Orange: it went on ${said}.` : ""}`,
      data: [{ type: "scatter", mode: curve.epoch.length < 60 ? "lines+markers" : "lines", name, x: curve.epoch, y: curve.metrics[name], line: { color: "--blue", width: 2 }, marker: { color: "--blue", size: 5 }, hovertemplate: "epoch %{x}: %{y:.5g}" }],
      layout: {
        xaxis: { title: { text: "epoch" }, rangemode: "tozero" },
        yaxis: { title: { text: "" } },
        shapes: [...rungs.map((epoch) => upright(epoch, "--muted", "dash")), ...resizes.map((each) => upright(each.from_epoch, "--orange", ""))],
      },
      height: 240,
      least_width: 0,
    };
  }

  drawTables(told) {
    const table = (title, heads, rows) =>
      rows.length
        ? make("div.card.scroll", {}, make("table", {}, make("caption", {}, title), make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell, at) => make(at ? "td" : "th", at ? {} : { scope: "row" }, cell)))))))
        : "";
    const inherited = told.lineage.length > 1 ? told.lineage : [];
    this.tables.replaceChildren(
      table("In which trials its state was trained.", ["trial", "from epoch", "to epoch"], inherited.map((part) => part.map(String))),
      table(
        "Attempts: each run of the trial, and how it ended.",
        ["run", "devices", "host", "from epoch", "began", "time", "end"],
        told.attempts.map((each) => [String(each.lease), each.devices.join(", ") || each.slot || "\u2013", each.host || "\u2013", String(each.from_epoch), moment(each.started), duration(each.seconds), each.end || "goes on"]),
      ),
      table(
        "Verdicts of the promotion rule.",
        ["epoch", "rule", "verdict", "value", "threshold"],
        told.decisions.map((each) => [String(each.epoch), each.rule, each.verdict, number(each.value), number(each.threshold)]),
      ),
      table("Checkpoints.", ["epoch", "size", "place"], told.checkpoints.map((each) => [String(each.epoch), bytes(each.bytes), each.path])),
      table("Notes.", ["name", "value"], told.notes.map((each) => [each.name, typeof each.value === "string" ? each.value : JSON.stringify(each.value)])),
    );
  }

  drawLogTools(told) {
    this.log.hidden = !this.study.summary?.files;
    if (this.log.hidden) return;
    const leases = told.attempts.map((each) => each.lease);
    const newest = leases[leases.length - 1] ?? 1;
    if (this.leases !== leases.join()) {
      this.leases = leases.join();
      this.lease = newest;
      this.logTools.replaceChildren(
        ...(leases.length > 1
          ? [make("label", { for: "run" }, "Run"), make("select", { id: "run", onchange: (event) => { this.lease = Number(event.target.value); this.loadLog(); } }, leases.map((each) => make("option", { value: each, selected: each === newest }, String(each))))]
          : []),
      );
    }
    this.loadLog();
  }

  async loadLog() {
    const told = await ask(`${this.study.base}/trials/${this.trial}/log?lease=${this.lease ?? 1}`, this.asking.signal).catch(() => null);
    if (!told) return;
    const text = told.text ? `${told.whole ? "" : `\u2026 the last ${bytes(65536)} of ${bytes(told.bytes)}\n`}${told.text}` : "This run has printed nothing, or its log is not in the study\u2019s folder.";
    if (text === this.logText.textContent) return;
    const atEnd = this.logText.scrollTop + this.logText.clientHeight >= this.logText.scrollHeight - 4;
    this.logText.textContent = text;
    this.logText.classList.toggle("soft", !told.text);
    if (atEnd) this.logText.scrollTop = this.logText.scrollHeight;
  }

  close() {
    this.asking.abort();
    this.study.removeEventListener("change", this.heard);
    this.refresh.cancel();
    clearInterval(this.timer);
    for (const { chart } of this.charts.values()) chart.destroy();
  }
}
