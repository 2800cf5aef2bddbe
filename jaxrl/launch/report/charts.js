// Curves: one SVG a panel, redrawn whole when a control changes.
"use strict";

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "12 4"]; // of another count than colors, so that pairs differ
const COLORS = 7;
const view = { x: "step", smooth: 0, seeds: data.runs.length > data.groups.length, hidden: new Set() };

/** What is drawn as one line: a run, or with seeds together a group of runs. */
function units() {
  if (!view.seeds) return data.runs.map((run, i) => ({ key: run.name, label: run.name, runs: [run], color: i }));
  return data.groups.map((label, g) => {
    const runs = data.runs.filter((run) => run.group === g);
    return { key: label, label: runs.length > 1 ? `${label} (${runs.length} seeds)` : label, runs, color: g };
  });
}

/** Linear interpolation of a run's clock at a step. */
function clockAt(run, step, axis) {
  const steps = run.clock.step;
  const values = run.clock[axis];
  let high = steps.findIndex((s) => s >= step);
  if (high < 0) return values.length ? values.at(-1) : 0;
  const [s0, v0] = high ? [steps[high - 1], values[high - 1]] : [0, 0];
  return v0 + ((values[high] - v0) * (step - s0)) / (steps[high] - s0 || 1);
}

/** Points {x, y, low, high, raw} of a unit: its run, or the mean and range of its runs at each step. */
function points(unit, column) {
  const at = new Map();
  for (const run of unit.runs) {
    const curve = run.series[column];
    if (!curve) continue;
    const smooth = curve.low ? curve.value : smoothed(curve.value);
    curve.step.forEach((step, i) => {
      if (!at.has(step)) at.set(step, []);
      at.get(step).push({
        step, x: view.x === "step" ? step : clockAt(run, step, view.x),
        y: smooth[i], raw: curve.value[i], low: curve.low?.[step], high: curve.high?.[step],
      });
    });
  }
  return [...at].sort((a, b) => a[0] - b[0]).map(([, all]) => {
    if (all.length === 1) return all[0];
    const mean = (name) => all.reduce((sum, p) => sum + p[name], 0) / all.length;
    const ys = all.map((p) => p.y);
    return { step: all[0].step, x: mean("x"), y: mean("y"), raw: mean("raw"), bottom: Math.min(...ys), top: Math.max(...ys) };
  });
}

/** Exponential moving average that starts unbiased. */
function smoothed(values) {
  let total = 0, weight = 0;
  return values.map((value) => {
    total = view.smooth * total + value;
    weight = view.smooth * weight + 1;
    return total / weight;
  });
}

/** Round tick values that cover [low, high]. */
function ticks(low, high, count = 5) {
  const rough = (high - low) / count;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((m) => m * size >= rough) * size;
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9); v * step <= high + 1e-9 * step; v++) out.push(v * step);
  return out;
}

