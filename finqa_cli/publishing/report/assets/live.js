// The data of the pages that `finqa view` serves: fetched once, then what was added, while the page is visible.

const EVERY_MS = 2000;
const ENDED_MS = 10000;
const SHARE = 20; // a look takes at most so small a part of the time

const served = JSON.parse(document.getElementById("source").textContent);
const home = document.querySelector("a.brand").getAttribute("href");
const asked = [...served.runs, ...(served.control ? ["control", served.control] : [])].join("/");

source.name = "finqa view";
source.allows = (address) => /^(#|(\.\.?\/)+(run\/[0-9a-f]+|compare\/[0-9a-f]+\/[0-9a-f]+)?$)/.test(address);
source.report = () => (served.page === "runs" ? loadListing() : loadReport());
source.details = (episode) => load(`episode/${served.runs[episode.run]}/${episode.line}`);
source.place = keepPlace;
source.follow = () => schedule();
source.steps = stepsOf;

if (served.page === "runs") {
  source.views = { runs: { title: "Runs", show: showRuns, needs: () => true } };
  source.actions = { x: pickRow, c: comparePicked };
  source.keys = [["x", "select the run; select two for a comparison"], ["c", "compare the two selected runs"]];
} else {
  source.ways = () => [h("a", { href: home }, "All runs")];
  source.actions = { r: () => location.assign(home) };
  source.keys = [["r", "all runs"]];
}

async function load(path) {
  const response = await fetch(`${home}data/${path}`, { cache: "no-store", credentials: "omit" });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

async function loadListing() {
  const listing = await load("runs");
  state.listing = listing;
  return { runs: [], comparison: null, listing };
}

let loaded = null;

async function loadReport() {
  const versions = loaded ? loaded.runs.map((run) => run.version).join(",") : "";
  const fresh = await load(`report/${asked}?since=${versions}`);
  const runs = fresh.runs.map((run, place) => merged(loaded && loaded.runs[place], run));
  loaded = { ...fresh, runs };
  return loaded;
}

/** A run with what was added to it; a row replaces that of the same line. */
function merged(before, run) {
  const whole = { ...run };
  if (!run.full) {
    for (const name of ["questions", "groups", "steps"]) whole[name] = [...before[name], ...run[name]];
    whole.settings = before.settings;
    whole.rows = [...before.rows];
    for (const row of run.rows) {
      const place = before.places.get(row[row.length - 1]);
      if (place === undefined) whole.rows.push(row);
      else whole.rows[place] = row;
    }
  }
  const column = (name) => run.columns.indexOf(name);
  const [iteration, phase, group, member, id] = ["iteration", "phase", "group", "member", "id"].map(column);
  const order = (one, other) => (one === other ? 0 : one < other ? -1 : 1);
  whole.rows.sort(
    (one, other) =>
      one[iteration] - other[iteration] ||
      Number(one[phase] !== "train") - Number(other[phase] !== "train") ||
      order(whole.groups[one[group]], whole.groups[other[group]]) ||
      one[member] - other[member] ||
      order(one[id], other[id]),
  );
  whole.places = new Map(whole.rows.map((row, place) => [row[row.length - 1], place]));
  return whole;
}

// ---- looking again

let timer = 0;
let looking = false;
let drawnAt = Date.now();

const running = () => served.page === "runs" || loaded.runs.some((run) => ["running", "unknown"].includes(run.head.status));

function schedule(after = running() ? EVERY_MS : ENDED_MS) {
  if (served.page === "runs") tell("live", "");
  else tell(running() ? "live" : "", "");
  clearTimeout(timer);
  timer = setTimeout(look, after);
}

async function look() {
  if (document.hidden || looking) return; // the page asks again once it is visible
  looking = true;
  const begun = performance.now();
  let problem = "";
  try {
    await (served.page === "runs" ? lookAtRuns() : lookAtReport());
  } catch (error) {
    problem = error instanceof TypeError ? "not connected: finqa view has stopped" : error.message;
  }
  looking = false;
  const every = problem ? ENDED_MS : running() ? EVERY_MS : ENDED_MS;
  schedule(Math.max(every, SHARE * (performance.now() - begun)));
  if (problem) tell("", problem);
  performance.mark("finqa-looked");
}

async function lookAtRuns() {
  if (occupied()) return;
  const before = JSON.stringify(state.listing);
  const report = await loadListing();
  if (JSON.stringify(state.listing) === before && Date.now() - drawnAt < 30000) return; // ages change
  drawnAt = Date.now();
  state.report = report;
  await draw(true);
}

async function lookAtReport() {
  const { stamp } = await load(`stamp/${asked}`);
  if (stamp === loaded.stamp || occupied()) return;
  prepare(await loadReport());
  state.list = state.list.map((episode) => state.runs[episode.run].byId.get(episode.id)).filter(Boolean);
  const { view, parameters } = address();
  const trail = document.querySelector("main .trail");
  if (view === "episode" && trail && state.runs[runOf(parameters)].byId.get(parameters.get("id")) === state.shown) {
    const restore = keepPlace(); // an open episode stays as it is: only the way to the next one may be new
    trail.replaceWith(trailOf(state.shown));
    restore();
  } else await draw(true);
}

function tell(kind, text) {
  const element = document.getElementById("live");
  element.className = kind || "quiet";
  const words = text || kind;
  if (element.textContent !== words) element.replaceChildren(words);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden && state.report) look();
});

