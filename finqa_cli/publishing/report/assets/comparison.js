// Two runs question by question, those that differ first.

function comparisonSummary() {
  const { summary, notes } = state.report.comparison;
  const section = h("section", { class: "card", "aria-label": "Comparison" });
  if (summary) {
    const words = { shown: "These two runs differ; this is no evidence about other runs of their methods", "not shown": "No difference is shown", "tests disagree": "The two tests disagree" };
    section.append(
      h("h2", {}, "B minus A"),
      h("p", {}, h("span", { class: "figure small" }, signed(100 * summary.difference, 1)), " points ", h("span", { class: "quiet" }, `[${signed(100 * summary.low, 1)}, ${signed(100 * summary.high, 1)}] at ${100 * summary.level} %`)),
      h(
        "p",
        {},
        `On ${count(summary.questions, "question")} that both answered, with one run each, B is better on ${summary.better} and worse on ${summary.worse}. `,
        `${words[summary.verdict]}: p = ${number(summary.p_value)} (clustered t-test), ${number(summary.mcnemar)} (exact McNemar). `,
        h("a", { href: link("compare") }, "Question by question"),
      ),
    );
  } else section.append(h("h2", {}, "B minus A"), h("p", {}, "The runs have no graded question in common."));
  for (const note of notes) section.append(h("p", { class: "note" }, note));
  return section;
}

const CHANGES = {
  "": ["all", () => true],
  differ: ["differ", (row) => row[3] !== null && row[4] !== null && row[3] !== row[4]],
  better: ["B better", (row) => row[3] !== null && row[4] !== null && row[4] > row[3]],
  worse: ["B worse", (row) => row[3] !== null && row[4] !== null && row[4] < row[3]],
  one: ["in one run only", (row) => row[3] === null || row[4] === null],
};

function showComparison(parameters) {
  const { rows } = state.report.comparison;
  const holder = h("div", {});
  let most = state.keeping ? state.most : PAGE;
  const attempt = (run, share, n, id) => {
    const episode = id === null ? null : state.runs[run].byId.get(wellFormed(id));
    const text = share === null ? "–" : n === 1 ? (share ? "✓" : "✗") : `${fixed(share, 2)} of ${n}`;
    const kind = share === null ? "fault" : share >= 1 ? "right" : share <= 0 ? "wrong" : "fault";
    const target = episode && (n > 1 ? groupLink(episode) : episodeLink(episode));
    const words = h("span", { class: "hidden" }, ` right in run ${"AB"[run]}`);
    const shown = target ? h("a", { href: target, class: `chip ${kind}` }, text, words) : h("span", { class: `chip ${kind}` }, text);
    return h("span", {}, shown, episode && n === 1 ? h("span", { class: "under" }, short(episode.answer, 40)) : "");
  };
  const draw = () => {
    state.most = most;
    const words = (parameters.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
    const keep = (CHANGES[parameters.get("change") || ""] || CHANGES[""])[1];
    const found = rows.filter((row) => keep(row) && words.every((word) => `${row[0]} ${row[1]} ${row[2]}`.toLowerCase().includes(word)));
    const cells = found.slice(0, most).map(([id, prompt, kind, first, second, firstCount, secondCount, firstId, secondId]) => [
      h("span", {}, short(prompt || id, 160), h("span", { class: "under" }, [id, kind].filter(Boolean).join(" · "))),
      attempt(0, first, firstCount, firstId),
      attempt(1, second, secondCount, secondId),
      first === null || second === null ? "–" : signed(second - first, 2),
    ]);
    const columns = [["question", ""], [`A ${runName(0)}`, ""], [`B ${runName(1)}`, ""], ["B minus A", "num"]];
    holder.replaceChildren(table(columns, cells, `${number(found.length)} of ${count(rows.length, "question")}`));
    const more = () => ((most += PAGE), draw());
    if (found.length > most) holder.append(h("p", {}, h("button", { type: "button", onclick: more }, `Show ${PAGE} more`)));
  };
  const change = (name, value) => {
    if (value) parameters.set(name, value);
    else parameters.delete(name);
    most = PAGE;
    history.replaceState(null, "", link("compare", Object.fromEntries(parameters)));
    draw();
  };
  const search = h("input", { type: "search", id: "search", value: parameters.get("q") || "", oninput: () => change("q", search.value) });
  const options = Object.entries(CHANGES).map(([value, [text]]) => [value, text]);
  draw();
  return h(
    "div",
    {},
    h("h1", {}, "Question by question"),
    h("div", { class: "filters" }, h("label", {}, "Search ", search), select("Show", options, parameters.get("change") || "", (value) => change("change", value))),
    holder,
  );
}
