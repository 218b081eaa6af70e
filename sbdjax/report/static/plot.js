// A canvas with axes, points, lines and error bars: hover tells a point, dragging zooms, a double click
// shows everything again. Made for tens of thousands of points.

class Plot {
  // settings: {x, y: labels, height, bare: no markers on lines, longest: line that is drawn, picked(point)}
  constructor(settings) {
    this.settings = Object.assign({ height: 340, longest: 100 }, settings);
    this.series = [];
    this.hidden = new Set();
    this.view = null;
    this.canvas = el("canvas", { tabIndex: 0, role: "img" });
    this.tip = el("div", { className: "tip", hidden: true });
    this.node = el("div", { className: "plot" }, this.canvas, this.tip);
    this.canvas.style.height = this.settings.height + "px";
    this.canvas.addEventListener("pointermove", (e) => this.moved(e));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("pointerdown", (e) => this.pressed(e));
    this.canvas.addEventListener("pointerup", (e) => this.released(e));
    this.canvas.addEventListener("dblclick", () => { this.view = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  // series: [{name, colour, marker, points: [{x, y, xlow, xhigh, ylow, yhigh, text}], joined: in their
  // order, level: of a dashed line}]
  show(series, labels) {
    Object.assign(this.settings, labels || {});
    this.series = series;
    this.view = null;
    const count = series.reduce((n, s) => n + s.points.length, 0);
    this.canvas.setAttribute("aria-label", `${this.settings.y} against ${this.settings.x}: ${count} points`);
    this.draw();
  }

  visible() {
    return this.series.filter((s) => !this.hidden.has(s.name));
  }

  bounds() {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const s of this.visible()) for (const p of s.points) {
      x0 = Math.min(x0, p.x); x1 = Math.max(x1, p.x);
      y0 = Math.min(y0, isNumber(p.ylow) ? p.ylow : p.y); y1 = Math.max(y1, isNumber(p.yhigh) ? p.yhigh : p.y);
    }
    if (!(x0 <= x1)) return { x0: 0, x1: 1, y0: 0, y1: 1 };
    const pad = (a, b) => (b > a ? 0.06 * (b - a) : Math.abs(a) * 0.1 || 1);
    const [px, py] = [pad(x0, x1), pad(y0, y1)];
    return { x0: x0 - px, x1: x1 + px, y0: y0 - py, y1: y1 + py };
  }

  draw() {
    const width = this.canvas.clientWidth, height = this.settings.height, ratio = window.devicePixelRatio || 1;
    if (!width) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const c = this.canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    const v = this.view || this.bounds();
    const font = "12px system-ui, 'Segoe UI', 'Liberation Sans', sans-serif";
    c.font = font;
    const yTicks = ticks(v.y0, v.y1, Math.max(3, Math.floor(height / 55)));
    const left = (c.measureText(this.settings.y).width > height - 56 ? 44 : 30) + Math.max(...yTicks.map((t) => c.measureText(shown(t)).width), 10);
    const box = { left, right: width - 12, top: 10, bottom: height - 46 };
    const xTicks = ticks(v.x0, v.x1, Math.max(3, Math.floor((box.right - box.left) / 80)));
    const px = (x) => box.left + ((x - v.x0) / (v.x1 - v.x0)) * (box.right - box.left);
    const py = (y) => box.bottom - ((y - v.y0) / (v.y1 - v.y0)) * (box.bottom - box.top);
    Object.assign(this, { box, px, py, shownView: v });

    c.strokeStyle = "#e4e7eb"; c.lineWidth = 1; c.fillStyle = "#3c4654";
    c.textAlign = "center"; c.textBaseline = "top";
    for (const t of xTicks) { line(c, px(t), box.top, px(t), box.bottom); c.fillText(shown(t), px(t), box.bottom + 6); }
    c.textAlign = "right"; c.textBaseline = "middle";
    for (const t of yTicks) { line(c, box.left, py(t), box.right, py(t)); c.fillText(shown(t), box.left - 6, py(t)); }
    c.strokeStyle = "#3c4654"; line(c, box.left, box.bottom, box.right, box.bottom); line(c, box.left, box.top, box.left, box.bottom);
    c.fillStyle = "#1c2430"; c.textAlign = "center"; c.textBaseline = "bottom";
    c.fillText(fit(c, this.settings.x, box.right - box.left), (box.left + box.right) / 2, height - 4);
    c.save(); c.translate(12, (box.top + box.bottom) / 2); c.rotate(-Math.PI / 2); c.textBaseline = "middle";
    const yLines = fold(c, this.settings.y, box.bottom - box.top);
    yLines.forEach((text, i) => c.fillText(text, 0, i * 14)); c.restore();

    c.save(); c.beginPath(); c.rect(box.left, box.top, box.right - box.left, box.bottom - box.top); c.clip();
    const visible = this.visible(), count = visible.reduce((n, s) => n + s.points.length, 0);
    const size = count > 2000 ? 2 : count > 300 ? 3 : 4.5;
    for (const s of visible) {
      c.strokeStyle = c.fillStyle = s.colour;
      if (s.level !== undefined) { c.setLineDash([6, 4]); c.lineWidth = 1.2; line(c, box.left, py(s.level), box.right, py(s.level)); c.setLineDash([]); }
      if (s.joined && s.points.length > 1 && s.points.length <= this.settings.longest) {
        c.lineWidth = 1.6;
        c.beginPath();
        s.points.forEach((p, i) => (i ? c.lineTo(px(p.x), py(p.y)) : c.moveTo(px(p.x), py(p.y))));
        c.stroke();
      }
      if (count <= 600) {
        c.lineWidth = 1; c.globalAlpha = 0.55;
        for (const p of s.points) {
          if (isNumber(p.ylow) && isNumber(p.yhigh)) line(c, px(p.x), py(p.ylow), px(p.x), py(p.yhigh));
          if (isNumber(p.xlow) && isNumber(p.xhigh)) line(c, px(p.xlow), py(p.y), px(p.xhigh), py(p.y));
        }
        c.globalAlpha = 1;
      }
      c.globalAlpha = count > 2000 ? 0.6 : 1;
      if (!this.settings.bare || s.points.length === 1) for (const p of s.points) marker(c, s.marker, px(p.x), py(p.y), size);
      c.globalAlpha = 1;
    }
    c.restore();
    if (!count) { c.fillStyle = "#5b6675"; c.fillText("nothing to draw here", (box.left + box.right) / 2, (box.top + box.bottom) / 2); }
  }

  nearest(at) {
    let best = null, distance = 14 * 14;
    for (const s of this.visible()) for (const p of s.points) {
      const dx = this.px(p.x) - at.x, dy = this.py(p.y) - at.y, d = dx * dx + dy * dy;
      if (d < distance) { distance = d; best = { s, p }; }
    }
    return best;
  }

  place(e) {
    const frame = this.canvas.getBoundingClientRect();
    return { x: e.clientX - frame.left, y: e.clientY - frame.top };
  }

  moved(e) {
    if (!this.box) return;
    const at = this.place(e);
    if (this.start) return this.drag(at);
    const found = this.nearest(at);
    this.tip.hidden = !found;
    if (!found) return;
    this.tip.textContent = [found.s.name, found.p.text].filter(Boolean).join("\n");
    const [x, y] = [this.px(found.p.x), this.py(found.p.y)], wide = this.canvas.clientWidth;
    this.tip.style.left = Math.max(0, Math.min(x + 12, wide - this.tip.offsetWidth)) + "px";
    this.tip.style.top = Math.max(0, y - this.tip.offsetHeight - 10) + "px";
  }

  pressed(e) {
    if (e.pointerType === "mouse" && e.button === 0) this.start = this.place(e);
    else this.moved(e);
  }

  drag(at) {
    this.draw();
    const c = this.canvas.getContext("2d");
    c.fillStyle = "rgba(0, 114, 178, .15)";
    c.fillRect(this.start.x, this.start.y, at.x - this.start.x, at.y - this.start.y);
  }

  released(e) {
    const from = this.start, to = this.place(e), v = this.shownView, b = this.box;
    this.start = null;
    if (!from) return;
    if (Math.abs(to.x - from.x) < 8 || Math.abs(to.y - from.y) < 8) {
      const found = this.nearest(to);
      if (found && this.settings.picked) this.settings.picked(found.p);
      return this.draw();
    }
    const x = (p) => v.x0 + ((p - b.left) / (b.right - b.left)) * (v.x1 - v.x0);
    const y = (p) => v.y0 + ((b.bottom - p) / (b.bottom - b.top)) * (v.y1 - v.y0);
    this.view = { x0: x(Math.min(from.x, to.x)), x1: x(Math.max(from.x, to.x)), y0: y(Math.max(from.y, to.y)), y1: y(Math.min(from.y, to.y)) };
    this.draw();
  }
}

function line(c, x0, y0, x1, y1) {
  c.beginPath(); c.moveTo(x0, y0); c.lineTo(x1, y1); c.stroke();
}

function fit(c, text, room) {
  if (c.measureText(text).width <= room) return text;
  while (text && c.measureText(text + "…").width > room) text = text.slice(0, -1);
  return text + "…";
}

// In two lines where one is too short for it, cut at the last comma or bracket.
function fold(c, text, room) {
  const at = Math.max(text.lastIndexOf(", "), text.lastIndexOf(" ("), text.lastIndexOf(": ") + 1);
  if (c.measureText(text).width <= room || at < 1) return [fit(c, text, room)];
  return [fit(c, text.slice(0, at).trim(), room), fit(c, text.slice(at).replace(/^,/, "").trim(), room)];
}

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw)), rest = raw / power;
  const step = power * (rest > 5 ? 10 : rest > 2 ? 5 : rest > 1 ? 2 : 1), found = [];
  for (let i = Math.ceil(low / step); i * step <= high && found.length < 50; i++) found.push(i * step);
  return found;
}