// ---- what the reader is at

const HELD_MS = 15000; // a window may never see the end of what was begun in it

let pressed = 0; // when a button was pressed that is not released
let choosing = 0; // when a list of options was opened

addEventListener("pointerdown", (event) => {
  pressed = Date.now();
  if (event.target instanceof HTMLSelectElement) choosing = Date.now();
});
for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => (pressed = 0));
for (const name of ["change", "focusout"]) addEventListener(name, () => (choosing = 0));

/** Whether new data would take something out of the reader's hands: it waits for the next look. */
function occupied() {
  const selection = getSelection();
  const selects = !selection.isCollapsed && document.getElementById("content").contains(selection.anchorNode);
  return selects || Date.now() - Math.max(pressed, choosing) < HELD_MS || document.querySelector("dialog[open]") !== null;
}

function keyOf(element) {
  if (element.id) return `#${element.id}`;
  if (element.hasAttribute("href")) return element.getAttribute("href");
  const label = element.closest("label");
  return `${element.tagName} ${label ? label.firstChild.textContent : element.textContent}`;
}

const FOUND = "a[href], button, input, select, summary, [id]";

/** Elements of the page by their keys, with a number behind keys that are there several times. */
function keyed(selector = FOUND) {
  const counts = new Map();
  return [...document.querySelectorAll(`main :is(${selector})`)].map((element) => {
    const key = keyOf(element);
    counts.set(key, (counts.get(key) || 0) + 1);
    return [`${key} ${counts.get(key)}`, element];
  });
}

/** Notes focus, folded parts and what is at the top of the window, and returns what puts them back. */
function keepPlace() {
  const before = keyed();
  const active = before.find(([, element]) => element === document.activeElement);
  const range = active && active[1].matches("input[type=search]") ? [active[1].selectionStart, active[1].selectionEnd] : null;
  const folds = new Map(keyed("summary").map(([key, element]) => [key, element.parentElement.open]));
  const edge = document.querySelector(".top").getBoundingClientRect().bottom;
  const visible = ([, element]) => element.getBoundingClientRect().top >= edge && element.getBoundingClientRect().top < innerHeight;
  const anchor = scrollY > 0 && (active && visible(active) ? active : before.find(visible));
  const top = anchor && anchor[1].getBoundingClientRect().top;
  return () => {
    for (const [key, element] of keyed("summary")) if (folds.has(key)) element.parentElement.open = folds.get(key);
    const after = new Map(keyed());
    if (active && after.has(active[0])) {
      after.get(active[0]).focus({ preventScroll: true });
      if (range) after.get(active[0]).setSelectionRange(...range);
    }
    if (anchor && after.has(anchor[0])) scrollBy(0, after.get(anchor[0]).getBoundingClientRect().top - top);
  };
}
