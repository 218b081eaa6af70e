// A text whose tokens are coloured by when they were revealed: shared by the report and the replay.

// The forward of each token that has a piece of text, or null where a record does not say.
function revealSteps(entry) {
  const whole = entry.reveal_step, order = Array.isArray(whole) && Array.isArray(entry.pieces) ? whole.slice(0, entry.pieces.length) : whole;
  return Array.isArray(order) && order.length && order.every(isNumber) ? order : null;
}

// The tokens as they are after forward `step` (null: after the last), those to come without their text.
function revealTokens(pieces, order, step) {
  const last = Math.max(...order, 1);
  return pieces.map((piece, i) => {
    const at = order[i], token = el("span", { className: "token", title: `token ${i + 1}, step ${at + 1}` }, piece);
    if (step !== null && at > step) token.className = "token hidden";
    else {
      token.style.background = `rgb(${ramp(at < 0 ? 0 : at / last).join(",")})`;
      token.style.color = onRamp(at / last);
      if (step !== null && at === step) token.className = "token fresh";
    }
    return token;
  });
}

// What the colours mean, and `where` beside it.
function revealScale(where) {
  const bar = el("canvas", { width: 280, height: 20 }), c = bar.getContext("2d");
  for (let x = 0; x < 280; x++) { c.fillStyle = `rgb(${ramp(x / 279).join(",")})`; c.fillRect(x, 0, 1, 20); }
  return el("div", { className: "scale" }, "first", bar, "last to be revealed", where);
}
