// Curves as SVG: a line with the interval of its mean as a band; evaluations as diamonds with error bars.

const SMALL = { width: 380, height: 210 };
const EDGES = { left: 54, right: 12, top: 10, bottom: 26 };

/** The key of the control among the places of runs. */
const CONTROL = "control";
const CONTROL_NAME = "control: rewards shuffled";

function niceTicks(low, high, wanted, least = 0) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999 && size >= least);
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) {
    ticks.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  }
  return ticks;
}

function tickText(value) {
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(1);
  return number(value);
}

/** The curves of one measure over all runs and the control: [{run, phase, points}]. */
function seriesOf(key) {
  const of = (curves, place) => {
    const curve = curves.find((each) => each.key === key);
    return curve ? curve.series.map((series) => ({ run: place, ...series })) : [];
  };
  const { control } = state.runs[0];
  return [...(control ? of(control.curves, CONTROL) : []), ...state.runs.flatMap((run) => of(run.curves, run.place))];
}

const nameOf = (place) => (place === CONTROL ? "control" : several() ? "AB"[place] : "");

function chart(curve, selected, first, last, { width, height, tick: ticked = tickText, axis = "", note = "", explained = true } = SMALL) {
  const series = seriesOf(curve.key);
  const points = series.flatMap((each) => each.points);
  const steps = [...new Set(points.map((point) => point[0]))].sort((one, other) => one - other);
  [first, last] = [Math.min(first, ...steps), Math.max(last, ...steps)];
  const values = points.flatMap((point) => point.slice(1, 4).filter((value) => value !== null));
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low >= 0 && high <= 1 && (curve.key === "reward" || curve.key === "accuracy")) [low, high] = [0, 1];
  else if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  else {
    const margin = 0.06 * (high - low);
    [low, high] = [low >= 0 && low < 0.5 * high ? 0 : low - margin, high + margin];
  }
  const bottom = height - EDGES.bottom - (axis ? 16 : 0);
  const inner = width - EDGES.left - EDGES.right;
  const tall = bottom - EDGES.top;
  const x = (step) => EDGES.left + (last === first ? inner / 2 : ((step - first) / (last - first)) * inner);
  const y = (value) => EDGES.top + (1 - (value - low) / (high - low)) * tall;
  const picture = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": described(curve, series) });
  for (const tick of niceTicks(low, high, 5)) {
    picture.append(
      s("line", { class: "grid", x1: EDGES.left, x2: width - EDGES.right, y1: y(tick), y2: y(tick) }),
      s("text", { class: "tick", x: EDGES.left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, ticked(tick)),
    );
  }
  for (const tick of niceTicks(first, last, 6, 1)) {
    picture.append(s("text", { class: "tick", x: x(tick), y: bottom + 17, "text-anchor": "middle" }, number(tick)));
  }
  if (axis) picture.append(s("text", { class: "tick", x: EDGES.left + inner / 2, y: height - 6, "text-anchor": "middle" }, axis));
  const marker = s("line", { class: "selected", y1: EDGES.top, y2: bottom });
  picture.append(marker);
  for (const each of series) picture.append(drawn(each, x, y));
  const readout = h("p", { class: "readout" });
  const show = (step) => {
    const at = steps.includes(step);
    marker.setAttribute("visibility", at ? "visible" : "hidden");
    if (at) fill(marker, { x1: x(step), x2: x(step) }, []);
    readout.replaceChildren(at ? readings(step, series, curve) : explained ? "" : curve.what);
  };
  picture.addEventListener("pointermove", (event) => {
    const bounds = picture.getBoundingClientRect();
    const place = ((event.clientX - bounds.left) / bounds.width) * width;
    show(steps.reduce((best, step) => (Math.abs(x(step) - place) < Math.abs(x(best) - place) ? step : best)));
  });
  picture.addEventListener("pointerleave", () => show(figure.selected));
  const figure = h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, h("strong", {}, curve.title), " ", h("span", { class: "quiet" }, curve.interval ? note : "no interval recorded")),
    explained && h("p", { class: "quiet what" }, curve.what),
    picture,
    readout,
  );
  figure.selected = selected;
  figure.select = (step) => show((figure.selected = step));
  figure.select(selected);
  return figure;
}

