// The first page: what a run scored, its curves, and a slider through its steps.

const statusOf = ({ status, state: now }) =>
  status !== "completed" && h("span", { class: `chip ${status === "running" ? "running" : "fault"}` }, now || status || "unknown");

function headOf(run) {
  const { head } = run;
  const { score } = head;
  const section = h(
    "section",
    { class: `card head head-${run.place}`, "aria-label": `Run ${head.label}` },
    h("h1", {}, several() && h("span", { class: `letter run-${run.place}` }, "AB"[run.place]), head.label, " ", statusOf(head)),
  );
  if (score) section.append(scoreOf(score));
  else section.append(h("p", {}, "No attempt was graded."));
  section.append(factsOf(head));
  for (const note of run.notes) section.append(h("p", { class: "note" }, note));
  return section;
}

function factsOf(head) {
  const { cost } = head;
  return facts([
    ["command", head.command && `finqa ${head.command}`],
    ["time", duration(cost.seconds)],
    ["episodes", number(cost.episodes)],
    ["tokens", cost.usage],
    ["trained tokens", cost.trained_tokens ? number(cost.trained_tokens) : ""],
    ["tool calls", number(cost.tool_calls)],
    ["environment", head.rules],
    ["policy", [head.policy.model, head.policy.adapter].filter(Boolean).join(" + ")],
    ["data", [head.data.name, (head.data.digest || "").slice(0, 19)].filter(Boolean).join(" ")],
    ["begun", head.created],
    ["resumed", head.resumed ? count(head.resumed, "time") : ""],
    ["commit", head.commit || "not recorded"],
    ["versions", Object.entries(head.versions).map((pair) => pair.join(" ")).join(", ")],
  ]);
}

function gauge(mean, low, high) {
  return s(
    "svg",
    { class: "gauge", viewBox: "0 0 200 14", role: "img", "aria-label": "Accuracy with its interval between 0 and 1" },
    s("rect", { class: "rail", x: 0, y: 5, width: 200, height: 4, rx: 2 }),
    low !== null && s("rect", { class: "range", x: 200 * low, y: 3, width: Math.max(1, 200 * (high - low)), height: 8, rx: 4 }),
    s("circle", { class: "mean", cx: 200 * mean, cy: 7, r: 5 }),
  );
}

function scoreOf(score) {
  const where = { train: "training", eval: "held-out", sample: "sampled" }[score.phase] || score.phase;
  const after = score.phase === "eval" && score.iteration ? ` after ${stepNoun()} ${score.iteration}` : "";
  return h(
    "div",
    { class: "score" },
    h("p", {}, h("span", { class: "figure" }, fixed(score.accuracy)), " accuracy"),
    gauge(score.accuracy, score.low, score.high),
    h(
      "p",
      { class: "quiet" },
      `${100 * score.level} % interval ${fixed(score.low)} to ${fixed(score.high)}, ${clusteredBy(score.clustered_by)} `,
      `(${score.clusters}). ${count(score.attempts, "attempt")} at ${count(score.questions, `${where} question`)} `,
      `(${score.split})${after}. Mean reward ${fixed(score.reward)}.`,
      score.faults ? ` ${count(score.faults, "fault")}, not scored.` : "",
    ),
  );
}

function breakdownOf(run) {
  const { kinds, reasons } = run.breakdown;
  const blocks = [];
  if (kinds.length) {
    const rows = kinds.map(([kind, mean, low, high, n]) => [
      h("a", { href: link("episodes", { run: run.place || "", kind: kind || "(none)" }) }, kind || "(none)"),
      fixed(mean),
      low === null ? "–" : `${fixed(low)} to ${fixed(high)}`,
      number(n),
    ]);
    const columns = [["question type", ""], ["accuracy", "num"], ["95 % interval", "num"], ["attempts", "num"]];
    blocks.push(table(columns, rows, h("span", {}, `Accuracy by question type, ${clusteredBy(evaluationNoun(run))} `, runTag(run.place))));
  }
  if (reasons.length) {
    const rows = reasons.map(([reason, text, n]) => [
      h("a", { href: link("episodes", { run: run.place || "", reason }) }, text),
      number(n),
    ]);
    const columns = [["reason", ""], ["attempts", "num"]];
    blocks.push(table(columns, rows, h("span", {}, "Why attempts are wrong ", runTag(run.place))));
  }
  return blocks;
}

