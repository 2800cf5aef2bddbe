// Making elements. Whatever is shown goes in as text: nothing here parses HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

/** An element with attributes (`onX` are listeners) and children; strings become text nodes. */
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same in the SVG namespace. */
function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

/** Put children, nulls left out, in the place of a node's own. */
const put = (node, ...children) => node.replaceChildren(...children.flat().filter((child) => child != null));

const byId = (id) => document.getElementById(id);

/** A labelled control. */
const field = (label, control) => el("label", {}, label + " ", control);

/** A <select> of [value, text] pairs. */
function choice(options, onchange, attributes = {}) {
  const entries = options.map(([value, text]) => el("option", { value }, text));
  return el("select", { ...attributes, onchange: (event) => onchange(event.target.value) }, entries);
}

/** A number to about four digits. */
function short(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e5) return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 }).format(value);
  if (size && size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

function seconds(value) {
  if (value == null) return "–";
  if (value < 100) return short(Number(value.toPrecision(3))) + " s";
  const minutes = Math.round(value / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const _NAMES = { 9: "\t", 10: "⏎\n" };

/** Text whose every control character is seen instead of obeyed: escapes, bidi overrides, zero widths. */
function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0]/gu, (c) => {
    const code = c.codePointAt(0);
    if (code in _NAMES) return _NAMES[code];
    if (code < 32) return String.fromCodePoint(0x2400 + code);
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}
