// The first page of a training run that was evaluated before and after: what it changed, and three questions that show it.

const LARGE = {
  width: 640,
  height: 365,
  tick: (value) => `${Math.round(100 * value)} %`,
  axis: "iterations of training",
  note: "share of right answers",
  explained: false,
};
const NARROW = { ...LARGE, width: 380, height: 270 };

/** Head, learning curve, the same questions before and after, and the facts of the run. */
async function progressOf(run) {
  const about = h("section", { class: "card", "aria-labelledby": "about" }, h("h2", { id: "about" }, "About this run"), run.head.score && scoreOf(run.head.score), factsOf(run.head));
  for (const note of run.notes) about.append(h("p", { class: "note" }, note));
  return [
    h("div", { class: "opening" }, progressHead(run), learningCurve(run)),
    h(
      "section",
      { "aria-labelledby": "same-questions" },
      h("h2", { id: "same-questions" }, "The same questions, before and after training"),
      beforeAndAfter(run),
      await examplesOf(run),
    ),
    about,
  ];
}

const iterations = (n) => count(n, "iteration");

/** Two large numbers with what they are; the interval is in the table. */
function change(title, [before], [after], kind, n) {
  const figure = (value, words) => h("span", { class: "moment" }, h("span", { class: "figure" }, percent(value)), h("span", { class: "quiet" }, words));
  return h(
    "div",
    { class: `change ${kind}` },
    h("p", { class: "change-title" }, title),
    h("p", { class: "moments" }, figure(before, "before"), h("span", { class: "to", "aria-hidden": "true" }, "→"), h("span", { class: "hidden" }, " then "), figure(after, `after ${iterations(n)}`)),
  );
}

function progressHead(run) {
  const { progress, control, head } = run;
  const section = h(
    "section",
    { class: "card head", "aria-label": `Run ${head.label}` },
    h("p", { class: "quiet" }, `Training ${head.label} `, statusOf(head)),
    h("h1", { "data-title": head.label }, "Right answers, before and after training"),
    change("This training", progress.before, progress.after, "run-0", progress.iterations),
  );
  const beside = control && control.progress;
  if (beside) section.append(change("Its control: rewards shuffled", beside.before, beside.after, "run-control", beside.iterations));
  section.append(
    h(
      "p",
      {},
      "A model answers questions and gets a reward for each right answer; training makes rewarded answers more likely. ",
      `The figures are computed on held-out questions (${progress.asked}) that were never used for training.`,
      beside ? " The control is the same training run, but each reward is assigned to a random attempt: improvements of the control are not learned from the rewards." : "",
    ),
  );
  return section;
}

function learningCurve(run) {
  const curve = run.curves.find((each) => each.key === "accuracy");
  if (!curve) return "";
  const named = { ...curve, title: "Learning curve", what: "Point at an iteration for its numbers." };
  const [first] = curve.series[0].points[0];
  const figure = chart(named, null, first, first, matchMedia("(max-width: 560px)").matches ? NARROW : LARGE);
  figure.classList.add("large");
  const settings = new Map(run.settings);
  const greedy = settings.get("eval.temperature") === 0 && settings.get("generation.temperature") > 0;
  const entry = (place, phase, words) => h("span", {}, keyOfSeries(place, phase), words);
  const key = h(
    "p",
    { class: "legend" },
    entry(run.place, "train", `training questions${greedy ? " (sampled answers)" : ""}`),
    entry(run.place, "eval", `held-out questions${greedy ? " (most likely answers)" : ""}`),
    run.control && entry(CONTROL, "train", CONTROL_NAME),
    h("span", { class: "quiet" }, bands([run])),
  );
  figure.querySelector("figcaption").after(key);
  return figure;
}

function beforeAndAfter({ progress, control }) {
  const beside = control && control.progress;
  const others = new Map(beside ? beside.rows.map((row) => [row[0], row]) : []);
  const columns = [["", ""], ["before", "num"], [`after ${iterations(progress.iterations)}`, "num"]];
  if (beside) columns.push(["control, before", "num"], [`control, after ${iterations(beside.iterations)}`, "num"]);
  const rows = progress.rows.map((row) => (beside ? [...row, ...(others.get(row[0]) || ["", "–", "–"]).slice(1)] : row));
  const shown = table(columns, rows, `Held-out questions (${progress.asked}, never trained on), with 95 % intervals ${clusteredBy(progress.clustered_by)}`);
  shown.className = "before-after";
  return shown;
}

// ---- three questions

async function examplesOf(run) {
  const { examples, changes, questions } = run.progress;
  const pairs = examples.map((ids) => ids.map((id) => run.byId.get(wellFormed(id)))).filter((pair) => pair[0] && pair[1]);
  if (!pairs.length) return h("p", { class: "quiet" }, "No question was graded both before and after.");
  const some = `${number(changes.became_right)} of ${count(questions, "question")} became right and ${number(changes.became_wrong)} became wrong; ${number(changes.stayed_right)} stayed right and ${number(changes.stayed_wrong)} stayed wrong.`;
  const first = changes.became_right < pairs.length ? "Those that became right are shown first, then others" : "The first questions that became right are shown";
  const rule = ` ${first}, of different kinds if possible. `;
  const marked = h("span", {}, "Differences between the two queries are ", h("mark", {}, "highlighted"), ".");
  const shown = await Promise.all(pairs.map((pair) => exampleOf(run, pair)));
  return [h("p", {}, some, rule, shown.some((each) => each.querySelector("mark")) && marked), shown];
}

