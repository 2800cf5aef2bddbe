// The page around curves and rollouts: controls, tables, themes.
"use strict";

const charts = data.panels.map((panel) => {
  const place = !panel.main ? "more" : isConstant(panel) ? "constant" : "main";
  return { place, ...chart(panel) };
});

function redraw() {
  for (const { place, draw } of charts) if (place === "main" || byId(place).open) draw();
}

function controls() {
  const axes = [["step", "step"], ["seconds", "seconds"], ["tokens", "sampled tokens"]];
  const smooth = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: view.smooth, id: "smooth",
    oninput: (event) => { view.smooth = Number(event.target.value); redraw(); } });
  byId("controls").append(
    field("Over", choice(axes, (value) => { view.x = value; redraw(); }, { id: "axis" })),
    field("Smoothing", smooth));
  if (data.runs.length > data.groups.length) {
    byId("controls").append(field("Seeds", choice(
      [["1", "together: mean, band from least to greatest"], ["", "each on its own"]],
      (value) => { view.seeds = Boolean(value); view.hidden.clear(); legend(); redraw(); }, { id: "seeds" })));
  }
}

function legend() {
  byId("legend").replaceChildren(...units().map((unit) => el("button", {
    class: "chip", "aria-pressed": String(!view.hidden.has(unit.key)),
    onclick: (event) => {
      view.hidden[view.hidden.has(unit.key) ? "delete" : "add"](unit.key);
      event.currentTarget.setAttribute("aria-pressed", String(!view.hidden.has(unit.key)));
      redraw();
    },
  }, sample({ color: unit.color, dash: DASHES[unit.color % DASHES.length] }), unit.label)));
}

function table(head, rows) {
  const cell = (tag, value) => {
    const [content, kind] = Array.isArray(value) ? value : [value, null];
    return el(tag, { class: kind, scope: tag === "th" ? "col" : null }, content);
  };
  return el("table", {}, el("thead", {}, el("tr", {}, head.map((value) => cell("th", value)))),
    el("tbody", {}, rows.map((row) => el("tr", { class: row.className }, row.map((value) => cell("td", value))))));
}

function summary() {
  const number = (value) => [value, "number"];
  const [one, ...others] = new Set(data.runs.map(({ facts }) => facts.figure));
  const heading = others.length ? "before" : `${one} before`;
  const measured = (facts, figures) => {
    if (figures?.[facts.figure] == null) return "–";
    const [low, high] = ["low", "high"].map((end) => figures[`${facts.figure}/${end}`]);
    return (others.length ? `${facts.figure} ` : "") + figures[facts.figure].toFixed(3)
      + (low == null ? "" : ` [${low.toFixed(3)}, ${high.toFixed(3)}]`);
  };
  const change = (facts) => {
    const [before, after] = [facts.before, facts.after].map((figures) => figures?.[facts.figure]);
    if (before == null || after == null) return "–";
    const value = after - before;
    const gain = facts.figure === "loss" ? -value : value;
    const kind = gain < 0 ? "bad" : gain > 0 ? "good" : null;
    return el("span", { class: kind }, (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3));
  };
  byId("summary").append(table(
    ["run", number("seed"), number("steps"), number(`held-out ${heading}`), number("after"), number("change"),
      number("reward, last 10 steps"), number("tokens/s"), number("time"), "device"],
    data.runs.map(({ name, seed, facts }) => [name, number(String(seed)),
      number(facts.steps === facts.planned ? String(facts.steps) : `${facts.steps} of ${facts.planned}`),
      number(measured(facts, facts.before)), number(measured(facts, facts.after)), number(change(facts)),
      number(short(facts.reward)), number(short(facts.throughput)), number(seconds(facts.seconds)), facts.device ?? "–"])));
}

