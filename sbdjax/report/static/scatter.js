// Quality against tokens per forward and against seconds, or any two measures; and the same as a table.

function sectionSpeed() {
  const P = DATA.points, node = bodyOf("speed"), keys = Object.keys(P.value);
  if (!P.set.length) return put(node, el("p", { className: "faint" }, "No record here measures quality or speed."));
  const has = (key, i) => isNumber(P.value[key][i]);
  const inSet = P.sets.map(() => []);
  P.set.forEach((s, i) => inSet[s].push(i));
  const all = P.set.map((_, i) => i);
  const qualities = keys.filter((k) => measureOf(k).quality);
  const costs = ["tokens_per_second", "speed_ratio", "seconds", "forwards"];
  const points = (indices, x, y) => indices.filter((i) => has(x, i) && has(y, i)).length;
  const best = (indices, candidates, other) => {
    const counted = candidates.filter((k) => keys.includes(k)).map((k) => [other ? points(indices, k, other) : indices.filter((i) => has(k, i)).length, k]);
    const top = Math.max(0, ...counted.map((c) => c[0]));
    return top ? counted.find((c) => c[0] === top)[1] : null;
  };
  const state = { set: -1, x1: null, x2: null, y: null };
  const indices = () => (state.set < 0 ? all : inSet[state.set]);
  const rank = inSet.map((list, s) => [qualities.some((q) => keys.includes("tpf") && points(list, "tpf", q) > 1) ? 1 : 0, s]);
  const first = rank.find((r) => r[0]);
  state.set = first ? first[1] : P.sets.length > 1 ? 0 : 0;

  const pick = (p) => showRecord(P.file[p.at], P.record[p.at]);
  const plots = [new Plot({ picked: pick }), new Plot({ picked: pick })];
  const controls = el("div", { className: "controls" }), keysNode = el("div"), tableNode = el("div"), note = el("p", { className: "faint" });
  put(node, controls, el("div", { className: "panels" }, plots[0].node, plots[1].node), keysNode, note, tableNode);

  function defaults() {
    const list = indices();
    const withCost = qualities.filter((q) => keys.includes("tpf") && points(list, "tpf", q));
    state.y = best(list, withCost.length ? withCost : qualities) || best(list, ["tokens_per_second", "speed_ratio", "tpf", ...keys]);
    state.x1 = best(list, ["tpf", ...costs].filter((k) => k !== state.y), state.y) || best(list, keys.filter((k) => k !== state.y), state.y) || state.y;
    if (keys.includes("tpf") && state.y !== "tpf" && points(list, "tpf", state.y)) state.x1 = "tpf";
    state.x2 = best(list, costs.filter((k) => k !== state.y && k !== state.x1), state.y) || state.x1;
  }

  function update() {
    const list = indices(), usable = keys.filter((k) => list.some((i) => has(k, i)));
    const options = usable.map((k) => [k, axisLabel(k)]);
    const sets = [...P.sets.map((s, i) => [i, `${s} (${inSet[i].length})`]), ...(P.sets.length > 1 ? [[-1, `everything (${all.length})`]] : [])];
    put(controls,
      choose("records", sets, state.set, (v) => { state.set = Number(v); defaults(); update(); }),
      choose("quality", options, state.y, (v) => { state.y = v; update(); }),
      choose("left", options, state.x1, (v) => { state.x1 = v; update(); }),
      choose("right", options, state.x2, (v) => { state.x2 = v; update(); }));
    const groups = new Map();
    for (const i of list) {
      const name = (state.set < 0 && P.sets.length > 1 ? P.sets[P.set[i]] + ": " : "") + P.series[P.of[i]];
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(i);
    }
    const styles = new Map([...groups.keys()].map((name, n) => [name, styleOf(n)]));
    const drawn = new Set();
    plots.forEach((plot, side) => {
      const x = side ? state.x2 : state.x1, series = [];
      for (const [name, members] of groups) {
        const found = members.filter((i) => has(x, i) && has(state.y, i)).map((i) => point(i, x, state.y));
        if (!found.length) continue;
        drawn.add(name);
        const reference = /(^|[:\s])ar$/i.test(name) && found.every((p) => p.y === found[0].y);
        const joined = found.every((p) => P.note[p.at]);
        series.push(Object.assign({ name, points: found, joined }, styles.get(name), reference ? { level: found[0].y } : {}));
      }
      plot.hidden.clear();
      plot.show(series, { x: axisLabel(x), y: axisLabel(state.y) });
    });
    plots[1].node.hidden = state.x2 === state.x1;
    const shownSeries = [...drawn].map((name) => Object.assign({ name }, styles.get(name)));
    put(keysNode, legend(shownSeries, plots));
    note.textContent = `${list.filter((i) => has(state.y, i)).length} of ${list.length} points have this measure. Bars: 95 % intervals, recorded or from the sums of every text; of tokens/s also the slowest and fastest repeat. Dashed: AR. Drag to zoom, double click to see everything; a click on a point shows its record.`;
    const columns = usable.filter((k) => k !== "ended");
    const lines = list.map((i) => [P.series[P.of[i]], P.note[i], ...columns.map((k) => has(k, i) ? { sort: P.value[k][i], low: P.low[k][i], high: P.high[k][i] } : "")]);
    const heads = ["series", "setting", ...columns.map((k) => measureOf(k).label + (measureOf(k).unit ? ` (${measureOf(k).unit})` : ""))];
    put(tableNode, table(heads, lines, { limit: 30, numeric: heads.map((_, i) => i).slice(2), picked: (line) => showRecord(P.file[list[line]], P.record[list[line]]) }));
  }

  function point(i, x, y) {
    const text = [P.note[i], ...[x, y].map((k) => `${measureOf(k).label}: ${interval(P.value[k][i], P.low[k][i], P.high[k][i])} ${measureOf(k).unit}`)];
    return { at: i, x: P.value[x][i], y: P.value[y][i], xlow: P.low[x][i], xhigh: P.high[x][i], ylow: P.low[y][i], yhigh: P.high[y][i], text: text.filter(Boolean).join("\n") };
  }

  defaults();
  update();
}
