// The table of trials: only the rows in sight are here, the server sorts and filters.

import { ask, duration, make, number, paced, shown, stateMark } from "./words.js";

const ROW = 34; // pixels of a row
const BLOCK = 100; // rows of one question
const HEIGHTS_END = 12_000_000; // pixels that every browser scrolls through

export class TrialsView {
  constructor(study, words = "") {
    this.study = study;
    const kept = sessionStorage.getItem(`table ${study.id}`);
    this.query = { words: "", sort: "rank", descending: false, ...(kept ? JSON.parse(kept) : {}) };
    if (words) this.query.words = words;
    Object.assign(this, { rows: new Map(), matching: 0, columns: "", asked: 0 });
    this.field = make("input", {
      type: "search", id: "filter", value: this.query.words, placeholder: "lr<0.01 optimizer=adamw failed", autocomplete: "off",
      spellcheck: "false", "aria-describedby": "filter-help filter-said", maxlength: 300,
    });
    this.said = make("p.soft", { id: "filter-said", role: "status" });
    this.head = make("thead", {});
    this.body = make("tbody", {});
    this.table = make("table.trials", {}, make("caption.unseen", {}, "Trials of the study"), this.head, this.body);
    this.view = make("div.rows", { tabindex: 0, role: "region", "aria-label": "Table of trials, scrolls" }, this.table);
    this.element = make(
      "section",
      {},
      make("h1", { tabindex: -1 }, "Trials"),
      make(
        "div.tools",
        {},
        make("label", { for: "filter" }, "Filter"),
        this.field,
        make("button.plain", { type: "button", onclick: () => this.sortBy("rank") }, "Best first"),
      ),
      make("p.soft.small", { id: "filter-help" }, "Terms are joined by \u201cand\u201d: NAME<VALUE, NAME=VALUE, NAME!=VALUE, a state, or trials by number, as 3,12."),
      this.said,
      this.view,
    );
    this.filter = paced(150, () => {
      this.query.words = this.field.value.trim();
      this.view.scrollTop = 0;
      this.forget();
    });
    this.field.addEventListener("input", this.filter);
    this.refresh = paced(150, () => this.load({ fresh: true }));
    this.view.addEventListener("scroll", () => this.draw(), { passive: true });
    this.heard = (event) => {
      this.began ??= event.detail.began;
      this.refresh();
    };
    study.addEventListener("change", this.heard);
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.view);
    if (study.summary) this.load({ fresh: true });
  }

  sortBy(column) {
    const same = this.query.sort === column;
    const down = this.study.summary?.directions?.[this.study.summary.metrics.indexOf(column)] === "max";
    this.query = { ...this.query, sort: column, descending: same ? !this.query.descending : down };
    this.forget();
  }

  forget() {
    this.rows.clear();
    sessionStorage.setItem(`table ${this.study.id}`, JSON.stringify(this.query));
    this.load({ fresh: true });
  }

  get span() {
    const first = Math.floor(this.view.scrollTop / this.step);
    return [first, Math.min(first + Math.ceil(this.view.clientHeight / ROW) + 1, this.matching)];
  }

  // Rows lie closer than they are high once a browser could not scroll through all of them.
  get step() {
    return Math.min(ROW, HEIGHTS_END / Math.max(this.matching, 1));
  }

  async load({ fresh = false } = {}) {
    const turn = (this.asked += 1);
    const [first] = this.span;
    const offset = Math.max(0, first - BLOCK / 4);
    const { words, sort, descending } = this.query;
    const parts = new URLSearchParams({ words, sort, descending, offset, limit: BLOCK });
    let told;
    try {
      told = await ask(`${this.study.base}/trials?${parts}`);
    } catch (error) {
      if (turn !== this.asked) return;
      this.said.textContent = `${error.message}.`;
      this.said.classList.add("wrong");
      this.field.setAttribute("aria-invalid", "true");
      return;
    }
    if (turn !== this.asked) return;
    if (fresh) this.rows.clear();
    told.rows.forEach((row, at) => this.rows.set(told.offset + at, row));
    this.matching = told.matching;
    this.said.classList.remove("wrong");
    this.field.removeAttribute("aria-invalid");
    this.said.textContent =
      told.matching === told.total ? `${told.total.toLocaleString("en-US")} trials` : `${told.matching.toLocaleString("en-US")} of ${told.total.toLocaleString("en-US")} trials`;
    this.header();
    this.draw({ force: true });
    if (this.began !== undefined) {
      const { began } = this;
      this.began = undefined;
      requestAnimationFrame(() => {
        this.element.dataset.updated = String(performance.now() - began);
      });
    }
    this.element.dataset.drawn = "yes";
  }

  header() {
    const { summary } = this.study;
    const names = ["trial", "state", ...summary.metrics, "epochs", "seconds", ...summary.parameters, "devices"];
    const { sort, descending } = this.query;
    const key = JSON.stringify([names, sort, descending]);
    if (key === this.columns) return;
    this.columns = key;
    const focused = document.activeElement?.dataset?.column;
    const numeric = new Set(["trial", ...summary.metrics, "epochs", "seconds"]);
    this.table.setAttribute("aria-colcount", names.length);
    this.head.replaceChildren(
      make(
        "tr",
        {},
        names.map((name) => {
          const sorted = name === sort ? (descending ? "descending" : "ascending") : null;
          const title = { seconds: "time" }[name] || name;
          const inner = name === "devices" ? title : make("button", { type: "button", "data-column": name, onclick: () => this.sortBy(name) }, title, make("span.arrow", { "aria-hidden": "true" }, sorted ? (descending ? "\u2193" : "\u2191") : ""));
          return make(numeric.has(name) ? "th.n" : "th", { scope: "col", "aria-sort": sorted }, inner);
        }),
      ),
    );
    if (focused) this.head.querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
  }

  draw({ force = false } = {}) {
    const [first, last] = this.span;
    const key = `${first} ${last}`;
    if (!force && key === this.drawnSpan) return;
    this.drawnSpan = key;
    if (!this.study.summary) return;
    const missing = Array.from({ length: last - first }, (_, at) => first + at).some((at) => !this.rows.has(at));
    if (missing && !force) this.fetchSoon();
    const width = this.head.rows[0]?.cells.length || 1;
    const space = (height) => {
      const cell = make("td", { colspan: width });
      cell.style.height = `${height}px`;
      return make("tr.space", { "aria-hidden": "true" }, cell);
    };
    this.table.setAttribute("aria-rowcount", this.matching + 1);
    const rows = [];
    for (let at = first; at < last; at += 1) rows.push(this.row(at, width));
    const above = first * this.step;
    const below = Math.max(0, this.matching * this.step - above - rows.length * ROW);
    const focused = this.body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    this.body.replaceChildren(space(above), ...rows, space(below));
    if (focused) this.body.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  fetchSoon() {
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.load(), 60);
  }

  row(at, width) {
    const row = this.rows.get(at);
    const attributes = { "aria-rowindex": at + 2 };
    if (!row) return make("tr.waiting", attributes, make("th", { scope: "row" }, "\u2026"), make("td", { colspan: width - 1 }));
    const { summary } = this.study;
    return make(
      "tr",
      attributes,
      make("th.n", { scope: "row" }, make("a", { href: `${this.study.address("trials")}/${row.trial}` }, String(row.trial))),
      make("td", {}, stateMark(row.state), row.attempts > 1 ? make("span.times", { title: `${row.attempts} runs` }, `\u00d7${row.attempts}`) : null),
      row.values.map((value) => make(row.final ? "td.n" : "td.n.soft", {}, number(value))),
      make("td.n", {}, String(row.epochs)),
      make("td.n", {}, duration(row.seconds)),
      summary.parameters.map((name) => make("td", {}, shown(row.params[name]))),
      make("td.soft", {}, row.devices.length > 3 ? `${row.devices.length} devices` : row.devices.join(", ")),
    );
  }

  close() {
    this.study.removeEventListener("change", this.heard);
    this.watch.disconnect();
    this.refresh.cancel();
    this.filter.cancel();
    clearTimeout(this.soon);
  }
}
