// The rollout viewer: a list that builds only the rows in sight, and the chosen group, shaded by token.
"use strict";

const ROW = 46; // pixels, as in the style sheet
const CHUNK = 20000; // characters of a completion shown at once; a button shows as many more
const SHADES = {
  advantage: { text: "advantage", colors: ["minus", "plus"] },
  log_ratio: { text: "log-ratio, trained / sampled", colors: ["minus", "plus"] },
  entropy: { text: "entropy (nats)", colors: [null, "amount"] },
  logp: { text: "log-probability (nats)", colors: ["amount", null] },
  source: { text: "source" },
  version: { text: "policy version" },
  "": { text: "nothing" },
};
const SOURCES = { policy: null, tool: "amount", expert: "plus", replay: "minus" };
const ANEW = " · new context"; // it does not continue what stands before it
const KINDS = { rollouts: "training", evals: "held out" };

function viewer(root) {
  const rows = data.rollouts;
  if (!rows.length) {
    root.append(el("p", { class: "note soft" }, "These runs have kept no completions."));
    return null;
  }
  rows.forEach((row, i) => {
    row.index = i;
    row.length = row.tokens ? row.tokens.length : row.completion.length;
  });
  const groups = groupBy(rows, (row) => JSON.stringify([row.run, row.kind, row.step, row.problem, row.group ?? 0]));
  const problems = groupBy([...groups.values()].map((group) => group[0]), (row) => row.problem);
  const filter = { run: "", kind: "", verdict: "", search: "", order: "step" };
  const limits = { step: [null, null], reward: [null, null], length: [null, null] };
  const hasTokens = rows.some((row) => row.tokens);
  let shade = hasTokens ? "advantage" : "", shown = [], chosen = null;

  // ---- controls

  const set = (name) => (value) => { filter[name] = value; apply(); };
  const run = choice([["", "all runs"], ...data.runs.map((r, i) => [String(i), r.name])], set("run"), { "aria-label": "Run", id: "of-run" });
  const kind = choice([["", "all"], ...Object.entries(KINDS)], set("kind"), { "aria-label": "Kind", id: "kind" });
  const verdict = choice([["", "any verdict"], ["full", "reward 1 or more"], ["part", "reward below 1"], ["error", "scoring failed"],
    ["cut", "truncated"]], set("verdict"), { "aria-label": "Verdict", id: "verdict" });
  const orders = choice([["step", "step"], ["-step", "latest step"], ["-reward", "highest reward"], ["reward", "lowest reward"],
    ["-length", "longest"], ["length", "shortest"]], set("order"), { id: "order" });
  const search = el("input", { type: "search", id: "search", placeholder: "prompt, completion, problem", oninput: debounced((event) => set("search")(event.target.value.toLowerCase())) });
  const bounds = Object.keys(limits).map((name) => el("span", {}, name + " ", ["from", "to"].flatMap((end, i) => [
    i ? " to " : null,
    el("input", { type: "number", step: "any", id: `${name}-${end}`, "aria-label": `${name} ${end}`,
      oninput: debounced((event) => { limits[name][i] = event.target.value === "" ? null : Number(event.target.value); apply(); }) })])));
  const clear = el("button", { id: "clear", onclick: () => {
    Object.assign(filter, { run: "", kind: "", verdict: "", search: "", order: "step" });
    for (const name in limits) limits[name] = [null, null];
    for (const input of bar.querySelectorAll("input, select")) input.value = input === orders ? "step" : "";
    apply();
  } }, "Clear");
  const count = el("span", { class: "soft", role: "status", id: "count" });
  const bar = el("div", { class: "bar" }, data.runs.length > 1 ? run : null, kind, verdict, ...bounds, field("Search", search), field("Order", orders), clear, count);
  const key = el("span", { class: "soft" });
  const shades = choice(Object.entries(SHADES).map(([name, { text }]) => [name, text]), (value) => { shade = value; showKey(); detail(); }, { id: "shade" });
  shades.value = shade;
  let beside = "";
  const others = choice([["", "nothing"], ["step", "another step"], ...(data.runs.length > 1 ? data.runs.map((r, i) => [String(i), r.name]) : [])],
    (value) => { beside = value; detail(); }, { id: "beside" });

  // ---- the list

  const spacer = el("div");
  const list = el("div", { class: "list", tabindex: 0, role: "listbox", "aria-label": "Completions", id: "list", onscroll: draw, onkeydown: walk });
  list.append(spacer);
  const pane = el("div", { class: "detail", id: "detail", tabindex: 0, "aria-label": "Chosen group", role: "region" });
  root.append(bar, el("div", { class: "bar" }, field("Shade tokens by", shades), key, field("Side by side with", others)));
  if (data.left_out) root.append(el("p", { class: "note soft" }, `${data.left_out} completions were left out to keep this file small; the run directory has them all.`));
  root.append(list, pane);
  new ResizeObserver(draw).observe(list);

  function apply() {
    const within = (value, [low, high]) => (low == null || (value != null && value >= low)) && (high == null || (value != null && value <= high));
    const verdicts = {
      "": () => true, full: (r) => r.reward >= 1, part: (r) => r.reward != null && r.reward < 1, error: (r) => r.error != null,
      cut: (r) => r.stopped === false,
    };
    shown = rows.filter((row) =>
      (filter.run === "" || row.run === Number(filter.run)) && (filter.kind === "" || row.kind === filter.kind)
      && verdicts[filter.verdict](row) && Object.keys(limits).every((name) => within(row[name], limits[name]))
      && (filter.search === "" || haystack(row).includes(filter.search)));
    const name = filter.order.replace("-", ""), sign = filter.order.startsWith("-") ? -1 : 1;
    if (filter.order !== "step") shown.sort((a, b) => sign * ((a[name] ?? -Infinity) - (b[name] ?? -Infinity)) || a.index - b.index);
    count.textContent = `${shown.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
    spacer.style.height = `${shown.length * ROW}px`;
    list.scrollTop = 0;
    if (!shown.includes(chosen)) choose(shown[0] ?? null);
    else draw();
  }

  function haystack(row) {
    return row.haystack ??= `${row.problem}\n${row.prompt}\n${row.completion}`.toLowerCase();
  }

  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 6);
    const last = Math.min(shown.length, first + Math.ceil(list.clientHeight / ROW) + 12);
    list.replaceChildren(spacer, ...shown.slice(first, last).map((row, i) => listed(row, first + i)));
    const at = shown.indexOf(chosen);
    if (at >= first && at < last) list.setAttribute("aria-activedescendant", `row-${at}`);
    else list.removeAttribute("aria-activedescendant");
  }

  function listed(row, place) {
    const node = el("div", { class: "row", role: "option", id: `row-${place}`, "aria-selected": String(row === chosen), onclick: () => choose(row) },
      el("div", {}, reward(row),
        el("span", { class: "soft" }, `${data.runs.length > 1 ? data.runs[row.run].name + " · " : ""}${KINDS[row.kind]} step ${row.step} · ${row.length} ${row.tokens ? "tokens" : "characters"} · `),
        el("span", { class: "soft text" }, visible(row.problem.slice(0, 80)))),
      el("div", { class: "text" }, excerpt(row.prompt.slice(-40)), el("span", { class: "soft" }, " ▸ "), excerpt(row.completion.slice(0, 160))));
    node.style.top = `${place * ROW}px`;
    return node;
  }

  function walk(event) {
    const page = Math.floor(list.clientHeight / ROW);
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (!move || !shown.length) return;
    event.preventDefault();
    const at = Math.min(shown.length - 1, Math.max(0, shown.indexOf(chosen) + move));
    list.scrollTop = Math.min(at * ROW, Math.max(list.scrollTop, (at + 1) * ROW - list.clientHeight));
    choose(shown[at]);
  }

  // ---- the chosen group

  function choose(row) {
    chosen = row;
    draw();
    detail();
    pane.scrollTop = 0;
    const node = pane.querySelector(".chosen");
    if (node && node.offsetTop > pane.clientHeight / 2) pane.scrollTop = node.offsetTop - pane.clientHeight / 3;
  }

  function detail() {
    if (!chosen) {
      pane.replaceChildren(el("p", { class: "soft" }, "No completion passes the filter."));
      return;
    }
    const group = groupOf(chosen);
    const elsewhere = problems.get(chosen.problem);
    const other = beside === "" ? null : partner();
    const status = el("div", { class: "status soft" }, chosen.tokens ? "Point at a token, or use the arrow keys in a completion." : "This completion was kept as text alone.");
    put(pane,
      el("h3", {}, `${data.runs[chosen.run].name} · ${KINDS[chosen.kind]} · step ${chosen.step} · `, el("span", { class: "text" }, visible(chosen.problem.slice(0, 200)))),
      elsewhere.length > 1 ? el("div", { class: "bar" }, el("span", { class: "soft" }, "Through training:"), elsewhere.slice(0, 40).map((row) =>
        el("button", { onclick: () => choose(row), disabled: row === group[0] ? "" : null },
          `${data.runs.length > 1 ? data.runs[row.run].name + " " : ""}step ${row.step}: ${short(mean(groupOf(row)))}`))) : null,
      el("div", { class: "soft" }, "Prompt"), cut(chosen.prompt, null), el("div", { class: "soft" }, "Answer"), cut(chosen.answer ?? "", null),
      beside === "" ? column(group, status) : el("div", { class: "pair" }, el("div", {}, heading(group), column(group, status)),
        el("div", {}, other ? [heading(other), column(other, status)] : el("p", { class: "soft" }, "No completions of this problem are kept there."))),
      status);
  }

  function groupOf(row) {
    return groups.get(JSON.stringify([row.run, row.kind, row.step, row.problem, row.group ?? 0]));
  }

  /** The group of the same problem to show beside the chosen one: of a run, the nearest step. */
  function partner() {
    const mine = groupOf(chosen)[0];
    const found = problems.get(chosen.problem).filter((row) => row !== mine && row.kind === chosen.kind
      && row.run === (beside === "step" ? chosen.run : Number(beside)));
    if (!found.length) return null;
    const away = (row) => Math.abs(row.step - chosen.step);
    return groupOf(found.reduce((best, row) => (away(row) < away(best) ? row : best)));
  }

  function heading(group) {
    return el("h4", {}, `${data.runs[group[0].run].name} · step ${group[0].step}`);
  }

  function column(group, status) {
    return el("div", {}, el("div", { class: "soft" }, `${group.length} completion${group.length > 1 ? "s" : ""}, mean reward ${short(mean(group))}`),
      group.map((row) => answer(row, status)));
  }

  function answer(row, status) {
    const parts = Object.entries(row.parts ?? {}).map(([name, value]) => el("span", { class: "badge" }, `${name} ${short(value)}`));
    return el("div", { class: row === chosen ? "answer chosen" : "answer" },
      el("div", {}, reward(row), parts, row.tool_calls ? el("span", { class: "badge" }, `${row.tool_calls} tool call${row.tool_calls > 1 ? "s" : ""}`) : null,
        row.stopped === false ? el("span", { class: "badge bad" }, "truncated") : null,
        row.error ? el("span", { class: "bad text" }, visible(row.error.slice(0, 2000))) : null),
      row.tokens ? tokens(row, status) : cut(row.completion, row));
  }

  /** A block of plain text, as far as its budget goes. */
  function cut(text) {
    const block = el("div", { class: "block", dir: "auto" });
    const more = (from) => {
      block.append(visible(text.slice(from, from + CHUNK)));
      if (text.length > from + CHUNK) block.append(moreButton(text.length - from - CHUNK, "characters", () => more(from + CHUNK)));
    };
    more(0);
    return block;
  }

  function moreButton(left, what, go) {
    const button = el("button", { onclick: () => { button.remove(); go(); } }, `${left.toLocaleString("en")} more ${what}`);
    return button;
  }

  function tokens(row, status) {
    let at = -1;
    const nodes = [];
    const block = el("div", {
      class: "block", tabindex: 0, role: "group", "aria-label": `Completion with reward ${short(row.reward)}, ${row.tokens.length} tokens`,
      onpointerover: (event) => { if (event.target.dataset.token) go(Number(event.target.dataset.token)); },
      onkeydown: (event) => {
        const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!move) return;
        event.preventDefault();
        go(Math.min(nodes.length - 1, Math.max(0, at + move)));
      },
    });
    const go = (i) => {
      nodes[at]?.classList.remove("at");
      nodes[at = i].classList.add("at");
      status.textContent = described(row, i);
    };
    let speaker = null;
    const more = (from) => {
      let budget = CHUNK, i = from;
      for (; i < row.tokens.length && budget > 0; i++) {
        if (speaker !== (speaker = speaks(row, i, speaker))) block.append(el("div", { class: "turn soft" }, speaker));
        const text = row.tokens[i].slice(0, CHUNK);
        budget -= text.length + 4;
        const last = i === row.tokens.length - 1 && row.stopped;
        const node = el("span", { class: `token ${value(row, "source", i) ?? ""} ${text ? "" : "empty"}`, "data-token": i }, text ? visible(text) : last ? "⟨end⟩" : "⟨…⟩");
        paint(node, row, i);
        nodes.push(node);
        block.append(node);
        if (row.tokens[i].length > CHUNK) block.append(el("em", { class: "soft" }, ` ${(row.tokens[i].length - CHUNK).toLocaleString("en")} further characters of this token `));
      }
      if (i < row.tokens.length) block.append(moreButton(row.tokens.length - i, "tokens", () => more(i)));
    };
    more(0);
    return block;
  }

  /** Who speaks at a token of an episode, as a heading; null where there are no turns. */
  function speaks(row, i, before) {
    const turn = value(row, "turn", i), source = value(row, "source", i);
    if (turn == null || source === "forced") return before;
    const earned = row.turn_rewards?.[turn - 1];
    const who = row.turn_agents ? ` · agent ${row.turn_agents[turn - 1]}` : "";
    const name = source === "tool" ? "environment" : `turn ${turn}${who}${earned == null ? "" : ` · reward ${short(earned)}`}`;
    if (row.parent && row.parent[i] !== row.parent[0] + i) return name + ANEW;
    return before === name + ANEW ? before : name;
  }

  function described(row, i) {
    const figure = (name) => value(row, name, i);
    const known = (name, text) => (figure(name) == null ? null : text(figure(name)));
    const facts = [
      `token ${i + 1} of ${row.tokens.length}`, `${visible(JSON.stringify(row.tokens[i].slice(0, 40)))}`,
      known("logp", (v) => `log-prob ${short(v)} (${short(100 * Math.exp(v))}%)`), known("entropy", (v) => `entropy ${short(v)}`),
      known("advantage", (v) => `advantage ${short(v)}`), known("log_ratio", (v) => `log-ratio ${short(v)}`),
      known("source", String), known("version", (v) => `version ${v}`)];
    return facts.filter((fact) => fact != null).join(" · ");
  }

  // ---- shading

  function paint(node, row, i) {
    const v = value(row, shade, i);
    if (v == null || shade === "") return;
    let color = null, strength = 0.5;
    if (shade === "source") color = SOURCES[v];
    else if (shade === "version") [color, strength] = ["amount", 0.6 * Math.min(1, (row.step - 1 - v) / extent(shade))];
    else [color, strength] = [SHADES[shade].colors[v < 0 ? 0 : 1], 0.65 * Math.min(1, Math.abs(v) / extent(shade))];
    if (color && strength > 0.01) node.style.backgroundColor = `rgba(var(--${color}), ${strength.toFixed(3)})`;
  }

  function extent(name) {
    const size = (row, v) => Math.abs(name === "version" ? row.step - 1 - v : v);
    return (extents[name] ??= quantile(rows.filter((row) => row[name] != null).slice(0, 4000).flatMap((row) =>
      (Array.isArray(row[name]) ? row[name].slice(0, 200) : [row[name]]).map((v) => size(row, v))), 0.98) || 1);
  }

  function showKey() {
    const { colors } = SHADES[shade];
    if (colors) {
      const most = extent(shade), [low, high] = colors;
      const bar = el("span", { class: "scale" });
      const end = (color) => (color ? `rgba(var(--${color}), .65)` : "transparent");
      bar.style.background = low && high ? `linear-gradient(to right, ${end(low)}, transparent, ${end(high)})` : `linear-gradient(to right, ${end(low)}, ${end(high)})`;
      key.replaceChildren(short(low ? -most : 0), bar, short(high ? most : 0));
    } else {
      key.textContent = { source: "policy plain, tool dotted, expert underlined, replay dashed", version: "the darker, the staler", "": "" }[shade];
    }
  }

  /** Show the completions of the kept step that is nearest to one. */
  function open(step) {
    const near = rows.reduce((best, row) => (Math.abs(row.step - step) < Math.abs(best.step - step) ? row : best)).step;
    clear.click();
    limits.step = [near, near];
    for (const end of ["from", "to"]) byId(`step-${end}`).value = near;
    apply();
    byId("rollouts").scrollIntoView();
    list.focus({ preventScroll: true });
  }

  const extents = {};
  showKey();
  apply();
  return open;
}

const value = (row, name, i) => (Array.isArray(row[name]) ? row[name][i] : row[name]);

const excerpt = (text) => visible(text).replaceAll("\n", "");

const mean = (group) => {
  const values = group.map((row) => row.reward).filter((v) => v != null);
  return values.length ? values.reduce((a, b) => a + b) / values.length : NaN;
};

function reward(row) {
  const failed = row.reward == null;
  return el("span", { class: `badge ${failed || row.reward <= 0 ? "bad" : "good"}` }, failed ? "failed" : `${row.reward >= 1 ? "✓" : row.reward > 0 ? "~" : "✗"} ${short(row.reward)}`);
}

function quantile(values, q) {
  return values.sort((a, b) => a - b)[Math.floor(q * (values.length - 1))] ?? 0;
}

function groupBy(rows, name) {
  const found = new Map();
  for (const row of rows) {
    const key = name(row);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(row);
  }
  return found;
}

function debounced(act) {
  let timer = null;
  return (event) => { clearTimeout(timer); timer = setTimeout(act, 120, event); };
}