function drawn(series, x, y) {
  const evaluated = series.phase !== "train";
  const group = s("g", { class: `series run-${series.run} ${evaluated ? "eval" : "train"}` });
  const known = series.points.filter((point) => point[2] !== null);
  if (!evaluated && known.length > 1) {
    const upper = known.map((point) => `${x(point[0])},${y(point[3])}`);
    const lower = known.map((point) => `${x(point[0])},${y(point[2])}`).reverse();
    group.append(s("path", { class: "band", d: `M${[...upper, ...lower].join("L")}Z` }));
  }
  const bars = evaluated ? known : known.length === 1 ? known : [];
  for (const point of bars) {
    group.append(s("line", { class: "bar", x1: x(point[0]), x2: x(point[0]), y1: y(point[2]), y2: y(point[3]) }));
  }
  if (series.points.length > (evaluated ? 2 : 1)) { // two evaluations are no curve: nothing was measured between them
    group.append(s("path", { class: "curve", d: `M${series.points.map((p) => `${x(p[0])},${y(p[1])}`).join("L")}` }));
  }
  const size = evaluated ? 4.5 : series.points.length > 60 ? 0 : 2.2;
  for (const [step, mean] of series.points) {
    const [cx, cy] = [x(step), y(mean)];
    if (evaluated) {
      const corners = `M${cx},${cy - size}L${cx + size},${cy}L${cx},${cy + size}L${cx - size},${cy}Z`;
      group.append(s("path", { class: "dot", d: corners }));
    } else if (size) group.append(s("circle", { class: "dot", cx, cy, r: size }));
  }
  return group;
}

function readings(step, series, curve) {
  const lines = series.flatMap((each) => {
    const point = each.points.find((one) => one[0] === step);
    if (!point) return [];
    const [, mean, low, high, n] = point;
    const name = [nameOf(each.run), each.phase].filter(Boolean).join(" ");
    const ends = low === null ? "" : ` [${number(low)}, ${number(high)}]`;
    return [`${name} ${number(mean)}${ends}${n === null ? "" : `, n ${n}`}`];
  });
  return `${stepNoun()} ${step}: ${lines.join("; ")}`;
}

function described(curve, series) {
  const lines = series.map((each) => {
    const [start, end] = [each.points[0], each.points[each.points.length - 1]];
    const name = each.run === CONTROL ? `control ${each.phase}` : several() ? `${runName(each.run)} ${each.phase}` : each.phase;
    return `${name} from ${number(start[1])} at ${stepNoun()} ${start[0]} to ${number(end[1])} at ${stepNoun()} ${end[0]}`;
  });
  return `${curve.title}, ${curve.what}: ${lines.join("; ")}`;
}

/** What stands in a legend before a word: the line, band and dot of a series. */
function keyOfSeries(run, phase) {
  const sample = s("svg", { viewBox: "0 0 30 14", width: 30, height: 14, "aria-hidden": "true" });
  sample.append(drawn({ run, phase, points: phase === "train" ? [[4, 7, 2, 12, 1], [26, 7, 2, 12, 1]] : [[15, 7, 1, 13, 1]] }, (at) => at, (at) => at));
  return sample;
}

/** By what the intervals of evaluations of a run are clustered; those of other attempts are clustered by question. */
const evaluationNoun = ({ head: { score } }) => (score && score.phase === "eval" ? score.clustered_by : "question");

/** What the intervals of curves are; those of evaluations are clustered like the score. */
function bands(runs) {
  const named = runs.map(evaluationNoun).filter((noun) => noun !== "question");
  if (!named.length) return "Band and bars: 95 % interval of the mean, clustered by question.";
  return `Bands and bars: 95 % interval of the mean; bands clustered by question, bars ${clusteredBy(named[0])}.`;
}

function legend() {
  const phases = new Set(state.runs.flatMap((run) => run.curves.flatMap((curve) => curve.series.map((e) => e.phase))));
  const words = { train: "training", eval: "held-out questions", sample: "candidates" };
  return h(
    "p",
    { class: "legend" },
    state.runs.flatMap((run) =>
      [...phases].map((phase) => h("span", {}, keyOfSeries(run.place, phase), runTag(run.place), " ", words[phase] || phase)),
    ),
    state.runs[0].control && h("span", {}, keyOfSeries(CONTROL, "train"), CONTROL_NAME),
    h("span", { class: "quiet" }, bands(state.runs)),
  );
}