/** What strict rules and their judge say, side by side, and the attempts on which they disagree. */
function judgedOf(run) {
  const { judged } = run;
  if (!judged) return "";
  const summary = [
    `By strict alone ${fixed(judged.strict)}, with the judge ${fixed(judged.with_judge)}: `,
    `${number(judged.judged)} of ${count(judged.attempts, "answer")} could not be read by strict and were judged. `,
    judged.differing.length ? "The judge finds these right:" : "The judge agrees with strict on all of them.",
    judged.left_out ? ` (${number(judged.left_out)} more are not listed)` : "",
  ];
  const section = h("section", {}, h("h2", {}, "Judged answers ", runTag(run.place)), h("p", {}, summary));
  if (judged.differing.length) {
    const rows = judged.differing.map(([id, question, answer, reason]) => [
      h("a", { href: link("episode", { run: run.place || "", id }) }, question),
      answer,
      reason,
    ]);
    section.append(table([["question", ""], ["answer", ""], ["verdict", ""]], rows, "Attempts on which they disagree."));
  }
  return section;
}

async function showOverview(parameters) {
  const opening = several() || !state.runs[0].progress ? [h("div", { class: "heads" }, state.runs.map(headOf))] : await progressOf(state.runs[0]);
  const content = h("div", {}, opening);
  if (state.report.comparison) content.append(comparisonSummary());
  for (const run of state.runs) content.append(nodesOf(run));
  const steps = [...new Set(state.runs.flatMap((run) => run.stepNumbers))].sort((one, other) => one - other);
  const keys = [...new Map(state.runs.flatMap((run) => run.curves).map((curve) => [curve.key, curve])).values()];
  const stepped = keys.filter((curve) => new Set(seriesOf(curve.key).flatMap((e) => e.points.map((p) => p[0]))).size > 1);
  if (steps.length > 1 && stepped.length) {
    const wanted = Number(parameters.get("step"));
    const selected = parameters.has("step") && steps.includes(wanted) ? wanted : steps[steps.length - 1];
    const charts = stepped.map((curve) => chart(curve, selected, steps[0], steps[steps.length - 1]));
    content.append(
      h("section", { "aria-labelledby": "curves" }, h("h2", { id: "curves" }, "Curves"), legend(), h("div", { class: "charts" }, charts)),
      stepper(steps, selected, charts),
    );
  }
  for (const run of state.runs) content.append(source.steps(run));
  content.append(measures(keys.filter((curve) => !stepped.includes(curve))));
  for (const run of state.runs) content.append(judgedOf(run));
  const tables = state.runs.flatMap(breakdownOf);
  if (tables.length) content.append(h("section", { class: "two" }, tables.map((one) => h("div", {}, one))));
  return content;
}

/** Whether it is the score in the head of its run, which has an interval by clusters there. */
const isScore = (curve, series) =>
  curve.key === "accuracy" &&
  state.runs.some((run) => run.place === series.run && run.head.score && run.head.score.phase === series.phase);

/** Means of runs that have one step, where a curve would be a point; the score is in the head only. */
function measures(curves) {
  const rows = curves.flatMap((curve) =>
    seriesOf(curve.key).filter((series) => !isScore(curve, series)).flatMap((series) =>
      series.points.map(([, mean, low, high, n]) => [
        h("span", {}, curve.title, " ", h("span", { class: "quiet" }, curve.what)),
        runTag(series.run) || [nameOf(series.run), series.phase].filter(Boolean).join(" "),
        number(mean),
        low === null ? "–" : `${number(low)} to ${number(high)}`,
        number(n),
      ]),
    ),
  );
  if (!rows.length) return "";
  const columns = [["measure", ""], [several() ? "run" : "phase", ""], ["mean", "num"], ["95 % interval", "num"], ["attempts", "num"]];
  return h("section", {}, table(columns, rows, h("span", {}, "Means. ", bands(state.runs))));
}

