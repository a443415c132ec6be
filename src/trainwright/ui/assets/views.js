// Views made of figures, the overview of a study, and the list of studies.

import { figureElement } from "./chart.js";
import { plain } from "./scales.js";
import { Refusal, ask, count, duration, make, moment, number, paced, shown, stateMark } from "./words.js";

const FIGURES_PAUSE = 1000; // figures are drawn anew at most once a second
const PENDING_PAUSE = 1500;

// Some figures that the server makes, kept up to date: those that stay are drawn anew in place.
export class Figures {
  constructor(study, names, element) {
    // `query` is what is asked of every view, a choice of trials for instance; `said` tells of what is refused.
    Object.assign(this, { study, names, element, drawn: new Map(), retry: 0, query: "", said: null, heardOf: () => {} });
    this.asking = new AbortController();
    this.refresh = paced(FIGURES_PAUSE, () => this.load());
  }

  // The study has changed, as told at `began`.
  heard(began) {
    this.began ??= began;
    this.refresh();
  }

  async load() {
    if (document.hidden || this.busy) {
      this.again = !document.hidden;
      return;
    }
    this.busy = true;
    try {
      const views = await Promise.all(
        this.names.map((name) => ask(`${this.study.base}/views/${name}?${this.query}`, this.asking.signal)),
      );
      this.put(views);
      this.heardOf(views);
      this.told();
      if (views.some((view) => view.pending)) this.retry = setTimeout(() => this.refresh(), PENDING_PAUSE);
    } catch (error) {
      // What is refused now is refused again; the server itself may come back.
      if (error instanceof Refusal) this.refused(error.message);
      else if (error.name !== "AbortError") this.retry = setTimeout(() => this.refresh(), PENDING_PAUSE);
    } finally {
      this.busy = false;
      if (this.again) this.refresh();
      this.again = false;
    }
  }

  refused(sentence) {
    if (!this.said) return;
    this.said.textContent = `${sentence}.`;
    this.said.classList.add("wrong");
  }

  // How long it took from hearing of a change to what is painted, for whoever measures it.
  told() {
    const { began } = this;
    this.began = undefined;
    requestAnimationFrame(() => {
      this.element.dataset.drawn = String(this.study.summary?.revision ?? 0);
      if (began !== undefined) this.element.dataset.updated = String(performance.now() - began);
    });
  }

  put(views) {
    const figures = views.flatMap((view) => view.figures);
    const wanted = new Set(figures.map((figure) => figure.name));
    for (const [name, each] of this.drawn) {
      if (!wanted.has(name)) {
        each.chart.destroy();
        each.outer.remove();
        this.drawn.delete(name);
      }
    }
    this.words?.remove();
    for (const figure of figures) {
      const known = this.drawn.get(figure.name);
      if (known) {
        known.chart.place.style.height = `${figure.height}px`;
        known.title.textContent = plain(figure.title);
        known.caption.textContent = plain(figure.caption);
        known.chart.update(figure);
      } else {
        const made = figureElement(figure, { pick: (trial) => this.study.open(trial) });
        this.drawn.set(figure.name, made);
        this.element.append(made.outer);
      }
    }
    figures.forEach((figure, at) => {
      const { outer, chart } = this.drawn.get(figure.name);
      if (this.element.children[at] !== outer) this.element.insertBefore(outer, this.element.children[at]);
      // A chart has no size before it is in the page; without this its keys would wait for two more frames.
      if (!chart.points) chart.draw();
    });
    const notes = views.flatMap((view) => view.notes);
    const pending = views.some((view) => view.pending);
    const members = views.flatMap((view) => view.members || []);
    this.words = make(
      "div",
      {},
      members.length ? memberTable(members, this.study) : null,
      notes.map((note) => make("p.card.soft", {}, note)),
      pending ? make("p.card.soft.working", { role: "status" }, "Working it out\u2026") : null,
    );
    if (!figures.length && !notes.length && !pending) this.words.append(make("p.card.soft", {}, EMPTY[this.names[0]]));
    this.element.append(this.words);
  }

