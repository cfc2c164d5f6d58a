// The table of episodes: filter, sort and search.

const PAGE = 50;

const TABLE = [
  { key: "question", title: "Question", sort: (one) => one.about.id, cell: questionCell },
  { key: "result", title: "Result", sort: (one) => one.result, cell: (one) => chip(one.result) },
  { key: "reward", title: "Reward", kind: "num", sort: (one) => one.reward, cell: (one) => number(one.reward) },
  { key: "answer", title: "Answer", kind: "answer", sort: (one) => one.answer, cell: (one) => short(one.answer, 60) },
  { key: "iteration", get title() { return capital(stepNoun()); }, kind: "num", sort: (one) => one.iteration, cell: (one) => `${one.phase} ${one.iteration}` },
  { key: "turns", title: "Turns", kind: "num", sort: (one) => one.turns, cell: (one) => number(one.turns) },
  { key: "failed_calls", title: "Errors", kind: "num", sort: (one) => one.failed_calls, cell: (one) => number(one.failed_calls) },
  { key: "tokens", title: "Tokens", kind: "num", sort: (one) => one.tokens, cell: (one) => number(one.tokens) },
  { key: "seconds", title: "Seconds", kind: "num", sort: (one) => one.seconds, cell: (one) => number(one.seconds) },
];

const short = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);

function questionCell(episode) {
  return h(
    "a",
    { href: episodeLink(episode), class: "row-link" },
    short(episode.about.prompt || episode.about.id, 160),
    h("span", { class: "under" }, [episode.about.id, episode.about.kind, `attempt ${episode.member}`].filter(Boolean).join(" · ")),
  );
}

function haystack(episode) {
  if (episode.haystack === undefined) {
    const { about } = episode;
    const fields = [episode.id, about.prompt, about.cluster, about.kind, about.split, episode.answer, episode.explanation];
    episode.haystack = [...fields, episode.status, episode.reason].join("\n").toLowerCase();
  }
  return episode.haystack;
}

const FILTERS = {
  phase: (episode) => episode.phase,
  step: (episode) => String(episode.iteration),
  result: (episode) => episode.result,
  kind: (episode) => episode.about.kind || "(none)",
  reason: (episode) => episode.reason,
};