/** The card of a panel, with its `draw`. */
function chart(panel) {
  const card = el("div", { class: "card", "data-panel": panel.name });
  const W = 440, H = 216, LEFT = 54, RIGHT = 10, TOP = 8, BOTTOM = 26;
  const tip = el("div", { class: "tip", role: "status", hidden: "" });
  let lines = [], position = null, cursor = null, toX = null, at = null;

  function draw() {
    lines = units().filter((unit) => !view.hidden.has(unit.key)).flatMap((unit) =>
      panel.columns.map((column, c) => ({
        label: [panel.columns.length > 1 ? column : "", unit.label].filter(Boolean).join(" · "),
        color: unit.color % COLORS,
        dash: DASHES[(panel.columns.length > 1 ? c : unit.color) % DASHES.length],
        points: points(unit, column).filter((p) => !panel.log || p.y > 0),
      }))).filter((line) => line.points.length);
    const all = lines.flatMap((line) => line.points);
    const drawing = svg("svg", {
      viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: "img", "aria-label": summary(),
      onpointermove: aim, onpointerleave: clear, onblur: clear, onkeydown: key,
      onclick: (event) => { aim(event); open(); },
    });
    function aim(event) {
      const box = drawing.getBoundingClientRect();
      point(((event.clientX - box.left) / box.width) * W);
    }
    if (!all.length) {
      drawing.append(svg("text", { class: "tick", x: W / 2, y: H / 2, "text-anchor": "middle" }, "nothing to draw"));
    } else {
      plot(drawing, all);
    }
    tip.hidden = true;
    position = null;
    put(card,
      el("h3", {}, panel.title, panel.unit ? el("span", { class: "unit" }, ` (${panel.unit})`) : null),
      el("div", { class: "soft" }, panel.note), drawing, keys(), tip);
  }

  function plot(drawing, all) {
    const scale = panel.log ? Math.log10 : (v) => v;
    const ys = all.flatMap((p) => [p.y, p.low, p.high, p.bottom, p.top]).filter((v) => v != null && (!panel.log || v > 0));
    let low = Math.min(...ys.map(scale)), high = Math.max(...ys.map(scale));
    const span = high - low;
    // What varies by rounding alone is drawn as the constant it is.
    const room = span > 1e-9 * Math.max(Math.abs(low), Math.abs(high)) ? 0.06 * span : 0.1 * Math.abs(high) || 0.5;
    // A quantity that is never negative is not drawn as if it could be.
    [low, high] = [!panel.log && low >= 0 ? Math.max(0, low - room) : low - room, high + room];
    const right = Math.max(...all.map((p) => p.x)), left = Math.min(0, ...all.map((p) => p.x));
    toX = (x) => LEFT + ((x - left) / (right - left || 1)) * (W - LEFT - RIGHT);
    const toY = (y) => H - BOTTOM - ((scale(y) - low) / (high - low)) * (H - TOP - BOTTOM);
    const levels = panel.log
      ? ticks(low, high, 4).filter(Number.isInteger).map((power) => 10 ** power)
      : ticks(low, high);
    for (const value of levels) {
      drawing.append(
        svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: toY(value), y2: toY(value) }),
        svg("text", { class: "tick", x: LEFT - 6, y: toY(value) + 4, "text-anchor": "end" }, panel.log ? value.toExponential(0) : short(value)));
    }
    for (const value of ticks(left, right || 1)) {
      drawing.append(svg("text", { class: "tick", x: toX(value), y: H - 9, "text-anchor": "middle" }, short(value)));
    }
    drawing.append(svg("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }));
    const path = (ps, name) => "M" + ps.map((p) => `${toX(p.x).toFixed(1)},${toY(p[name]).toFixed(1)}`).join("L");
    for (const { points: ps, color, dash } of lines) {
      const banded = ps.filter((p) => p.top != null);
      if (banded.length > 1) {
        drawing.append(svg("path", { class: `band f${color}`, d: path(banded, "top") + "L" + path([...banded].reverse(), "bottom").slice(1) + "Z" }));
      }
      if (view.smooth && ps.length > 2 && !ps[0].low && !banded.length && !panel.log) drawing.append(svg("path", { class: `line raw s${color}`, d: path(ps, "raw") }));
      drawing.append(svg("path", { class: `line s${color}`, d: path(ps, "y"), "stroke-dasharray": dash }));
      for (const p of ps.length <= 30 ? ps : []) {
        const x = toX(p.x);
        if (p.low != null) drawing.append(svg("line", { class: `s${color}`, x1: x, x2: x, y1: toY(p.low), y2: toY(p.high) }));
        drawing.append(svg("circle", { class: `f${color}`, cx: x, cy: toY(p.y), r: 2.6 }));
      }
    }
    cursor = svg("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
    drawing.append(cursor);
  }

  /** Show the values nearest to horizontal position `px` of the drawing. */
  function point(px) {
    if (!lines.length) return;
    const nearest = (ps) => ps.reduce((best, p) => (Math.abs(toX(p.x) - px) < Math.abs(toX(best.x) - px) ? p : best));
    const found = lines.map((line) => ({ line, p: nearest(line.points) }));
    const closest = nearest(found.map(({ p }) => p));
    const x = closest.x;
    at = closest.step;
    position = toX(x);
    cursor.setAttribute("x1", position);
    cursor.setAttribute("x2", position);
    cursor.setAttribute("visibility", "visible");
    tip.replaceChildren(el("strong", {}, `${view.x} ${short(x)}`), el("table", {}, found.map(({ line, p }) =>
      el("tr", {}, el("td", {}, sample(line)), el("td", {}, line.label), el("td", { class: "number" }, range(p))))),
      openRollouts ? el("span", { class: "soft" }, "Click, or Enter: rollouts") : "");
    tip.hidden = false;
    tip.style[position < W / 2 ? "right" : "left"] = ".6rem";
    tip.style[position < W / 2 ? "left" : "right"] = "auto";
  }

  function range(p) {
    const [low, high] = [p.low ?? p.bottom, p.high ?? p.top];
    return short(p.y) + (low == null ? "" : ` [${short(low)}, ${short(high)}]`);
  }

  /** Show the completions of the step that is pointed at. */
  function open() {
    if (position != null) openRollouts?.(at);
  }

  function clear() {
    tip.hidden = true;
    position = null;
    cursor?.setAttribute("visibility", "hidden");
  }

  /** Arrow keys walk along the points. */
  function key(event) {
    const ends = { Home: 0, End: W };
    if (event.key === "Escape") return clear();
    if (event.key === "Enter") return open();
    if (event.key in ends) point(ends[event.key]);
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const xs = [...new Set(lines.flatMap((line) => line.points.map((p) => toX(p.x))))].sort((a, b) => a - b);
      const onward = event.key === "ArrowRight";
      const from = position ?? (onward ? -1 : W + 1);
      const next = onward ? xs.find((x) => x > from + 0.01) : xs.findLast((x) => x < from - 0.01);
      if (next != null) point(next);
    } else return;
    event.preventDefault();
  }

  function summary() {
    const ends = lines.map(({ label, points: ps }) => `${label || panel.title} from ${short(ps[0].y)} to ${short(ps.at(-1).y)}`);
    return `${panel.title}: ${ends.join("; ") || "no data"}. Arrow keys read the values, Enter shows the rollouts.`;
  }

  function keys() {
    if (panel.columns.length < 2) return null;
    return el("div", { class: "keys" }, panel.columns.map((column, c) =>
      el("span", {}, sample({ color: 6, dash: DASHES[c % DASHES.length] }), column)));
  }

  return { card, draw };
}

/** Whether every curve of a panel has had one and the same value; rewards are never put aside. */
function isConstant(panel) {
  if (["reward", "pass"].includes(panel.name)) return false;
  return panel.columns.every((column) =>
    new Set(data.runs.flatMap((run) => run.series[column]?.value ?? [])).size <= 1)
    && data.runs.some((run) => panel.columns.some((column) => (run.series[column]?.value.length ?? 0) > 1));
}

/** A short piece of a line, for keys. */
function sample({ color, dash }) {
  return svg("svg", { viewBox: "0 0 30 8", width: 30, height: 8, "aria-hidden": "true" },
    svg("line", { class: `line s${color % COLORS}`, x1: 0, x2: 30, y1: 4, y2: 4, "stroke-dasharray": dash }));
}