function phases() {
  const spent = new Set(data.runs.flatMap((run) => Object.keys(run.time).filter((name) => run.time[name] > 0.0005)));
  const last = ["other", "first step", "outside the steps"];
  const hue = (name) => (last.includes(name) ? `rest${last.indexOf(name)}` : `f${names.indexOf(name) % COLORS}`);
  const names = [...[...spent].filter((name) => !last.includes(name)), ...last.filter((name) => spent.has(name))];
  const total = (run) => names.reduce((sum, name) => sum + (run.time[name] ?? 0), 0);
  for (const run of data.runs) {
    const all = total(run);
    if (!all) continue;
    let left = 0;
    const bars = names.flatMap((name) => {
      const share = (run.time[name] ?? 0) / all;
      const bar = svg("rect", { class: hue(name), x: `${left * 100}%`, y: 0, width: `${share * 100}%`, height: 26 },
        svg("title", {}, `${name}: ${seconds(run.time[name] ?? 0)}, ${(share * 100).toFixed(1)}%`));
      const label = share > 0.08 ? svg("text", { x: `${(left + share / 2) * 100}%`, y: 18, "text-anchor": "middle" }, `${name} ${(100 * share).toFixed(0)}%`) : null;
      left += share;
      return [bar, label];
    });
    byId("phases").append(el("div", { class: "phase-row" }, el("span", {}, run.name),
      svg("svg", { role: "img", "aria-label": `Time of ${run.name}, see the table` }, bars)));
  }
  const share = (run, name) => `${seconds(run.time[name] ?? 0)} · ${((100 * (run.time[name] ?? 0)) / (total(run) || 1)).toFixed(1)}%`;
  const goodput = (run) => `${((100 * ((run.time.sample ?? 0) + (run.time.train ?? 0))) / (total(run) || 1)).toFixed(1)}%`;
  const key = (name) => svg("svg", { width: 12, height: 12, "aria-hidden": "true" }, svg("rect", { class: hue(name), width: 12, height: 12 }));
  byId("phases").append(el("div", { class: "scroll" }, table(
    ["phase", ...data.runs.map((run) => [run.name, "number"])],
    [...names.map((name) => [el("span", {}, key(name), " ", name), ...data.runs.map((run) => [share(run, name), "number"])]),
      Object.assign(["goodput: sample and train", ...data.runs.map((run) => [goodput(run), "number"])], { className: "total" })])),
  el("p", { class: "soft" }, "The first step, which compiles, is a phase of its own. Score is what scoring adds to sampling, beside "
    + "which it runs. Outside the steps lie start-up, the warm start, and the evaluations before and after."));
}

function settings() {
  const keys = [...new Set(data.runs.flatMap((run) => Object.keys(run.config)))];
  const text = (value) => (value === undefined ? "(absent)" : typeof value === "string" ? value || "(empty)" : JSON.stringify(value));
  const differs = (key) => key !== "run_dir" && new Set(data.runs.map((run) => text(run.config[key]))).size > 1;
  const body = el("div", { class: "scroll" });
  const draw = (all) => {
    const rows = keys.filter((key) => all || differs(key)).map((key) => {
      const row = [[key, "mono"], ...data.runs.map((run) => [text(run.config[key]), "value"])];
      row.className = all && data.runs.length > 1 && differs(key) ? "differs" : null;
      return row;
    });
    body.replaceChildren(rows.length ? table(["field", ...data.runs.map((run) => run.name)], rows)
      : el("p", { class: "soft" }, "The configs are equal."));
  };
  if (data.runs.length > 1) {
    byId("settings").append(field("Show", choice([["", "what differs"], ["all", "every field"]], (value) => draw(value === "all"), { id: "which" })));
  }
  byId("settings").append(body);
  draw(data.runs.length === 1);
}

function origins() {
  const keys = [...new Set(data.runs.flatMap((run) => Object.keys(run.environment)))];
  const text = (value) => (Array.isArray(value) ? value.join(" ") : value == null ? "–" : String(value));
  byId("origins").append(table(["", ...data.runs.map((run) => run.name)], [
    ["lineage", ...data.runs.map((run) => el("ol", {}, run.lineage.map((stage) => el("li", {}, stage))))],
    ["extensions", ...data.runs.map((run) => run.extensions.length
      ? el("ol", {}, run.extensions.map((each) => el("li", {}, each))) : "none")],
    ["directory", ...data.runs.map((run) => [run.directory, "value"])],
    ...keys.map((key) => [key, ...data.runs.map((run) => [text(run.environment[key]), "value"])]),
  ]));
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => { document.documentElement.dataset.theme = byId("theme").value || (dark.matches ? "dark" : "light"); };
  byId("theme").addEventListener("change", apply);
  dark.addEventListener("change", apply);
  apply();
}

theme();
summary();
controls();
legend();
for (const place of ["main", "constant", "more"]) {
  const mine = charts.filter((one) => one.place === place);
  byId(`${place}-charts`).append(...mine.map(({ card }) => card));
  if (place === "main") continue;
  byId(place).hidden = !mine.length;
  byId(place).addEventListener("toggle", redraw);
}
byId("constant").firstElementChild.append(`: ${charts.filter(({ place }) => place === "constant").length}`);
redraw();
phases();
settings();
origins();
const openRollouts = viewer(byId("viewer"));
