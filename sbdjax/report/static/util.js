"use strict";
// Shared by all sections. Whatever comes from a record goes onto the page as text: by textContent, by
// fillText on a canvas, or as the value of an option.

const DATA = JSON.parse(document.getElementById("data").textContent);

// Okabe and Ito's palette without its yellow, which is too light for thin lines on white.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9"];
const MARKERS = 7;

function el(tag, settings, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(settings || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  for (const child of children) node.append(child);
  return node;
}

function put(parent, ...children) {
  parent.replaceChildren(...children);
}

function bodyOf(id) {
  return document.querySelector("#" + id + " > div");
}

const isNumber = (x) => typeof x === "number" && Number.isFinite(x);

function shown(x) {
  if (!isNumber(x)) return x === null || x === undefined ? "" : String(x);
  const size = Math.abs(x);
  if (size >= 1000) return x.toLocaleString("en", { maximumFractionDigits: 0 });
  if (size !== 0 && size < 1e-3) return x.toExponential(2);
  return String(Number(x.toPrecision(4)));
}

function interval(value, low, high) {
  return isNumber(low) && isNumber(high) ? `${shown(value)} [${shown(low)}, ${shown(high)}]` : shown(value);
}

function cell(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : shown(value);
}

function measureOf(key) {
  return DATA.measures.find((m) => m.key === key);
}

function axisLabel(key) {
  const m = measureOf(key);
  const unit = m.unit ? ` (${m.unit})` : "";
  const better = m.better && m.quality ? `, ${m.better} is better` : "";
  return m.label + unit + better;
}

// A labelled select; `choices` are [value, text]. Values are indices or keys of ours. Of very many the
// first are offered, and said to be.
function choose(label, choices, value, changed) {
  const most = 500, select = el("select", { onchange: () => changed(select.value) });
  for (const [key, text] of choices.slice(0, most)) select.append(el("option", { value: String(key) }, text));
  if (choices.length > most) label += ` (the first ${most} of ${choices.length})`;
  select.value = String(value);
  return el("label", {}, label, select);
}

// A table that sorts by its heads and shows `limit` lines until asked for more. A cell is a value, or
// {sort, low, high}: a number with its bounds.
function table(heads, lines, settings) {
  const { limit = 100, picked = null, numeric = [], long = [] } = settings || {};
  let shownLines = limit, order = null, ascending = true, by = -1;
  const body = el("tbody"), more = el("button", { type: "button" });
  const head = el("tr");
  heads.forEach((text, i) => {
    const button = el("button", { type: "button", title: "sort", onclick: () => sort(i) }, text);
    head.append(el("th", { className: numeric.includes(i) ? "number" : "" }, button));
  });
  function sort(i) {
    ascending = by === i ? !ascending : true;
    by = i;
    const key = (line) => (line[i] && typeof line[i] === "object" && !Array.isArray(line[i]) ? line[i].sort : line[i]);
    const sign = ascending ? 1 : -1;
    order = lines.map((_, at) => at).sort((a, b) => {
      const [x, y] = [key(lines[a]), key(lines[b])];
      const blank = (v) => v === "" || v === null || v === undefined;
      if (blank(x) || blank(y)) return blank(x) - blank(y);
      if (isNumber(x) && isNumber(y)) return sign * (x - y);
      return sign * String(x).localeCompare(String(y));
    });
    draw();
  }
  function draw() {
    const at = (order || lines.map((_, i) => i)).slice(0, shownLines);
    put(body, ...at.map((i) => {
      const row = el("tr", picked ? { className: "pick", tabIndex: 0, onclick: () => picked(i) } : {});
      if (picked) row.addEventListener("keydown", (e) => { if (e.key === "Enter") picked(i); });
      lines[i].forEach((value, c) => {
        const text = value && typeof value === "object" && !Array.isArray(value) ? interval(value.sort, value.low, value.high) : cell(value);
        const kind = numeric.includes(c) ? "number" : long.includes(c) || text.length > 60 ? "long" : "";
        row.append(el("td", { className: kind }, text));
      });
      return row;
    }));
    more.textContent = `show more (${(lines.length - shownLines).toLocaleString("en")} left)`;
    more.hidden = lines.length <= shownLines;
  }
  more.addEventListener("click", () => { shownLines += 500; draw(); });
  draw();
  return el("div", {}, el("div", { className: "scroll high" }, el("table", {}, el("thead", {}, head), body)), more);
}

function recordAt(file, record) {
  return DATA.files[file].records[record];
}

function wholeRecord(file, record) {
  const f = DATA.files[file];
  return Object.assign({}, f.records[record], DATA.environments[f.about[record]]);
}

// Cividis (Nunez, Anderton and Renslow 2018), light end first: seen alike without colour vision.
const CIVIDIS = [[255, 234, 70], [219, 200, 87], [186, 173, 101], [155, 148, 114], [124, 123, 120], [97, 101, 111], [67, 78, 108], [23, 51, 111], [0, 32, 76]];

function ramp(t) {
  const x = Math.min(1, Math.max(0, t)) * (CIVIDIS.length - 1), i = Math.min(CIVIDIS.length - 2, Math.floor(x));
  return CIVIDIS[i].map((c, k) => Math.round(c + (x - i) * (CIVIDIS[i + 1][k] - c)));
}

const onRamp = (t) => (t < 0.55 ? "#000" : "#fff");
