// One attempt, turn by turn, and all attempts at one question.

const KEYWORDS = new Set(
  ("select from where and or not in is null as on join left right inner outer cross full group by order having limit offset " +
    "distinct case when then else end union all intersect except with like glob between exists cast asc desc over partition " +
    "using values collate escape recursive").split(" "),
);
const SQL = /(--[^\n]*|\/\*[\s\S]*?\*\/)|('(?:[^']|'')*'?)|("(?:[^"]|"")*"?|`[^`]*`?|\[[^\]]*\]?)|(\b\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\b)|([A-Za-z_]\w*)|([\s\S])/g;

/** A query with its words in spans; the text stays exactly the query. `marked` has the places of tokens to mark. */
function sql(query, marked = new Set()) {
  const pieces = [];
  let plain = "";
  let at = 0;
  const add = (kind, text) => {
    const mark = marked.has(at++);
    if (!kind && !mark) return void (plain += text);
    if (plain) pieces.push(plain);
    plain = "";
    pieces.push(h(mark ? "mark" : "span", { class: kind && `sql-${kind}` }, text));
  };
  for (const [text, comment, string, name, digits, word] of query.slice(0, 20000).matchAll(SQL)) {
    if (comment) add("comment", text);
    else if (string) add("string", text);
    else if (name) add("name", text);
    else if (digits) add("number", text);
    else add(word && KEYWORDS.has(word.toLowerCase()) ? "word" : "", text);
  }
  return h("code", { class: "sql" }, pieces, plain, query.slice(20000));
}

const longText = (body, extra) => h("pre", { tabindex: 0, role: "group", "aria-label": "Text" }, body, extra);

function textOf(piece) {
  const cut = piece.cut ? h("span", { class: "quiet" }, `\n[${count(piece.cut, "more character")}, truncated by the report]`) : "";
  const images = piece.images ? h("span", { class: "quiet" }, `\n[${count(piece.images, "image")}, not shown]`) : "";
  return longText(piece.text, [cut, images]);
}

function replyOf(reply) {
  if (!reply) return h("p", { class: "quiet" }, "No reply: the episode was over.");
  const body = reply.table ? resultTable(reply.table) : textOf(reply);
  const raw = reply.table && h("details", {}, h("summary", {}, "Reply as text"), textOf(reply));
  return h("div", { class: reply.is_error ? "reply error" : "reply" }, h("h4", {}, reply.is_error ? "Reply: error" : "Reply"), body, raw);
}

function resultTable({ columns, rows, more }) {
  const numeric = columns.map((_, at) => rows.every((row) => row[at] === null || /^-?[\d,.]+(e[-+]?\d+)?%?$/i.test(row[at])));
  const cell = (value, at) => h("td", { class: numeric[at] ? "num" : "" }, value === null ? h("span", { class: "quiet" }, "null") : value);
  const head = h("tr", {}, columns.map((name, at) => h("th", { scope: "col", class: numeric[at] ? "num" : "" }, name || "(no name)")));
  const body = rows.map((row) => h("tr", {}, row.map(cell)));
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": "Result table" },
    h("table", { class: "result" }, h("thead", {}, head), h("tbody", {}, body)),
    more && h("p", { class: "quiet" }, `${count(more, "more row")} in the reply`),
  );
}

function callOf(step) {
  const rows = step.arguments.map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, /^(query|sql)$/i.test(name) ? longText(sql(value)) : h("code", {}, value))),
  );
  return h("div", { class: "call" }, h("h4", {}, "Call ", h("code", {}, step.name)), h("dl", { class: "arguments" }, rows), replyOf(step.reply));
}

function turnOf(turn, at) {
  const tokens = turn.completion_tokens ? `${count(turn.completion_tokens, "sampled token")}, ${count(turn.prompt_tokens, "new prompt token")}` : "";
  const stop = turn.stop === "stop" ? "" : `ended by ${turn.stop}`;
  const meta = [tokens, duration(turn.seconds), `policy version ${turn.version}`, stop].filter(Boolean).join(" · ");
  const said = turn.steps.length ? turn.words && longText(turn.words) : textOf(turn);
  const raw = turn.steps.length > 0 && h("details", {}, h("summary", {}, "Model text"), textOf(turn));
  return h(
    "article",
    { class: "turn", id: `turn-${at + 1}`, "aria-label": `Turn ${at + 1}` },
    h("h3", {}, `Turn ${at + 1} `, h("span", { class: "quiet" }, meta)),
    said,
    turn.parse_error && h("p", { class: "problem" }, `No call could be parsed: ${turn.parse_error}`),
    turn.steps.map(callOf),
    turn.reply && replyOf(turn.reply),
    raw,
  );
}

function verdictOf(episode, details) {
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const versions = episode.version_low === episode.version_high ? episode.version_low : `${episode.version_low} to ${episode.version_high}`;
  return facts([
    ["answer", episode.answer && h("code", {}, episode.answer)],
    ["read as", details.numbers],
    ["truth", details.truth ? h("code", {}, details.truth) : "not recorded"],
    ["truth read as", details.truth_numbers],
    ["grader", episode.explanation],
    ["why wrong", episode.reason.replaceAll("_", " ")],
    ["status", episode.status.replaceAll("_", " ")],
    ["reward", number(episode.reward)],
    ["parts of the reward", Object.entries(details.components).map(([name, value]) => `${name} ${number(value)}`).join(", ")],
    ["advantage", episode.phase === "train" ? signed(episode.advantage) : ""],
    ["tokens", episode.tokens === null ? "unknown" : `${number(episode.tokens)} sampled, ${number(episode.prompt_tokens)} of prompts`],
    ["time", duration(episode.seconds)],
    ["policy version", versions],
    ["retries", number(episode.retries)],
    ["recoveries", number(episode.recoveries)],
    ["tool calls", `${number(episode.calls)}, ${number(episode.failed_calls)} failed`],
    ["seed", details.seed],
    ...Object.entries(details.metadata).map(([name, value]) => [name, h("code", {}, shown(value))]),
  ]);
}