/** The episodes that an address asks for, filtered, searched and sorted. */
function chosenEpisodes(parameters) {
  const words = (parameters.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = Object.entries(FILTERS).filter(([name]) => parameters.get(name));
  const found = state.runs[runOf(parameters)].episodes.filter(
    (episode) =>
      wanted.every(([name, read]) => read(episode) === parameters.get(name)) &&
      words.every((word) => haystack(episode).includes(word)),
  );
  return sortedBy(TABLE, found, parameters);
}

/** Entries in the order that an address asks for; as they are where it asks for none. */
function sortedBy(columns, found, parameters) {
  const column = columns.find((each) => each.key === parameters.get("sort"));
  if (!column) return found;
  const factor = parameters.get("down") ? -1 : 1;
  const keyed = found.map((entry) => [column.sort(entry), entry]);
  keyed.sort(([one], [other]) => {
    if (one === other) return 0;
    if (one === null || one === undefined) return 1; // unknown values are last in both directions
    if (other === null || other === undefined) return -1;
    return (one < other ? -1 : 1) * factor;
  });
  return keyed.map((pair) => pair[1]);
}

function showEpisodes(parameters) {
  const run = state.runs[runOf(parameters)];
  const holder = h("div", {});
  const summary = h("p", { class: "quiet", role: "status" });
  const clear = h("a", { href: link("episodes", { run: run.place || "" }) }, "Clear filters");
  let most = state.keeping ? state.most : PAGE;
  const draw = () => {
    state.most = most;
    const began = performance.now();
    state.list = chosenEpisodes(parameters);
    const right = state.list.filter((episode) => episode.correct).length;
    const graded = state.list.filter((episode) => episode.correct !== null).length;
    const share = graded ? `, ${percent(right / graded)} of the graded right` : "";
    summary.replaceChildren(`${number(state.list.length)} of ${count(run.episodes.length, "episode")}${share}. `);
    if ([...parameters.keys()].some((name) => name !== "run")) summary.append(clear);
    // rows are kept: typing in the search draws the table again
    const rows = state.list.slice(0, most).map((episode) => (episode.element ??= rowOf(TABLE, episode)));
    holder.replaceChildren(sortableTable(TABLE, rows, parameters, change, "Episodes"));
    if (state.list.length > most) {
      const more = () => {
        const from = most;
        most += PAGE;
        draw();
        holder.querySelectorAll(".row-link")[from].focus();
      };
      holder.append(h("p", {}, h("button", { type: "button", onclick: more }, `Show ${PAGE} more`)));
    }
    state.filterMs = performance.now() - began;
  };
  const change = (name, value) => {
    if (value) parameters.set(name, value);
    else parameters.delete(name);
    most = PAGE;
    history.replaceState(null, "", link("episodes", Object.fromEntries(parameters)));
    draw();
  };
  const search = h("input", { type: "search", id: "search", value: parameters.get("q") || "", placeholder: "question, answer, id, reason", oninput: () => change("q", search.value) });
  const controls = [h("label", {}, "Search ", search)];
  if (several()) controls.push(select("Run", state.runs.map((each) => [each.place ? "1" : "", `${"AB"[each.place]} ${each.head.label}`]), parameters.get("run") || "", (value) => (location.hash = link("episodes", { run: value }))));
  for (const [name, read] of Object.entries(FILTERS)) {
    const values = [...new Set(run.episodes.map(read))].filter(Boolean);
    values.sort((one, other) => (name === "step" ? one - other : one < other ? -1 : 1));
    if (values.length < 2 && !parameters.get(name)) continue;
    const options = [["", "all"], ...values.map((value) => [value, value.replaceAll("_", " ")])];
    controls.push(select(capital(name === "step" ? stepNoun() : name), options, parameters.get(name) || "", (value) => change(name, value)));
  }
  draw();
  return h("div", {}, h("h1", {}, "Episodes ", runTag(run.place)), h("div", { class: "filters" }, controls), summary, holder);
}

const rowOf = (columns, entry) =>
  h("tr", {}, columns.map((column) => h("td", { class: column.kind, "data-label": column.title }, column.cell(entry))));

function select(title, options, chosen, change) {
  const element = h("select", { onchange: () => change(element.value) }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  return h("label", {}, `${title} `, element);
}

/** A table whose heads sort it; a column without `sort` has a plain head. */
function sortableTable(columns, rows, parameters, change, what) {
  const sorted = parameters.get("sort");
  const down = Boolean(parameters.get("down"));
  const headers = columns.map((column) => {
    if (!column.sort) return h("th", { scope: "col", class: column.kind }, h("span", { class: "hidden" }, column.title));
    const active = column.key === sorted;
    const turn = () => {
      if (active) parameters[down ? "delete" : "set"]("down", "1");
      else parameters.delete("down");
      change("sort", column.key);
      document.getElementById(`sort-${column.key}`).focus();
    };
    const arrow = h("span", { "aria-hidden": "true", class: "arrow" }, active ? (down ? "▼" : "▲") : "");
    return h(
      "th",
      { scope: "col", class: column.kind, "aria-sort": active ? (down ? "descending" : "ascending") : null },
      h("button", { type: "button", id: `sort-${column.key}`, onclick: turn }, column.title, arrow),
    );
  });
  const caption = h("caption", { class: "hidden" }, `${what}; click the head of a column to sort`);
  return h("table", { class: `cards sortable ${what.toLowerCase()}` }, caption, h("thead", {}, h("tr", {}, headers)), h("tbody", {}, rows));
}
