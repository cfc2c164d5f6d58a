// Elements, numbers, data and addresses. Everything from a run is inserted as text, never as markup.

/** Where the data is: in this file, unless live.js loads it from the server that the page came from. */
const source = {
  name: "finqa report",
  views: {},
  actions: {},
  keys: [],
  ways: () => [],
  steps: () => "",
  allows: (address) => address.startsWith("#"),
  report: () => readPart("report"),
  details: async (episode) => {
    const chunk = state.runs[episode.run].chunk;
    const found = await readPart(`details-${episode.run}-${Math.floor(episode.index / chunk)}`);
    return found[episode.index % chunk];
  },
  follow: () => {},
};

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "href" && !source.allows(String(value))) throw new Error("links stay inside the page");
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// ---- numbers

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return Number(value.toPrecision(size >= 1000 ? 6 : digits)).toLocaleString("en", { maximumFractionDigits: 6 });
}

const fixed = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const signed = (value, digits = 3) =>
  value === null || value === undefined ? "–" : (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(digits);
const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
/** Training runs on groups of episodes count iterations; those on records count optimizer steps. */
const stepNounOf = (command) => (["sft", "dpo"].includes(command) ? "step" : "iteration");
const stepNoun = () => stepNounOf((state.runs.find((run) => stepNounOf(run.head.command) === "step") || { head: {} }).head.command);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** By what an interval is clustered; `cluster` is the noun of an environment that names none. */
const clusteredBy = (noun) => (noun === "cluster" ? "clustered by groups of tasks" : `clustered by ${noun}`);

const count = (value, noun) => `${value.toLocaleString("en")} ${noun}${value === 1 ? "" : "s"}`;

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 120) return `${number(seconds, 3)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// ---- data

const parts = new Map();

/** Reads one data script, unpacked where it is compressed. */
function readPart(name) {
  if (!parts.has(name)) parts.set(name, unpack(document.getElementById(name)));
  return parts.get(name);
}

async function unpack(script) {
  const value = JSON.parse(script.textContent);
  if (script.dataset.encoding !== "gzip-base64") return value;
  if (typeof DecompressionStream === "undefined") throw new Error("This browser has no DecompressionStream.");
  const bytes = Uint8Array.from(atob(value), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** A text without lone surrogates, which no address can contain. */
const wellFormed = (text) => (text.toWellFormed ? text.toWellFormed() : text);

const state = { report: null, runs: [], list: [], keeping: false, most: 0 };

const known = new WeakMap();

/** The episode of a row; the same object for the same row, so that what is kept with it survives new data. */
function episodeOf(row, run, place, index) {
  if (!known.has(row)) {
    const episode = { run: place };
    run.columns.forEach((name, column) => (episode[name] = row[column]));
    episode.id = wellFormed(episode.id);
    episode.about = run.questions[episode.question];
    episode.result = episode.correct === null ? "fault" : episode.correct ? "right" : "wrong";
    known.set(row, episode);
  }
  return Object.assign(known.get(row), { index });
}

function prepare(report) {
  state.report = report;
  state.runs = report.runs.map((run, place) => {
    const episodes = run.rows.map((row, index) => episodeOf(row, run, place, index));
    const byId = new Map(episodes.map((episode) => [episode.id, episode]));
    const byGroup = new Map();
    for (const episode of episodes) {
      if (!byGroup.has(episode.group)) byGroup.set(episode.group, []);
      byGroup.get(episode.group).push(episode);
    }
    const trained = new Set(episodes.map((episode) => episode.iteration));
    for (const step of run.steps) trained.add(step.iteration);
    const stepNumbers = [...trained].sort((one, other) => one - other);
    return { ...run, groups: run.groups.map(wellFormed), place, episodes, byId, byGroup, stepNumbers };
  });
}

const several = () => state.runs.length > 1;
const runName = (place) => state.runs[place].head.label;
/** A colour key for a run, and its name where there are two. */
const runTag = (place) => several() && h("span", { class: `run run-${place}` }, `${"AB"[place]} ${runName(place)}`);

const details = new WeakMap();

/** What the page of an episode shows, read once. */
function detailsOf(episode) {
  if (!details.has(episode)) details.set(episode, source.details(episode));
  return details.get(episode);
}

// ---- addresses

const link = (view, parameters = {}) => {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, value);
  }
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
};

function address() {
  const [view, query] = location.hash.replace(/^#\//, "").split(/\?(.*)/s);
  return { view: view || "overview", parameters: new URLSearchParams(query || "") };
}

const episodeLink = (episode) => link("episode", { run: episode.run || "", id: episode.id });
const groupLink = (episode) => link("group", { run: episode.run || "", id: state.runs[episode.run].groups[episode.group] });
const runOf = (parameters) => (parameters.get("run") === "1" && several() ? 1 : 0);

// ---- parts of pages

const RESULTS = { right: "✓ right", wrong: "✗ wrong", fault: "! fault" };
const chip = (result, text) => h("span", { class: `chip ${result}` }, text || RESULTS[result]);

/** A list of names with values; entries without a value are left out. */
function facts(entries) {
  const shown = entries.filter((entry) => entry && entry[1] !== null && entry[1] !== undefined && entry[1] !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A table that becomes a list of cards where the window is narrow. Columns are [title, class]. */
function table(columns, rows, caption) {
  const headers = columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
  const body = rows.map((cells) =>
    h("tr", {}, cells.map((cell, at) => h("td", { class: columns[at][1], "data-label": columns[at][0] }, cell))),
  );
  return h(
    "table",
    { class: "cards" },
    caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, headers)),
    h("tbody", {}, body),
  );
}