/** Ways from an episode: to the list, to its group, and to the episodes before and after it. */
function trailOf(episode) {
  const run = state.runs[episode.run];
  const list = state.list.includes(episode) ? state.list : run.episodes;
  const at = list.indexOf(episode);
  state.neighbours = [list[at - 1], list[at + 1]].map((each) => each && episodeLink(each));
  state.up = link("episodes", { run: run.place || "" });
  const neighbour = (place, text) => state.neighbours[place] && h("a", { href: state.neighbours[place] }, text);
  const members = count(run.byGroup.get(episode.group).length, "attempt");
  const between = h("span", { class: "between" }, neighbour(0, "‹ previous"), neighbour(1, "next ›"));
  return h("p", { class: "trail" }, h("a", { href: state.up }, "Episodes"), " › ", h("a", { href: groupLink(episode) }, `Group of ${members}`), between);
}

async function showEpisode(parameters) {
  const run = state.runs[runOf(parameters)];
  const episode = run.byId.get(parameters.get("id"));
  if (!episode) return missing("episode", parameters.get("id"));
  const details = await source.details(episode);
  state.shown = episode;
  const opening = details.messages.map((message) =>
    h("details", { open: message.role !== "system" }, h("summary", {}, `${message.role} message`), textOf(message)),
  );
  if (details.tools.length) {
    const rows = details.tools.map((tool) => [h("code", {}, tool.name), tool.description]);
    opening.push(h("details", {}, h("summary", {}, count(details.tools.length, "tool")), table([["tool", ""], ["description", ""]], rows)));
  }
  return h(
    "div",
    { class: "episode" },
    trailOf(episode),
    h("h1", {}, episode.about.prompt || episode.about.id),
    h("p", {}, chip(episode.result), " ", runTag(run.place), " ", h("span", { class: "quiet" }, [episode.id, episode.about.cluster, episode.about.kind, episode.about.split].filter(Boolean).join(" · "))),
    h("section", { class: "card", "aria-label": "Verdict" }, verdictOf(episode, details)),
    details.error && h("p", { class: "problem" }, details.error),
    h("section", { "aria-label": "Opening" }, opening),
    details.turns.map(turnOf),
  );
}

const missing = (what, id) => h("div", {}, h("h1", {}, `No such ${what}`), h("p", {}, `${id || "(no id)"} is not here.`));

// ---- groups

function showGroup(parameters) {
  const run = state.runs[runOf(parameters)];
  const members = run.byGroup.get(run.groups.indexOf(parameters.get("id")));
  if (!members) return missing("group", parameters.get("id"));
  const [first] = members;
  state.up = link("episodes", { run: run.place || "", step: first.iteration });
  state.list = members;
  const trained = first.phase === "train";
  const widest = Math.max(...members.map((member) => Math.abs(member.advantage || 0)), 1e-9);
  const columns = [["attempt", ""], ["result", ""], ["reward", "num"], trained && ["advantage", "num"], ["answer", "answer"], ["grader", "wide"], ["turns", "num"], ["tokens", "num"], ["seconds", "num"]].filter(Boolean);
  const rows = members.map((member) =>
    [
      h("a", { href: episodeLink(member), class: "row-link" }, `attempt\u00a0${member.member}`),
      chip(member.result),
      number(member.reward),
      trained && h("span", { class: "advantage" }, advantageBar(member.advantage, widest), signed(member.advantage)),
      short(member.answer, 80),
      member.explanation,
      number(member.turns),
      number(member.tokens),
      number(member.seconds),
    ].filter((cell) => cell !== false),
  );
  const others = [...run.byGroup.values()].filter((each) => each !== members && each[0].question === first.question);
  const again = others.map((each) => [
    h("a", { href: groupLink(each[0]) }, `${each[0].phase} ${each[0].iteration}`),
    h("span", { class: "marks" }, each.map(mark)),
  ]);
  const none = trained && members.every((member) => member.advantage === null);
  return h(
    "div",
    {},
    h("p", { class: "trail" }, h("a", { href: state.up }, `Episodes of ${stepNoun()} ${first.iteration}`)),
    h("h1", {}, first.about.prompt || first.about.id),
    h("p", { class: "quiet" }, [first.about.id, first.about.cluster, first.about.kind, `${first.phase}, ${stepNoun()} ${first.iteration}`].filter(Boolean).join(" · "), " ", runTag(run.place)),
    none && h("p", { class: "note" }, "This group was not used for training, or its advantages cannot be computed."),
    table(columns, rows, count(members.length, "attempt")),
    again.length > 0 && h("section", {}, table([[stepNoun(), ""], ["attempts", "wide"]], again, `The same question at other ${stepNoun()}s`)),
  );
}

function advantageBar(value, widest) {
  const half = 30 * Math.min(1, Math.abs(value || 0) / widest);
  return s(
    "svg",
    { class: "advantage-bar", viewBox: "0 0 64 12", width: 64, height: 12, "aria-hidden": "true" },
    s("line", { class: "grid", x1: 32, x2: 32, y1: 0, y2: 12 }),
    value ? s("rect", { class: value > 0 ? "up" : "down", x: value > 0 ? 32 : 32 - half, y: 2, width: half, height: 8 }) : "",
  );
}