async function exampleOf(run, pair) {
  const found = await Promise.all(pair.map((episode) => detailsOf(episode).catch(() => null)));
  const queries = found.map((one) => (one ? one.turns.flatMap((turn) => turn.steps.flatMap((step) => step.arguments.filter(isQuery).map(([, text]) => text))) : []));
  const differing = queries[0].map((query, at) => (at < queries[1].length ? differences(query, queries[1][at]) : []));
  const titles = ["Before training", `After ${iterations(pair[1].iteration)}`];
  const { about } = pair[0];
  const truth = found.map((one) => one && one.truth).find(Boolean);
  const named = [about.kind, about.cluster].filter(Boolean).map((text) => text.replaceAll("_", " ")).join(" · ");
  return h(
    "article",
    { class: "card example" },
    h("h3", {}, about.prompt || about.id),
    h("p", { class: "quiet" }, truth && ["Right answer: ", h("code", { class: "truth" }, short(truth, 200))], truth && named && " · ", named),
    h("div", { class: "sides" }, pair.map((episode, side) => sideOf(episode, found[side], titles[side], differing.map((each) => each[side])))),
  );
}

const isQuery = ([name]) => /^(query|sql)$/i.test(name);

function sideOf(episode, details, title, marks) {
  let query = 0;
  const isAnswer = (step) => step.arguments.length === 1 && step.arguments[0][1] === episode.answer && episode.answer !== "";
  const stepOf = (step) => h("li", {}, callInShort(step, () => marks[query++]));
  const turns = details ? details.turns : [];
  const items = turns.flatMap((turn) => (turn.steps.length ? turn.steps.filter((step) => !isAnswer(step)).map(stepOf) : h("li", {}, saidInShort(turn))));
  return h(
    "section",
    { class: `side ${episode.result}`, "aria-label": title },
    h("h4", {}, title),
    items.length > 0 && h("ol", { class: "calls" }, items.slice(0, 12)),
    items.length > 12 && h("p", { class: "quiet" }, count(items.length - 12, "more step")),
    h("p", { class: "answered" }, episode.answer && ["Answer: ", h("code", {}, short(episode.answer, 200)), " "], chip(episode.result)),
    h("p", {}, h("a", { href: episodeLink(episode) }, "Complete episode"), h("span", { class: "hidden" }, ` ${title}`)),
  );
}

function callInShort(step, nextMarks) {
  const plain = step.arguments.filter((argument) => !isQuery(argument)).map(([, value]) => short(value, 60));
  const queries = step.arguments.filter(isQuery).map(([, text]) => longText(sql(text, nextMarks())));
  return [
    h("code", { class: "tool" }, step.name),
    plain.length > 0 && h("span", { class: "quiet" }, ` ${plain.join(", ")}`),
    queries,
    step.reply && (queries.length > 0 || step.reply.is_error) && replyInShort(step.reply),
  ];
}

function replyInShort({ table: found, text, is_error: isError }) {
  if (isError) return h("p", { class: "returned wrong" }, "Error: ", short(text, 160));
  const cells = (row) => row.map((value, at) => (found.columns.length > 1 ? `${found.columns[at]} ${value ?? "null"}` : (value ?? "null"))).join(", ");
  const shown = found ? found.rows.slice(0, 3).map(cells).join("; ") : text;
  const more = found && found.rows.length > 3 ? ` and ${count(found.rows.length - 3, "more row")}` : "";
  return h("p", { class: "returned" }, h("span", { class: "quiet" }, "returns "), h("code", {}, short(shown || "nothing", 160)), more);
}

const saidInShort = (turn) => [short(turn.text || "(no text)", 300), turn.parse_error && h("p", { class: "returned wrong" }, "No tool call could be parsed")];

/**
 * Places of the tokens of two queries that the other one lacks, by their longest common subsequence; none where the
 * queries have little in common, or are long.
 */
function differences(one, other) {
  const [left, right] = [one, other].map((query) => [...query.slice(0, 20000).matchAll(SQL)].map((match) => match[0]));
  const none = [new Set(), new Set()];
  if (one === other || left.length > 600 || right.length > 600) return none;
  const rows = right.length + 1;
  const common = new Uint16Array((left.length + 1) * rows);
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      common[i * rows + j] = left[i] === right[j] ? common[(i + 1) * rows + j + 1] + 1 : Math.max(common[(i + 1) * rows + j], common[i * rows + j + 1]);
    }
  }
  if (2 * common[0] < Math.max(left.length, right.length)) return none;
  const marked = [new Set(left.keys()), new Set(right.keys())];
  for (let i = 0, j = 0; i < left.length && j < right.length; ) {
    if (left[i] === right[j]) {
      marked[0].delete(i++);
      marked[1].delete(j++);
    } else if (common[(i + 1) * rows + j] >= common[i * rows + j + 1]) i += 1;
    else j += 1;
  }
  for (const [side, tokens] of [[0, left], [1, right]]) for (const at of marked[side]) if (!tokens[at].trim()) marked[side].delete(at);
  return marked;
}