  clear() {
    for (const { chart } of this.drawn.values()) chart.destroy();
    this.drawn.clear();
    this.element.replaceChildren();
  }

  close() {
    this.asking.abort();
    this.refresh.cancel();
    clearTimeout(this.retry);
    for (const { chart } of this.drawn.values()) chart.destroy();
  }
}

const EMPTY = {
  scatter: "No result has both.",
  comparison: "None of the studies has a result yet.",
  progress: "There is no result yet.",
  curves: "Learning curves appear once a trial has reported two epochs; a choice may have none.",
  importance: "There is no result yet.",
  cluster: "No trial has started yet.",
  ensembles: "No trial has left predictions for a library (tw.ensemble.leave).",
};

const memberTable = (members, study) =>
  make(
    "div.card.scroll",
    {},
    make(
      "table",
      {},
      make("caption", {}, "The pick's members."),
      make("thead", {}, make("tr", {}, ["trial", "weight", "\u00b5s per row", "parameters"].map((name) => make("th.n", { scope: "col" }, name)))),
      make(
        "tbody",
        {},
        members.map((each) =>
          make(
            "tr",
            {},
            make("th.n", { scope: "row" }, make("a", { href: `${study.address("trials")}/${each.trial}` }, String(each.trial))),
            make("td.n", {}, `${Math.round(100 * each.weight)} %`),
            make("td.n", {}, number(each.seconds_per_row === null ? null : 1e6 * each.seconds_per_row, 3)),
            make("td.n", {}, number(each.parameter_count)),
          ),
        ),
      ),
    ),
  );

export class FiguresView {
  constructor(study, title, names, { filtered = false } = {}) {
    const place = make("div", {});
    this.element = make("section", {}, make("h1", { tabindex: -1 }, title), place);
    this.figures = new Figures(study, names, place);
    this.study = study;
    if (filtered) place.before(this.tools(names.includes("scatter")));
    this.heard = (event) => this.figures.heard(event.detail.began);
    study.addEventListener("change", this.heard);
    if (study.summary) this.figures.refresh();
  }

  // A choice of trials by the terms of the table's filter, and the two axes of a scatter.
  tools(scatter) {
    const said = make("p.soft.small", { role: "status" });
    const field = make("input", { type: "search", id: "chosen", placeholder: "lr<0.01 optimizer=adamw, or 3,12", autocomplete: "off", spellcheck: "false", maxlength: 300 });
    const axes = scatter ? ["across", "up"].map((name) => make("select", { id: name })) : [];
    const changed = paced(300, () => {
      said.textContent = "";
      said.classList.remove("wrong");
      const asked = { words: field.value.trim() };
      for (const each of axes) if (each.value) asked[each.id] = each.value;
      this.figures.query = String(new URLSearchParams(asked));
      this.figures.refresh();
    });
    field.addEventListener("input", changed);
    for (const each of axes) each.addEventListener("change", changed);
    this.figures.said = said;
    this.figures.heardOf = (views) => {
      const names = views.find((view) => view.axes)?.axes;
      if (!names || !axes.length || axes[0].options.length === names.length) return;
      const picked = axes.map((each) => each.value);
      // At first what the server chooses: the first parameter, and the first objective.
      const usual = [names[0], this.study.summary.metrics[0]];
      axes.forEach((each, at) => {
        each.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
        each.value = picked[at] || usual[at];
      });
    };
    const labels = axes.map((each) => make("label", {}, `${each.id} `, each));
    return make("div", {}, make("div.tools", {}, make("label", { for: "chosen" }, "Trials"), field, labels), said);
  }

  close() {
    this.study.removeEventListener("change", this.heard);
    this.figures.close();
  }
}

const fact = (what, value, more, href) =>
  make("div", {}, make("dt", {}, what), make("dd", {}, href ? make("a", { href }, value) : value, make("small", {}, more)));

