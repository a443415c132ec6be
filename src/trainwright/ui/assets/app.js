// The page: which view the address names, the stream of what changes, and the frame around them.

import { TrialView } from "./trial.js";
import { TrialsView } from "./trials.js";
import { FiguresView, OverviewView, StudiesView } from "./views.js";
import { ask, make } from "./words.js";

const VIEWS = [
  ["overview", "Overview", (study) => new OverviewView(study)],
  ["trials", "Trials", (study, words) => new TrialsView(study, words)],
  ["curves", "Learning curves", (study) => new FiguresView(study, "Learning curves", ["curves"], { filtered: true })],
  ["parameters", "Parameters", (study) => new FiguresView(study, "Parameters", ["scatter", "importance", "parallel"], { filtered: true })],
  ["cluster", "Cluster", (study) => new FiguresView(study, "Cluster", ["cluster"])],
  ["ensembles", "Ensembles", (study) => new FiguresView(study, "Ensembles", ["ensembles"])],
];

const content = document.getElementById("content");
const live = document.getElementById("live");
const crumb = document.getElementById("study");
const nav = document.getElementById("views");

// One study: its latest summary, and whoever wants to hear of changes.
class Study extends EventTarget {
  constructor(id) {
    super();
    this.id = id;
    this.base = `/api/studies/${encodeURIComponent(id)}`;
    this.summary = null;
    this.stream = new EventSource(`${this.base}/events`);
    this.stream.onmessage = (event) => {
      const began = performance.now();
      this.summary = JSON.parse(event.data);
      tell(this.summary.error ? "unreadable" : this.summary.loaded ? "live" : "reading");
      this.dispatchEvent(new CustomEvent("change", { detail: { began } }));
    };
    this.stream.onerror = () => tell("lost");
  }

  address(view = "overview") {
    return `#/${this.id}/${view}`;
  }

  open(trial) {
    location.hash = `#/${this.id}/trials/${trial}`;
  }

  close() {
    this.stream.close();
  }
}

const STATES = { live: "live", reading: "reading the ledger", lost: "connection lost, trying again", unreadable: "the ledger cannot be read" };

function tell(state) {
  if (live.dataset.state === state) return;
  live.dataset.state = state;
  live.textContent = STATES[state] || "";
}

let study = null;
let view = null;
let index = null;

const route = () => {
  const [path, words = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [id = "", name = "", rest = ""] = path.split("/").map(decodeURIComponent);
  return { id, name, rest, words: decodeURIComponent(words) };
};

const links = (current) => {
  const list = study ? VIEWS.map(([name, title]) => [study.address(name), title, name]) : [];
  if (!index.single && !study) list.unshift(["#/", "Studies", ""]);
  nav.replaceChildren(
    ...list.map(([href, title, name]) => make("a", { href, "aria-current": name === current ? "page" : null }, title)),
  );
  const here = nav.querySelector("[aria-current]"); // not scrollIntoView: the next Tab would start there
  if (here) nav.scrollLeft = here.offsetLeft - nav.offsetLeft - (nav.clientWidth - here.offsetWidth) / 2;
};

const show = (made, title, { focus }) => {
  view?.close?.();
  view = made;
  content.replaceChildren(made.element);
  document.title = `${title} \u2013 Trainwright`;
  window.scrollTo(0, 0);
  if (focus) content.querySelector("h1")?.focus({ preventScroll: true });
};

const failure = (text) => ({ element: make("section", {}, make("h1", { tabindex: -1 }, "Not here"), make("p.notice", {}, text)) });

const go = async ({ focus = true } = {}) => {
  const { id, name, rest, words } = route();
  if (id === "content") return; // the skip link
  index ||= await ask("/api/studies");
  if (!id) {
    if (index.single) {
      location.replace(`#/${index.studies[0].id}/overview`);
      return;
    }
    study?.close();
    study = null;
    crumb.textContent = "";
    live.textContent = "";
    delete live.dataset.state;
    links("");
    show(new StudiesView(), "Studies", { focus });
    return;
  }
  if (study?.id !== id) {
    study?.close();
    let known = index.studies.find((each) => each.id === id);
    if (!known) {
      index = await ask("/api/studies");
      known = index.studies.find((each) => each.id === id);
    }
    if (!known) {
      study = null;
      links("");
      show(failure("There is no such study here; it may have been on another server."), "Not here", { focus });
      return;
    }
    study = new Study(id);
    crumb.textContent = known.name;
  }
  const chosen = VIEWS.find(([each]) => each === (name || "overview")) || VIEWS[0];
  links(chosen[0]);
  if (chosen[0] === "trials" && rest) {
    if (view instanceof TrialView && view.study === study) view.close();
    show(new TrialView(study, Number(rest)), `Trial ${rest}`, { focus });
  } else show(chosen[2](study, words), `${chosen[1]} of ${crumb.textContent}`, { focus });
};

const went = (options) =>
  go(options).catch((error) => show(failure(`The server does not answer: ${error.message}.`), "Not here", { focus: false }));

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});
window.addEventListener("hashchange", () => went());
went({ focus: false });
