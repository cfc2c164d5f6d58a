// The list of runs that `finqa view` begins with: filter, sort, and two to compare.

state.picked = new Set();

const RUN_TABLE = [
  { title: "Select", kind: "pick", cell: pickCell },
  { key: "name", title: "Run", sort: (run) => run.name, cell: runCell },
  { key: "status", title: "Status", sort: (run) => run.state, cell: statusCell },
  { key: "score", title: "Score", sort: (run) => run.score && run.score.value, cell: scoreCell },
  { key: "progress", title: "Progress", sort: (run) => share(run.progress), cell: progressCell },
  { key: "age", title: "Age", kind: "num", sort: (run) => run.created && -run.created, cell: (run) => age(run.created) },
  { key: "seconds", title: "Time", kind: "num", sort: (run) => run.seconds, cell: (run) => duration(run.seconds) },
  { key: "size", title: "Size", kind: "num", sort: (run) => run.size, cell: (run) => bytes(run.size) },
];

const RUN_FILTERS = {
  status: (run) => run.status,
  command: (run) => run.command,
  policy: (run) => run.policy,
  data: (run) => run.data,
};
const CHIPS = { completed: "right", running: "running", damaged: "wrong", failed: "wrong", crashed: "wrong" };

const share = (progress) => (progress && progress.total ? progress.done / progress.total : null);
const runAddress = (run) => `${home}run/${run.id}`;