export const bar = (counts, trials) => {
  const order = ["complete", "stopped", "running", "silent", "paused", "proposed", "lost", "failed", "abandoned"];
  const parts = order.filter((state) => counts[state]);
  const said = parts.map((state) => `${counts[state]} ${state}`).join(", ") || "no trials yet";
  const strip = make("div.strip", { role: "img", "aria-label": said });
  for (const state of parts) {
    const part = make(`i.${state}`);
    part.style.flexGrow = counts[state] / trials;
    strip.append(part);
  }
  return strip;
};

export class OverviewView {
  constructor(study) {
    this.study = study;
    this.head = make("div", {});
    this.foot = make("div", {});
    const place = make("div.pair", {});
    this.element = make("section", {}, this.head, place, this.foot);
    this.figures = new Figures(study, ["progress"], place);
    this.heard = (event) => {
      this.draw();
      this.figures.heard(event.detail.began);
    };
    study.addEventListener("change", this.heard);
    if (study.summary) {
      this.draw();
      this.figures.refresh();
    } else this.head.append(make("h1", { tabindex: -1 }, "Overview"), make("p.soft", {}, "Reading the ledger\u2026"));
  }

  draw() {
    const { summary, study } = this;
    const told = study.summary;
    const focused = document.activeElement === this.head.querySelector("h1");
    const goals = [...told.objectives, ...told.constraints].map((goal) => make("code", {}, goal));
    const counts = Object.entries(told.counts).map(([state, amount]) =>
      make(`li.${state}`, {}, make("a", { href: `${study.address("trials")}?${state}` }, `${amount.toLocaleString("en-US")} ${state}`)),
    );
    this.head.replaceChildren(
      make("h1", { tabindex: -1 }, told.name),
      make("p.goals", {}, goals.length ? goals : "No objective is known yet."),
      told.error ? make("p.notice", { role: "alert" }, `The ledger cannot be read now: ${told.error}. What was read before is shown.`) : "",
      told.dropped_count ? make("p.notice", {}, `${count(told.dropped_count, "piece")} of the records could not be read and ${told.dropped_count === 1 ? "is" : "are"} left out; see below.`) : "",
      told.loaded ? "" : make("p.soft", { role: "status" }, `${count(told.records, "record")} read so far\u2026`),
      bar(told.counts, told.trials || 1),
      make("ul.counts", { "aria-label": "Trials by state" }, counts.length ? counts : make("li", {}, "no trial yet")),
      make("dl.facts", {}, this.facts(told)),
    );
    if (focused) this.head.querySelector("h1").focus({ preventScroll: true });
    this.drawFoot(told);
    return summary;
  }

  facts(told) {
    const list = [];
    const { best } = told;
    if (best && told.front === null) {
      list.push(fact(`best ${told.metrics[0]}`, number(best.values[0]), `trial ${best.trial}`, `${this.study.address("trials")}/${best.trial}`));
    } else if (best) list.push(fact("on the front", number(told.front), `of ${count(told.results, "result")}`));
    list.push(fact("trials", number(told.trials), `${told.results.toLocaleString("en-US")} with a result`));
    const running = told.counts.running || 0;
    if (running) list.push(fact("running now", number(running), count(told.writers, "writer")));
    if (told.seconds) {
      list.push(fact("time of work", duration(told.seconds), "without breaks"));
      list.push(fact("device time", duration(told.device_seconds), "all devices together"));
    }
    if (told.created_at) list.push(fact("begun", moment(told.created_at).slice(0, 10), moment(told.created_at).slice(11)));
    return list;
  }

