// Of a report that is served: it loads itself anew when the runs have gone on, as it was left.
"use strict";

const LEFT = "jaxrl-report";

function live(shown) {
  const on = el("input", { type: "checkbox", id: "live", checked: "" });
  byId("controls").append(field("Follow the runs", on));
  restore();
  setInterval(async () => {
    if (!on.checked || document.hidden) return;
    try {
      const answer = await fetch("version");
      if (!answer.ok || (await answer.text()) === shown) return;
    } catch {
      return; // the server has gone; the page stays as it is
    }
    keep();
    location.reload();
  }, 2000);

  function controls() {
    return [...document.querySelectorAll("select[id], input[id]")].filter((node) => node.id !== "live");
  }

  function keep() {
    const values = Object.fromEntries(controls().map((node) => [node.id, node.value]));
    const open = [...document.querySelectorAll("details[open]")].map((node) => node.id);
    sessionStorage.setItem(LEFT, JSON.stringify({ values, open, x: scrollX, y: scrollY }));
  }

  function restore() {
    const left = JSON.parse(sessionStorage.getItem(LEFT) ?? "null");
    sessionStorage.removeItem(LEFT);
    if (!left) return;
    for (const node of controls()) {
      if (!(node.id in left.values) || node.value === left.values[node.id]) continue;
      node.value = left.values[node.id];
      for (const kind of ["input", "change"]) node.dispatchEvent(new Event(kind, { bubbles: true }));
    }
    for (const id of left.open) byId(id).open = true;
    scrollTo(left.x, left.y);
  }
}

live(data.version);