function stepper(steps, selected, charts) {
  const panel = h("div", { id: "step-panel" });
  const label = h("output", { for: "step" });
  const slider = h("input", { type: "range", id: "step", min: 0, max: steps.length - 1, step: 1, value: steps.indexOf(selected) });
  const show = () => {
    const step = steps[slider.value];
    label.replaceChildren(`${stepNoun()} ${step} of ${steps[steps.length - 1]}`);
    slider.setAttribute("aria-valuetext", `${stepNoun()} ${step}`);
    for (const each of charts) each.select(step);
    panel.replaceChildren(...state.runs.map((run) => stepOf(run, step)));
    history.replaceState(null, "", link("overview", { step }));
  };
  const move = (by) => {
    slider.value = Math.min(steps.length - 1, Math.max(0, Number(slider.value) + by));
    show();
  };
  slider.addEventListener("input", show);
  const button = (by, text, name) => h("button", { type: "button", "aria-label": name, onclick: () => move(by) }, text);
  const section = h(
    "section",
    { "aria-labelledby": "steps" },
    h("h2", { id: "steps" }, `${capital(stepNoun())} by ${stepNoun()}`),
    h("div", { class: "slider" }, button(-1, "‹", `Previous ${stepNoun()}`), h("label", { for: "step", class: "hidden" }, capital(stepNoun())), slider, button(1, "›", `Next ${stepNoun()}`), label),
    panel,
  );
  section.move = move;
  state.move = move;
  label.replaceChildren(`${stepNoun()} ${selected} of ${steps[steps.length - 1]}`);
  slider.setAttribute("aria-valuetext", `${stepNoun()} ${selected}`);
  panel.replaceChildren(...state.runs.map((run) => stepOf(run, selected)));
  return section;
}

/** `24 training groups and 224 held-out questions`: only attempts of training are compared with those of their group. */
function groupsInWords(groups) {
  const nouns = { train: "training group", eval: "held-out question", sample: "question" };
  const phases = [...new Set(groups.map(([first]) => first.phase))];
  return phases.map((phase) => count(groups.filter(([first]) => first.phase === phase).length, nouns[phase] || `group of ${phase}`)).join(" and ");
}

function stepOf(run, step) {
  const records = run.steps.filter((record) => record.iteration === step);
  const groups = new Map();
  for (const episode of run.episodes) {
    if (episode.iteration !== step) continue;
    if (!groups.has(episode.group)) groups.set(episode.group, []);
    groups.get(episode.group).push(episode);
  }
  const rows = [...groups.values()].map((members) => {
    const graded = members.filter((member) => member.reward !== null);
    const mean = graded.length ? graded.reduce((sum, member) => sum + member.reward, 0) / graded.length : null;
    return [
      h("a", { href: groupLink(members[0]) }, members[0].about.prompt || members[0].about.id),
      members[0].phase,
      fixed(mean),
      h("span", { class: "marks" }, members.map(mark)),
    ];
  });
  const numbers = records.map((record) =>
    h(
      "details",
      {},
      h("summary", {}, `${record.kind || "metrics"}: ${count(record.values.length, "number")}`),
      facts(record.values.map(([name, value]) => [name, typeof value === "number" ? number(value, 4) : String(value)])),
    ),
  );
  const columns = [["question", ""], ["phase", ""], ["mean reward", "num"], ["attempts", "wide"]];
  const shown = rows.length
    ? table(columns, rows.slice(0, 200), h("span", {}, `${groupsInWords([...groups.values()])} at ${stepNoun()} ${step} `, runTag(run.place)))
    : h("p", { class: "quiet" }, `No episodes of this ${stepNoun()} are in this file. `, runTag(run.place));
  return h("div", { class: "step" }, shown, numbers);
}