function age(created) {
  if (created === null) return "–";
  const seconds = Math.max(0, Date.now() / 1000 - created);
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

function bytes(size) {
  const at = Math.min(3, Math.floor(Math.log10(Math.max(size, 1)) / 3));
  return `${number(size / 1000 ** at, 3)} ${["B", "kB", "MB", "GB"][at]}`;
}

function pickCell(run) {
  const change = () => {
    state.picked[state.picked.has(run.id) ? "delete" : "add"](run.id);
    showPicked();
  };
  const full = state.picked.size > 1 && !state.picked.has(run.id);
  return h("input", { type: "checkbox", id: `pick-${run.id}`, "aria-label": `Compare ${run.name}`, checked: state.picked.has(run.id), disabled: full, onchange: change });
}

/** The name of a run as a link to its page, and what it is. */
function runCell(run) {
  const step = run.depth ? `step of ${run.parent}` : "";
  const paid = run.cost_usd === null ? "" : `$${number(run.cost_usd, 2)}`;
  const under = [run.command, run.policy, run.data, run.grader, paid, ...run.tags, step].filter(Boolean).join(" · ");
  return [h("a", { href: runAddress(run), class: "row-link" }, run.name), h("span", { class: "under" }, under)];
}

function statusCell(run) {
  const reason = run.reason && h("span", { class: "under" }, run.reason);
  return h("div", {}, h("span", { class: `chip ${CHIPS[run.status] || "fault"}` }, run.state), reason);
}

function scoreCell({ score, command }) {
  if (!score || score.graded === 0) return "–";
  const interval = score.low === null || score.high === null ? "" : `${fixed(score.low)} to ${fixed(score.high)}, `;
  const under = h("span", { class: "under" }, `${interval}n ${number(score.graded)}${score.iteration ? `, ${stepNounOf(command)} ${score.iteration}` : ""}`);
  if (score.name !== "accuracy") return h("div", {}, `${score.name} ${fixed(score.value)}`, under);
  return h("div", {}, h("strong", {}, fixed(score.value)), gauge(score.value, score.low, score.high), under);
}

function progressCell({ progress, status }) {
  if (!progress) return "–";
  const text = progress.step || (progress.total === null ? count(progress.done, progress.unit) : `${number(progress.done)} of ${count(progress.total, progress.unit)}`);
  const bar = status !== "completed" && share(progress) !== null && h("progress", { value: progress.done, max: progress.total, "aria-label": text });
  return h("div", {}, bar, h("span", { class: "under" }, text));
}

/** Runs that an address asks for; steps of pipelines and experiments follow what they are part of. */
function chosenRuns(parameters) {
  const words = (parameters.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = Object.entries(RUN_FILTERS).filter(([name]) => parameters.get(name));
  const text = (run) => `${run.name} ${run.command} ${run.state} ${run.reason}`.toLowerCase();
  const found = state.listing.runs.filter(
    (run) =>
      (parameters.get("steps") || run.depth === 0) &&
      wanted.every(([name, read]) => read(run) === parameters.get(name)) &&
      words.every((word) => text(run).includes(word)),
  );
  return sortedBy(RUN_TABLE, found, parameters);
}

function showRuns(parameters) {
  const { runs, others, folders } = state.listing;
  const holder = h("div", {});
  const summary = h("p", { class: "quiet" });
  const draw = () => {
    const found = chosenRuns(parameters);
    const all = runs.filter((run) => parameters.get("steps") || run.depth === 0).length;
    summary.replaceChildren(`${number(found.length)} of ${count(all, "run")} in ${folders.join(", ")}.`);
    if (parameters.size) summary.append(" ", h("a", { href: link("runs") }, "Clear filters"));
    const rows = found.map((run) => {
      const row = rowOf(RUN_TABLE, run);
      if (run.depth && !parameters.get("sort")) row.children[1].classList.add(`depth-${run.depth}`);
      return row;
    });
    holder.replaceChildren(rows.length ? sortableTable(RUN_TABLE, rows, parameters, change, "Runs") : h("p", {}, runs.length ? "No run matches the filter." : "There are no runs yet."));
  };
  const change = (name, value) => {
    if (value) parameters.set(name, value);
    else parameters.delete(name);
    history.replaceState(null, "", link("runs", Object.fromEntries(parameters)));
    draw();
  };
  const search = h("input", { type: "search", id: "search", value: parameters.get("q") || "", placeholder: "name, command, status", oninput: () => change("q", search.value) });
  const controls = [h("label", {}, "Search ", search)];
  for (const [name, read] of Object.entries(RUN_FILTERS)) {
    const values = [...new Set(runs.map(read))].filter(Boolean).sort();
    if (values.length < 2 && !parameters.get(name)) continue;
    const options = [["", "all"], ...values.map((value) => [value, value])];
    controls.push(select(name[0].toUpperCase() + name.slice(1), options, parameters.get(name) || "", (value) => change(name, value)));
  }
  if (runs.some((run) => run.depth)) {
    const steps = h("input", { type: "checkbox", id: "steps", checked: Boolean(parameters.get("steps")), onchange: () => change("steps", steps.checked ? "1" : "") });
    controls.push(h("label", {}, "Steps of pipelines ", steps));
  }
  for (const id of state.picked) if (!runs.some((run) => run.id === id)) state.picked.delete(id);
  draw();
  const foreign = others.length > 0 && h("p", { class: "quiet" }, `Not shown: ${count(others.length, "folder")} without a run, or with links to other folders: ${others.join(", ")}`);
  return h("div", {}, h("h1", {}, "Runs"), h("div", { class: "filters" }, controls), pickedLine(), summary, holder, foreign);
}

/** The runs that a pipeline, an experiment or a policy consists of. */
function stepsOf(run) {
  const rows = run.head.steps.map((each) => [h("div", {}, runCell({ ...each, depth: 0 })), statusCell(each), scoreCell(each)]);
  const columns = [["step", ""], ["status", ""], ["score", ""]];
  return rows.length ? h("section", { class: "runs" }, table(columns, rows, h("span", {}, "Steps ", runTag(run.place)))) : "";
}

function pickedLine() {
  const chosen = [...state.picked].map((id) => state.listing.runs.find((run) => run.id === id));
  const line = h("p", { class: "picked", id: "picked", role: "status" });
  if (!chosen.length) line.append(h("span", { class: "quiet" }, "Select two runs to compare them question by question."));
  for (const [place, run] of chosen.entries()) line.append(h("span", { class: `run run-${place}` }, `${"AB"[place]} ${run.name}`));
  if (chosen.length === 1) line.append(h("span", { class: "quiet" }, "Select a second run."));
  if (chosen.length === 2) line.append(h("a", { class: "action", href: compareAddress() }, "Compare"));
  return line;
}

const compareAddress = () => `${home}compare/${[...state.picked].join("/")}`;

function showPicked() {
  document.getElementById("picked").replaceWith(pickedLine());
  for (const input of document.querySelectorAll(".pick input")) input.disabled = state.picked.size > 1 && !input.checked;
}

function pickRow() {
  const row = document.activeElement && document.activeElement.closest("main tbody tr");
  const input = row && row.querySelector("input");
  if (input && !input.disabled) input.click();
}

function comparePicked() {
  if (state.picked.size === 2) location.assign(compareAddress());
}