function marker(c, kind, x, y, r) {
  c.beginPath();
  if (kind === 0) c.arc(x, y, r, 0, 7);
  else if (kind === 1) c.rect(x - r, y - r, 2 * r, 2 * r);
  else if (kind === 2) polygon(c, x, y, r * 1.3, 4, 0);
  else if (kind === 3) polygon(c, x, y, r * 1.3, 3, 0);
  else if (kind === 4) polygon(c, x, y, r * 1.3, 3, Math.PI);
  else if (kind === 5) { c.rect(x - r * 1.2, y - r * 0.4, r * 2.4, r * 0.8); c.rect(x - r * 0.4, y - r * 1.2, r * 0.8, r * 2.4); }
  else polygon(c, x, y, r * 1.3, 5, 0);
  c.fill();
}

function polygon(c, x, y, r, corners, turn) {
  for (let i = 0; i < corners; i++) {
    const a = turn - Math.PI / 2 + (2 * Math.PI * i) / corners;
    c[i ? "lineTo" : "moveTo"](x + r * Math.cos(a), y + r * Math.sin(a));
  }
  c.closePath();
}

// Buttons that show and hide series in some plots.
function legend(series, plots) {
  const node = el("div", { className: "legend" });
  for (const s of series) {
    const sample = el("canvas", { width: 48, height: 24 });
    const c = sample.getContext("2d");
    c.scale(2, 2); c.strokeStyle = c.fillStyle = s.colour; c.lineWidth = 1.6;
    line(c, 0, 6, 24, 6); marker(c, s.marker, 12, 6, 4);
    const button = el("button", { type: "button", "aria-pressed": "true" }, sample, s.name);
    button.addEventListener("click", () => {
      const hide = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!hide));
      for (const plot of plots) { plot.hidden[hide ? "add" : "delete"](s.name); plot.draw(); }
    });
    node.append(button);
  }
  return node;
}

const styleOf = (i) => ({ colour: COLOURS[i % COLOURS.length], marker: (i + Math.floor(i / COLOURS.length)) % MARKERS });