  drawFoot(told) {
    const key = JSON.stringify([told.failures, told.dropped, told.unknown_kinds, told.best]);
    if (key === this.footOf) return; // what is open stays open
    this.footOf = key;
    const link = (trial) => [make("a", { href: `${this.study.address("trials")}/${trial}` }, String(trial)), " "];
    this.foot.replaceChildren(
      told.best && told.front === null
        ? make("div.card", {}, make("h2.inside", {}, "The best so far"), make("dl.params", {}, Object.entries(told.best.params).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, shown(value))))))
        : "",
      told.failures.length
        ? make(
            "div.card",
            {},
            make("h2.inside", {}, "Failures"),
            told.failures.map((each) =>
              make(
                "details",
                {},
                make("summary", {}, make("strong", {}, each.kind), `: ${each.message} `, make("span.soft", {}, `(${count(each.count, "trial")})`)),
                make("p", {}, "Trials ", each.trials.map(link), each.count > each.trials.length ? "and more" : ""),
                each.traceback ? make("pre", { tabindex: 0 }, each.traceback) : "",
              ),
            ),
          )
        : "",
      told.dropped.length || Object.keys(told.unknown_kinds).length
        ? make(
            "div.card",
            {},
            make("h2.inside", {}, "Records left out"),
            make(
              "ul",
              {},
              told.dropped.map((line) => make("li", {}, line)),
              Object.entries(told.unknown_kinds).map(([kind, amount]) => make("li", {}, `${count(amount, "record")} of the unknown kind ${kind}`)),
            ),
          )
        : "",
      make("p.soft.small", {}, `seed ${told.seed} \u00b7 ${Object.entries(told.versions).map((pair) => pair.join(" ")).join(", ")} \u00b7 ${count(told.records, "record")} \u00b7 ${told.where}`),
    );
  }

  close() {
    this.study.removeEventListener("change", this.heard);
    this.figures.close();
  }
}

export class StudiesView {
  constructor() {
    this.list = make("tbody", {});
    this.chosen = new Map();
    this.comparison = make("div.pair", {});
    this.said = make("p.soft", { role: "status" });
    const heads = ["study", "goal", "best", "trials", "", "begun", "compare"];
    this.element = make(
      "section",
      {},
      make("h1", { tabindex: -1 }, "Studies"),
      make(
        "div.card.scroll",
        {},
        make("table.studies", {}, make("thead", {}, make("tr", {}, heads.map((name, at) => make(at === 2 || at === 3 ? "th.n" : "th", { scope: "col" }, name || make("span.unseen", {}, "by state"))))), this.list),
      ),
      this.said,
      this.comparison,
    );
    this.figures = new Figures({ base: "/api", summary: null, open: () => {} }, ["comparison"], this.comparison);
    this.figures.said = this.said;
    this.asking = new AbortController();
    this.load();
    this.timer = setInterval(() => document.hidden || this.load(), 2000);
  }

  async load() {
    const told = await ask("/api/studies", this.asking.signal).catch(() => null);
    if (!told) return;
    const text = JSON.stringify(told.studies);
    if (text === this.shown) return;
    this.shown = text;
    const focused = document.activeElement?.getAttribute?.("href");
    this.list.replaceChildren(...told.studies.map((each) => this.row(each)));
    if (focused) this.list.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
  }

  row(each) {
    const best = each.front !== null ? `${each.front} on the front` : each.best ? number(each.best.values[0]) : "\u2013";
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, make("a", { href: `#/${each.id}/overview` }, each.name)),
      make("td", {}, each.error ? make("span.soft", {}, "cannot be read") : each.loaded ? each.objectives.join(", ") : make("span.soft", {}, "reading\u2026")),
      make("td.n", {}, best),
      make("td.n", {}, each.trials.toLocaleString("en-US")),
      make("td.wide", {}, bar(each.counts, each.trials || 1)),
      make("td", {}, moment(each.created_at)),
      make("td", {}, this.choice(each)),
    );
  }

  // Studies that are marked are drawn together below the table.
  choice(each) {
    const box = make("input", { type: "checkbox", "aria-label": `compare ${each.name}`, checked: this.chosen.has(each.id) });
    box.addEventListener("change", () => {
      if (box.checked) this.chosen.set(each.id, each.name);
      else this.chosen.delete(each.id);
      this.said.textContent = this.chosen.size === 1 ? "Mark another study to compare with." : "";
      this.said.classList.remove("wrong");
      this.figures.query = String(new URLSearchParams({ studies: [...this.chosen.keys()].join(",") }));
      if (this.chosen.size > 1) this.figures.refresh();
      else this.figures.clear();
    });
    return box;
  }

  close() {
    this.figures.close();
    this.asking.abort();
    clearInterval(this.timer);
  }
}

export { stateMark };
