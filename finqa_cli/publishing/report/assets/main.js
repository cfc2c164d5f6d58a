// Views by address, keys, and colours.

const VIEWS = {
  ...source.views,
  overview: { title: "Overview", show: showOverview, needs: () => state.runs.length > 0 },
  episodes: { title: "Episodes", show: showEpisodes, needs: () => state.runs.some((run) => run.episodes.length) },
  compare: { title: "Compare", show: showComparison, needs: () => Boolean(state.report.comparison) },
  settings: { title: "Settings", show: showSettings, needs: () => state.runs.length > 0 },
  episode: { title: "Episode", show: showEpisode, within: "episodes", needs: () => state.runs.length > 0 },
  group: { title: "Group", show: showGroup, within: "episodes", needs: () => state.runs.length > 0 },
};

const offered = () => Object.entries(VIEWS).filter(([, view]) => !view.within && view.needs());

let drawing = 0;

/** Draws the view of the address; with `keep` the reader stays where they are. */
async function draw(keep = false) {
  const turn = (drawing += 1);
  const content = document.getElementById("content");
  const { view: name, parameters } = address();
  const view = VIEWS[name] && VIEWS[name].needs() ? VIEWS[name] : VIEWS[offered()[0][0]];
  state.neighbours = [];
  state.up = link(offered()[0][0]);
  state.move = null;
  state.keeping = keep;
  const restore = keep ? source.place() : null; // before `show`, which takes rows that it keeps out of the page
  let page;
  try {
    page = await view.show(parameters);
  } catch (error) {
    page = h("div", {}, h("h1", {}, "This page cannot be shown"), h("p", { class: "problem" }, String(error)));
  }
  if (turn !== drawing) return; // another address was opened in the meantime
  content.replaceChildren(page);
  const current = view.within || Object.keys(VIEWS).find((each) => VIEWS[each] === view);
  document.getElementById("views").replaceChildren(
    ...source.ways(),
    ...offered().map(([each, { title }]) => h("a", { href: link(each), "aria-current": each === current ? "page" : null }, title)),
  );
  const heading = content.querySelector("h1");
  document.title = `${heading ? short(heading.dataset.title || heading.textContent.trim(), 80) : view.title} – ${source.name}`;
  if (restore) restore();
  else if (draw.before) {
    window.scrollTo(0, 0);
    content.focus({ preventScroll: true });
  }
  draw.before = true;
  performance.mark("finqa-drawn");
}

// ---- keys

const KEYS = [
  ["1 … 4", "open a view"],
  ["/", "search"],
  ["j, k", "next and previous row, or episode"],
  ["Enter", "open the row"],
  ["u", "back to the list"],
  ["[, ]", "previous and next iteration or step of a training"],
  ["t", "light, dark or system theme"],
  ...source.keys,
  ["?", "this list"],
];

function moveRow(by) {
  if (address().view === "episode") {
    const target = state.neighbours[by < 0 ? 0 : 1];
    if (target) location.hash = target;
    return;
  }
  const rows = [...document.querySelectorAll("main tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))];
  if (next) next.focus();
}

const ACTIONS = {
  "/": () => document.getElementById("search") ? document.getElementById("search").focus() : (location.hash = link("episodes")),
  j: () => moveRow(1),
  k: () => moveRow(-1),
  u: () => (location.hash = state.up),
  "[": () => state.move && state.move(-1),
  "]": () => state.move && state.move(1),
  t: () => nextTheme(),
  "?": () => showKeys(),
  ...source.actions,
};

function showKeys() {
  const dialog = document.getElementById("keys");
  dialog.replaceChildren(
    h("h2", { id: "keys-title" }, "Keys"),
    facts(KEYS.map(([key, what]) => [key, what])),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
  );
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target instanceof HTMLElement && event.target.matches("input:not([type=range]), select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const view = offered()[Number(event.key) - 1];
  const action = view ? () => (location.hash = link(view[0])) : ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

// ---- colours

const THEMES = ["", "light", "dark"];

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  document.getElementById("theme").replaceChildren(`Theme: ${theme || "system"}`);
}

function storedTheme(value) {
  try {
    if (value === undefined) return THEMES.includes(localStorage.getItem("finqa-theme")) ? localStorage.getItem("finqa-theme") : "";
    localStorage.setItem("finqa-theme", value);
  } catch {
    // pages from a file may have no storage
  }
  return value || "";
}

function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || "") + 1) % THEMES.length];
  storedTheme(theme);
  setTheme(theme);
}

// ---- printing shows what is folded

let folded = [];
window.addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("main details:not([open])")];
  for (const each of folded) each.open = true;
});
window.addEventListener("afterprint", () => {
  for (const each of folded) each.open = false;
});

setTheme(storedTheme());
document.getElementById("theme").addEventListener("click", nextTheme);
document.getElementById("help").addEventListener("click", showKeys);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part after # is the address of a view
  document.getElementById("content").focus();
});
window.addEventListener("hashchange", () => draw());
source.report().then(
  (report) => {
    prepare(report);
    draw().then(source.follow);
  },
  (error) => document.getElementById("content").replaceChildren(h("p", { class: "problem" }, `The data cannot be read: ${error}`)),
);