const mark = (episode) =>
  h(
    "a",
    { href: episodeLink(episode), class: `mark ${episode.result}`, "aria-label": `attempt ${episode.member}, ${episode.result}`, title: `attempt ${episode.member}: ${episode.result}, reward ${number(episode.reward)}` },
    { right: "✓", wrong: "✗", fault: "!" }[episode.result],
  );

// ---- nodes of a cluster

/** Numbers of engine replicas or rollout workers, with what they do; absent parts are a dash. */
const partsOf = (parts) =>
  parts.length
    ? h("ul", { class: "parts" }, parts.map(([name, text, kind]) => h("li", {}, `${name} `, text && h("span", { class: kind && `chip ${kind}` }, text))))
    : "–";

function nodesOf(run) {
  if (!run.nodes) return "";
  const { nodes, changes } = run.nodes;
  const rows = nodes.map(([node, replicas, ranks, workers]) => [h("code", {}, node), partsOf(replicas), ranks.join(", ") || "–", partsOf(workers)]);
  const columns = [["node", "address"], ["engine replicas", "wide"], ["learner processes", "wide"], ["rollout workers", "wide"]];
  const lost = nodes.flatMap(([, replicas, , workers]) => [...replicas, ...workers]).filter((part) => part[2] === "fault").length;
  const summary = `${count(nodes.length, "node")}${lost ? `, ${lost} of their processes lost` : ""}`;
  const id = `nodes-${run.place}`;
  const changed = changes.map(([time, node, what, text, kind, reason]) => [h("span", {}, time || "–"), node ? h("code", {}, node) : "–", h("span", {}, `${what} `, h("span", { class: `chip ${kind}` }, text)), reason || "–"]);
  return h(
    "section",
    { "aria-labelledby": id },
    h("h2", { id }, "Nodes ", runTag(run.place)),
    h("details", { open: nodes.length <= 8 }, h("summary", { id: `${id}-all` }, summary), table(columns, rows)),
    changed.length > 0 &&
      h(
        "details",
        { open: changed.length <= 8 },
        h("summary", { id: `${id}-changes` }, `Losses and returns: ${changed.length}`),
        table([["time", "time"], ["node", "address"], ["what", "wide change"], ["reason", "wide"]], changed),
      ),
  );
}

// ---- settings

function showSettings(parameters) {
  const names = [...new Set(state.runs.flatMap((run) => run.settings.map((pair) => pair[0])))];
  const values = state.runs.map((run) => new Map(run.settings));
  const text = (value) => (value === null || value === undefined ? "–" : String(value));
  const all = names.map((name) => ({ name, shown: values.map((each) => text(each.get(name))) }));
  for (const each of all) each.differs = several() && each.shown[0] !== each.shown[1];
  all.sort((one, other) => Number(other.differs) - Number(one.differs));
  const holder = h("div", {});
  const draw = (wanted) => {
    const rows = all.filter((each) => `${each.name} ${each.shown.join(" ")}`.toLowerCase().includes(wanted.toLowerCase()));
    const cells = rows.map((each) => [
      h("span", {}, h("code", {}, each.name), each.differs && h("span", { class: "chip differs" }, "differs")),
      ...each.shown.map((value) => h("code", {}, value)),
    ]);
    const columns = [["setting", "setting"], ...state.runs.map((run) => [several() ? run.head.label : "value", "wide"])];
    holder.replaceChildren(table(columns, cells, count(rows.length, "setting")));
    history.replaceState(null, "", link("settings", { q: wanted }));
  };
  const search = h("input", { type: "search", id: "search", value: parameters.get("q") || "", oninput: () => draw(search.value) });
  draw(search.value);
  return h("div", {}, h("h1", {}, "Settings"), h("div", { class: "filters" }, h("label", {}, "Search ", search)), holder);
}
